// SPDX-License-Identifier: MIT
// Devices by name, for programs' --device and --list-devices options.
//
//   device where = open_device("auto");        // the GPU of this rank, else the CPU, and says why
//   device second = open_device("cuda:1");
//   std::fputs(devices_text(list_devices()).c_str(), stdout);
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/device/kind.hpp>
#if WEFT_WITH_CUDA
#include <weft/gpu/cuda.hpp>
#endif
#if WEFT_WITH_OPENCL
#include <weft/gpu/opencl.hpp>
#endif

namespace weft {

/// A device of this machine, or a kind of device that cannot be used.
struct listed_device {
  std::string name;  // as open_device accepts it: "cuda:0"
  device_facts facts;
  std::string unusable;  // why it cannot be opened; empty if it can
};

namespace detail {

/// Calls f(name, kind) for every kind of device, the fastest first; kind is null if it is not part of this
/// build.
template <class F>
void for_each_kind(F f) {
#if WEFT_WITH_CUDA
  f("cuda", static_cast<cuda*>(nullptr));
#else
  f("cuda", nullptr);
#endif
#if WEFT_WITH_OPENCL
  f("opencl", static_cast<opencl*>(nullptr));
#else
  f("opencl", nullptr);
#endif
  f("cpu", static_cast<host*>(nullptr));
}

[[gnu::cold]] inline std::string not_built(const char* kind) {
  return std::string("weft: this program was built without ") + kind;
}

[[gnu::cold]] inline void append_devices(std::vector<listed_device>& all, const char* kind, std::nullptr_t) {
  all.push_back({kind, {}, not_built(kind)});
}
template <class Kind>
[[gnu::cold]] void append_devices(std::vector<listed_device>& all, const char* kind, Kind*) {
  try {
    int number = 0;
    for (const device_facts& facts : Kind::list()) {
      all.push_back({std::string(kind) + ":" + std::to_string(number), facts, ""});
      try {
        Kind::open(number++, {});
      } catch (const device_error& e) {
        all.back().unusable = e.what();
      }
    }
    if (number == 0) all.push_back({kind, {}, std::string("weft: ") + kind + ": no such device"});
  } catch (const device_error& e) {
    all.push_back({kind, {}, e.what()});
  }
}

[[noreturn, gnu::cold]] inline device open_kind(const char* kind, std::nullptr_t, const device_options&) {
  throw device_error(not_built(kind));
}
template <class Kind>
[[gnu::cold]] device open_kind(const char*, Kind*, const device_options& o) {
  return device(Kind::open(device_number<Kind>(o), o));
}

}  // namespace detail

/// Every device of this machine, and the kinds without devices. Opens each device to see whether it can be
/// used, which takes a fraction of a second for a GPU.
[[gnu::cold]] std::vector<listed_device> list_devices();

/// One line per device: name, product, memory, version, and why it cannot be used.
[[gnu::cold]] std::string devices_text(const std::vector<listed_device>& all);

/// Prints to stderr which device is used instead of a faster one, and why.
[[gnu::cold]] inline void print_fallback(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
}

/// Opens "cpu", "opencl" or "cuda", optionally with a device number ("cuda:1"); the default is the number of
/// this rank among those of its machine. "auto" opens the CUDA GPU and, if that fails, the CPU, after telling
/// `fallback` why. Each call opens a new device with memory of its own: tensors on one cannot be operands of
/// programs on another. Throws device_error if the device does not exist or is not part of this build.
[[gnu::cold]] device open_device(const std::string& name, const device_options& o = {},
                                 const std::function<void(const std::string&)>& fallback = print_fallback);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/open.ipp>
#endif
