// SPDX-License-Identifier: MIT
// Compilation of CUDA C++ to machine code by NVRTC, which is opened at run time. Does not need a GPU.
#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include <weft/gpu/library.hpp>

namespace weft::gpu {

/// The NVRTC library. Throws device_error at construction if it is not installed.
class nvrtc_compiler {
 public:
  [[gnu::cold]] nvrtc_compiler() {  // it opens a second library by name, which the loader may not find
    if (from_.folder().empty()) return;
    for (const std::string& builtins : matching_paths(from_.folder() + "/libnvrtc-builtins.so*"))
      dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
  }

  /// Machine code of `text` for an architecture such as "sm_90". Throws device_error with the compiler's
  /// messages.
  [[gnu::cold]] std::vector<char> compile(const std::string& text, const std::string& architecture) const {
    nvrtcProgram program = nullptr;
    check(create(&program, text.c_str(), "weft.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
    const std::string option = "--gpu-architecture=" + architecture;
    const char* options[] = {option.c_str(), "--std=c++17"};
    const nvrtcResult result = compile_program(program, 2, options);
    std::vector<char> code;
    std::string log;
    std::size_t size = 0;
    if (result == NVRTC_SUCCESS) {
      check(cubin_size(program, &size), "nvrtcGetCUBINSize");
      code.resize(size);
      check(cubin(program, code.data()), "nvrtcGetCUBIN");
    } else {
      log_size(program, &size);
      log.resize(size);
      get_log(program, log.data());
    }
    destroy(&program);
    if (result != NVRTC_SUCCESS) throw device_error("weft: cuda: a kernel does not compile:\n" + log);
    return code;
  }

 private:
  [[gnu::cold]] void check(nvrtcResult result, const char* function) const {
    if (result != NVRTC_SUCCESS)
      throw device_error(std::string("weft: cuda: ") + function + ": " + message(result));
  }

  library from_{{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, &cuda_folders};
#define WEFT_NVRTC(member, name) decltype(&::name) member = from_.function<decltype(&::name)>(#name)
  WEFT_NVRTC(create, nvrtcCreateProgram);
  WEFT_NVRTC(compile_program, nvrtcCompileProgram);
  WEFT_NVRTC(cubin_size, nvrtcGetCUBINSize);
  WEFT_NVRTC(cubin, nvrtcGetCUBIN);
  WEFT_NVRTC(log_size, nvrtcGetProgramLogSize);
  WEFT_NVRTC(get_log, nvrtcGetProgramLog);
  WEFT_NVRTC(destroy, nvrtcDestroyProgram);
  WEFT_NVRTC(message, nvrtcGetErrorString);
#undef WEFT_NVRTC
};

}  // namespace weft::gpu
