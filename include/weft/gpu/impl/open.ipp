// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/open.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/gpu/open.hpp>

namespace weft {

WEFT_DEFINE std::vector<listed_device> list_devices() {
  std::vector<listed_device> all;
  detail::for_each_kind([&](const char* name, auto kind) { detail::append_devices(all, name, kind); });
  return all;
}

WEFT_DEFINE std::string devices_text(const std::vector<listed_device>& all) {
  std::string text;
  for (const listed_device& d : all) {
    text += d.name;
    if (!d.facts.name.empty()) text += "  " + d.facts.name;
    if (d.facts.memory_bytes) text += ", " + std::to_string(d.facts.memory_bytes >> 20) + " MiB";
    if (!d.facts.version.empty()) text += ", " + d.facts.version;
    text += d.unusable.empty() ? "\n" : "  cannot be used: " + d.unusable + "\n";
  }
  return text;
}

WEFT_DEFINE device open_device(const std::string& name, const device_options& o,
                               const std::function<void(const std::string&)>& fallback) {
  if (name == "auto") {
    try {
      return open_device("cuda", o);
    } catch (const device_error& e) {
      fallback(std::string("weft: device auto: using the CPU: ") + e.what());
      return open_device("cpu", o);
    }
  }
  // Not name.find: at -O3, g++ 12 warns that it might read too much.
  const auto colon = static_cast<std::size_t>(std::find(name.begin(), name.end(), ':') - name.begin());
  device_options chosen = o;
  bool known = colon == name.size();
  if (!known) {
    chosen.device = detail::parse_number<int>(std::string_view(name).substr(colon + 1)).value_or(-1);
    known = chosen.device >= 0;
  }
  std::vector<device> opened;
  if (known)
    detail::for_each_kind([&](const char* kind, auto type) {
      if (std::string_view(name).substr(0, colon) == kind)
        opened.push_back(detail::open_kind(kind, type, chosen));
    });
  if (opened.empty())
    throw device_error("weft: there is no device named " + name +
                       ": expected cpu, opencl, cuda, opencl:N, cuda:N or auto");
  return opened.front();
}

}  // namespace weft
