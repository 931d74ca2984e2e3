// SPDX-License-Identifier: MIT
// Kinds of devices, which policies and programs choose by name: cuda in gpu/cuda.hpp, opencl in
// gpu/opencl.hpp, host here. A program compiles only the kinds that it includes.
//
//   struct npu {                                       // a kind of one's own; docs/adding_a_device.md
//     static constexpr auto name = "npu";
//     static std::vector<device_facts> list();
//     static std::shared_ptr<backend> open(int number, const device_options&);
//   };
#pragma once

#include <concepts>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <weft/base/number.hpp>
#include <weft/device/device.hpp>

namespace weft {

/// What a driver reports about one of its devices.
struct device_facts {
  std::string name;              // the product's
  std::size_t memory_bytes = 0;  // of the device; 0: unknown
  std::string version;           // "compute capability 9.0", "OpenCL 3.0"
};

/// A kind of device: a name, the list of this machine's devices by number, and how to open one. Both
/// functions throw device_error if the driver is missing or does not work.
template <class T>
concept device_kind = requires(const device_options& o) {
  { T::name } -> std::convertible_to<const char*>;
  { T::list() } -> std::same_as<std::vector<device_facts>>;
  { T::open(0, o) } -> std::convertible_to<std::shared_ptr<backend>>;
};

/// The CPU, for on<host>.
struct host {
  static constexpr auto name = "cpu";
  [[gnu::cold]] static std::vector<device_facts> list() {
    return {{std::to_string(hardware_threads()) + " threads", 0, ""}};
  }
  static std::shared_ptr<backend> open(int, const device_options& o) {
    return make_recycled<cpu::cpu_backend>(o.threads);
  }
  static device shared() { return default_device(); }
};

/// Held while a driver is asked for its devices or opens one, since not all drivers allow several threads to
/// do that at the same time. A kind may query another kind.
[[gnu::cold]] inline std::unique_lock<std::recursive_mutex> drivers_lock() {
  static auto* const mutex = new std::recursive_mutex();
  return std::unique_lock(*mutex);
}

/// The number of this process among those of its machine, as given by its launcher (LOCAL_RANK, or the
/// variable of Open MPI); 0 if it gives none. Throws usage_error if the value is not a number.
[[gnu::cold]] inline int local_rank_of_process() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"})
    if (const char* const text = std::getenv(name)) {
      const int number = detail::parse_number<int>(text).value_or(-1);
      if (number < 0) refuse<usage_error>({"weft: ", name, "=", text, ": expected a number, 0 or more"});
      return number;
    }
  return 0;
}

/// The number of the device that `o` asks for. Throws device_error if there is none.
template <device_kind Kind>
[[gnu::cold]] int device_number(const device_options& o) {
  auto lock = drivers_lock();
  const auto count = static_cast<int>(Kind::list().size());
  lock.unlock();
  if (count == 0)
    throw device_error(std::string("weft: ") + Kind::name + ": this machine has no such device");
  if (o.device == -1) return (o.local_rank >= 0 ? o.local_rank : local_rank_of_process()) % count;
  if (o.device < 0 || o.device >= count)
    throw device_error(std::string("weft: there is no device ") + Kind::name + ":" +
                       std::to_string(o.device) + ": this machine has " + std::to_string(count));
  return o.device;
}

/// Device `number` of a kind, opened at the first call and then the same for the whole process, so that
/// tensors on it can be operands of one expression. Never closed. For the CPU, default_device().
template <device_kind Kind>
[[gnu::cold]] device shared_device(int number) {
  if constexpr (requires { Kind::shared(); }) {
    return Kind::shared();
  } else {
    static auto* const opened = new std::vector<std::optional<device>>();  // by number
    const auto lock = drivers_lock();
    const auto place = static_cast<std::size_t>(number);
    if (opened->size() <= place) opened->resize(place + 1);
    std::optional<device>& known = (*opened)[place];
    if (!known) known.emplace(Kind::open(number, {}));
    return *known;
  }
}

/// In a policy: models and contexts are on devices of a kind.
///   policy<on<cuda>, precision::bf16, strategy::fully_sharded<3>>     // bind takes the GPU of each rank
///   context_in<on<cuda>, precision::bf16> c;                          // that of LOCAL_RANK, else the first
///   const device second = on<cuda>::where({.device = 1});
template <device_kind Kind>
struct on {
  using kind = Kind;
  /// A device of this kind; the same handle for the whole process. Throws device_error if there is none or
  /// its driver does not work, and usage_error if `o` sets a number of threads, because the handle is shared.
  static device where(const device_options& o = {}) {
    if (o.threads != 0)
      refuse<usage_error>({"weft: ", Kind::name, ": ", o.threads,
                           " threads: this device is shared by the whole process; open_device(\"cpu\", "
                           "{.threads = n}) opens a separate one"});
    return shared_device<Kind>(device_number<Kind>(o));
  }
};

}  // namespace weft
