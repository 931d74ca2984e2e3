// SPDX-License-Identifier: MIT
// A CUDA C++ compiler for the fake driver, as libnvrtc.so.13. It uses the machine's own compiler, prepends
// CUDA's built-in declarations to the text, and replaces PTX by calls (fake_ptx.hpp). Machine code, and also
// the output as PTX, is "FAKECODE", a length, and a shared object. FAKE_NVRTC_ARCHITECTURES lists the
// supported architectures.
#include <nvrtc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "fake_ptx.hpp"

struct _nvrtcProgram {
  std::string text, code, log;
  bool is_ptx = false;
};

namespace {

constexpr const char* words = R"(
#define __CUDA_ARCH__ 800
#define __align__(bytes)
#define __global__
#define __device__ inline __attribute__((always_inline))
#define __shared__ static
#define __grid_constant__
extern "C" { void (*fake_barrier)(); }
struct fake_axis { unsigned x; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
#define __launch_bounds__(threads)
#define threadIdx fake_axis{fake_place.item}
#define blockDim fake_axis{fake_place.items}
#define blockIdx fake_axis{fake_place.group}
#define gridDim fake_axis{fake_place.groups}
#define __syncthreads() fake_barrier()
static float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
#define FAKE_1(name) static float name(float x) { return __builtin_##name##f(x); } \
                     static double name(double x) { return __builtin_##name(x); }
#define FAKE_2(name) static float name(float x, float y) { return __builtin_##name##f(x, y); } \
                     static double name(double x, double y) { return __builtin_##name(x, y); }
FAKE_1(exp) FAKE_1(expm1) FAKE_1(log) FAKE_1(log1p) FAKE_1(sqrt)
FAKE_1(tanh) FAKE_1(sin) FAKE_1(cos) FAKE_1(erf) FAKE_1(atan)
FAKE_1(floor) FAKE_1(ceil) FAKE_1(rint) FAKE_1(round) FAKE_1(trunc) FAKE_1(fabs) FAKE_2(pow) FAKE_2(fmod)
#undef FAKE_1
#undef FAKE_2
template <class... Parameters, unsigned long... I>
static void fake_call(void (*kernel)(Parameters...), void** arguments, __integer_sequence_of<I...>) {
  kernel(*static_cast<Parameters*>(arguments[I])...);
}
template <class... Parameters>
static void fake_call(void (*kernel)(Parameters...), void** arguments) {
  fake_call(kernel, arguments, typename __make_sequence<sizeof...(Parameters)>::type{});
}
template <class... Parameters>
static unsigned long fake_sizes_of(void (*)(Parameters...), unsigned long* to) {
  unsigned long n = 0;
  ((to[n++] = sizeof(Parameters)), ...);
  return n;
}
#line 1 "weft.cu"
)";
constexpr const char* sequence = R"(
template <unsigned long... I> struct __integer_sequence_of {};
template <unsigned long N, unsigned long... I>
struct __make_sequence : __make_sequence<N - 1, N - 1, I...> {};
template <unsigned long... I> struct __make_sequence<0, I...> { using type = __integer_sequence_of<I...>; };
)";
constexpr const char* entry = R"(
extern "C" void fake_entry(void** arguments) { fake_call(&weft_kernel, arguments); }
extern "C" unsigned long fake_sizes(unsigned long* to) { return fake_sizes_of(&weft_kernel, to); }
)";

std::mutex compiling;
std::map<std::string, std::pair<std::string, std::string>> known;  // code and log, by text

std::string target;  // of the last compilation

/// The numbers of the supported architectures.
std::vector<int> architectures() {
  const char* const set = std::getenv("FAKE_NVRTC_ARCHITECTURES");
  std::istringstream from(set ? set : "75 80 90 100 120");
  return {std::istream_iterator<int>(from), {}};
}

std::string contents(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}

std::pair<std::string, std::string> compiled(const std::string& text) {
  char folder[] = "/tmp/fake_nvrtc.XXXXXX";
  if (!mkdtemp(folder)) return {"", "no folder"};
  const std::string at = folder;
  std::ofstream(at + "/kernel.cpp") << sequence << fake_ptx::instructions << words
                                    << fake_ptx::translated(text) << entry;
  const std::string command = std::string("unset LD_LIBRARY_PATH; ") +
                              FAKE_COMPILER " -std=c++17 -O1 -w -ffp-contract=off -shared -fPIC " + at +
                              "/kernel.cpp -o " + at + "/kernel.so >" + at + "/log 2>&1";
  const int failed = std::system(command.c_str());
  std::pair<std::string, std::string> result{"", contents(at + "/log")};
  if (!failed) {
    const std::string code = contents(at + "/kernel.so");
    const std::uint64_t size = code.size();
    result.first = "FAKECODE" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + code;
  }
  for (const char* name : {"/kernel.cpp", "/kernel.so", "/log"}) unlink((at + name).c_str());
  rmdir(folder);
  return result;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char*, int, const char* const*,
                               const char* const*) {
  *program = new _nvrtcProgram{text, "", ""};
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  const std::string option = count < 1 ? "" : options[0], name = "--gpu-architecture=";
  const std::lock_guard lock(compiling);
  target = option.substr(std::min(name.size(), option.size()));
  program->is_ptx = target.starts_with("compute_");
  const std::string number = target.substr(std::min(target.size(), target.find('_') + 1));
  const std::vector<int> known_ones = architectures();
  const bool knows =
      std::find(known_ones.begin(), known_ones.end(), std::atoi(number.c_str())) != known_ones.end();
  if (!option.starts_with(name) || !(program->is_ptx || target.starts_with("sm_")) || !knows)
    return NVRTC_ERROR_INVALID_OPTION;
  const auto found = known.find(program->text);
  const auto result = found != known.end() ? found->second : known[program->text] = compiled(program->text);
  program->code = result.first;
  program->log = result.second;
  return program->code.empty() ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  *size = program->is_ptx ? 0 : program->code.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* to) {
  if (!program->is_ptx) std::memcpy(to, program->code.data(), program->code.size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, std::size_t* size) {
  *size = program->code.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* to) {
  std::memcpy(to, program->code.data(), program->code.size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(architectures().size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* to) {
  for (const int each : architectures()) *to++ = each;
  return NVRTC_SUCCESS;
}
const char* fake_nvrtc_target() {
  const std::lock_guard lock(compiling);
  static std::string last;
  last = target;
  return last.c_str();
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* size) {
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* to) {
  std::memcpy(to, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "an error of the fake compiler"; }

}  // extern "C"
