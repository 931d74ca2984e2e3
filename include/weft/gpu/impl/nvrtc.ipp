// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/nvrtc.hpp>.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <weft/base/config.hpp>
#include <weft/gpu/nvrtc.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE
nvrtc_compiler::nvrtc_compiler() {  // it opens a second library by name, which the loader may not find
  if (from_.folder().empty()) return;
  for (const std::string& builtins : matching_paths(from_.folder() + "/libnvrtc-builtins.so*"))
    dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

WEFT_DEFINE std::string nvrtc_compiler::version() const {
  int major = 0, minor = 0;
  check(get_version(&major, &minor), "nvrtcVersion");
  return "NVRTC " + std::to_string(major) + "." + std::to_string(minor) + " " + language_;
}

WEFT_DEFINE std::string nvrtc_compiler::target_for(const std::string& architecture) const {
  int count = 0;
  check(count_architectures(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(get_architectures(known.data()), "nvrtcGetSupportedArchs");
  const int wanted = std::atoi(architecture.c_str() + std::string_view("sm_").size());
  int before = 0, oldest = INT_MAX;
  for (const int each : known) {
    if (each == wanted) return architecture;
    if (each < wanted) before = std::max(before, each);
    oldest = std::min(oldest, each);
  }
  if (before == 0)
    throw device_error("weft: cuda: this NVRTC compiles for sm_" + std::to_string(oldest) +
                       " and newer, not for " + architecture + ": use an older NVRTC");
  return "compute_" + std::to_string(before);
}

WEFT_DEFINE std::vector<char> nvrtc_compiler::compile(const std::string& text,
                                                      const std::string& architecture) const {
  const std::string target = target_for(architecture), option = "--gpu-architecture=" + target;
  const bool translated = target.starts_with("compute_");
  nvrtcProgram program = nullptr;
  check(create(&program, text.c_str(), "weft.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  const auto destroyed = [this](nvrtcProgram* p) { destroy(p); };
  const std::unique_ptr<nvrtcProgram, decltype(destroyed)> held(&program, destroyed);
  const char* options[] = {option.c_str(), language_};
  const nvrtcResult result = compile_program(program, 2, options);
  std::vector<char> code;
  std::string log;
  std::size_t size = 0;
  if (result == NVRTC_SUCCESS) {
    check((translated ? ptx_size : cubin_size)(program, &size), "nvrtcGetCUBINSize or nvrtcGetPTXSize");
    code.resize(size);
    check((translated ? ptx : cubin)(program, code.data()), "nvrtcGetCUBIN or nvrtcGetPTX");
  } else {
    log_size(program, &size);
    log.resize(size);
    get_log(program, log.data());
  }
  if (result != NVRTC_SUCCESS) throw device_error("weft: cuda: a kernel does not compile:\n" + log);
  return code;
}

WEFT_DEFINE void nvrtc_compiler::check(nvrtcResult result, const char* function) const {
  if (result != NVRTC_SUCCESS)
    throw device_error(std::string("weft: cuda: ") + function + ": " + message(result));
}

}  // namespace gpu
}  // namespace weft
