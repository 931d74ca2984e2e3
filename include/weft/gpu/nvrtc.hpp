// SPDX-License-Identifier: MIT
// Compilation of CUDA C++ to machine code by NVRTC, a library that is opened at run time. Does not need a
// GPU.
#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include <weft/gpu/cuda_driver.hpp>

namespace weft::gpu {

/// The NVRTC library. The constructor throws device_error if it is not installed.
class nvrtc_compiler {
 public:
  [[gnu::cold]] nvrtc_compiler();

  /// NVRTC's name and version, and the options passed to it.
  [[gnu::cold]] std::string version() const;

  /// Machine code of `text` for an architecture such as "sm_90", or, if this NVRTC does not know it, PTX for
  /// the newest earlier one, which the driver translates. Throws device_error with the compiler's messages,
  /// or if NVRTC knows only newer architectures.
  [[gnu::cold]] std::vector<char> compile(const std::string& text, const std::string& architecture) const;

 private:
  [[gnu::cold]] void check(nvrtcResult result, const char* function) const;
  /// The architecture for which it compiles: the given one, or "compute_" and a number.
  [[gnu::cold]] std::string target_for(const std::string& architecture) const;

  library from_{cuda_libraries("nvrtc"), &cuda_folders};
#define WEFT_NVRTC(member, name) decltype(&::name) member = from_.function<decltype(&::name)>(#name)
  static constexpr const char* language_ = "--std=c++17";
  WEFT_NVRTC(get_version, nvrtcVersion);
  WEFT_NVRTC(count_architectures, nvrtcGetNumSupportedArchs);
  WEFT_NVRTC(get_architectures, nvrtcGetSupportedArchs);
  WEFT_NVRTC(create, nvrtcCreateProgram);
  WEFT_NVRTC(compile_program, nvrtcCompileProgram);
  WEFT_NVRTC(cubin_size, nvrtcGetCUBINSize);
  WEFT_NVRTC(cubin, nvrtcGetCUBIN);
  WEFT_NVRTC(ptx_size, nvrtcGetPTXSize);
  WEFT_NVRTC(ptx, nvrtcGetPTX);
  WEFT_NVRTC(log_size, nvrtcGetProgramLogSize);
  WEFT_NVRTC(get_log, nvrtcGetProgramLog);
  WEFT_NVRTC(destroy, nvrtcDestroyProgram);
  WEFT_NVRTC(message, nvrtcGetErrorString);
#undef WEFT_NVRTC
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nvrtc.ipp>
#endif
