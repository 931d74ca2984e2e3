// SPDX-License-Identifier: MIT
// The limits of an OpenCL device's memory, on PoCL as a device of 1 GiB: the driver's, the device's, and
// those of a driver that takes memory for a buffer only when the buffer is first used, as most do.
#include <doctest/doctest.h>

#if WEFT_WITH_OPENCL && __has_include(<CL/cl_icd.h>)

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl_icd.h>

#include <weft/gpu/opencl.hpp>
#include <weft/weft.hpp>

#include "../../skip.hpp"

using namespace weft;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// The table of functions to which the loader passes all calls for this driver; null without a device.
cl_icd_dispatch* driver() {
  static cl_icd_dispatch* const found = []() -> cl_icd_dispatch* {
    setenv("POCL_MEMORY_LIMIT", "1", 1);
    try {
      const gpu::opencl_functions cl;
      if (const auto all = cl.devices(); !all.empty())
        return *reinterpret_cast<cl_icd_dispatch**>(all.front());
    } catch (const device_error& e) {
      test::skip("opencl", e.what());
      return nullptr;
    }
    test::skip("opencl", "no device");
    return nullptr;
  }();
  return found;
}

/// While it exists, the driver has 256 MiB, and takes them for a buffer when it is first written.
class memory_at_first_use {
 public:
  memory_at_first_use() {
    driver()->clCreateBuffer = [](cl_context c, cl_mem_flags f, std::size_t n, void* p, cl_int* e) {
      const cl_mem b = kept_.clCreateBuffer(c, f, n, p, e);
      if (b) unused_[b] = n;
      return b;
    };
    driver()->clReleaseMemObject = [](cl_mem b) {
      unused_.erase(b);
      if (const auto used = used_.extract(b)) left_ += used.mapped();
      return kept_.clReleaseMemObject(b);
    };
    driver()->clEnqueueFillBuffer = [](cl_command_queue q, cl_mem b, const void* p, std::size_t size,
                                       std::size_t at, std::size_t n, cl_uint k, const cl_event* w,
                                       cl_event* e) -> cl_int {
      return use(b) ? kept_.clEnqueueFillBuffer(q, b, p, size, at, n, k, w, e) : refusal;
    };
    driver()->clEnqueueWriteBuffer = [](cl_command_queue q, cl_mem b, cl_bool waits, std::size_t at,
                                        std::size_t n, const void* p, cl_uint k, const cl_event* w,
                                        cl_event* e) -> cl_int {
      return use(b) ? kept_.clEnqueueWriteBuffer(q, b, waits, at, n, p, k, w, e) : refusal;
    };
  }
  memory_at_first_use(const memory_at_first_use&) = delete;
  memory_at_first_use& operator=(const memory_at_first_use&) = delete;
  ~memory_at_first_use() { *driver() = kept_; }

 private:
  static constexpr cl_int refusal = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  static bool use(cl_mem b) {
    const auto first = unused_.find(b);
    if (first == unused_.end()) return true;
    if (first->second > left_) return false;
    left_ -= first->second;
    used_.insert(unused_.extract(first));
    return true;
  }
  static inline cl_icd_dispatch kept_ = *driver();
  static inline std::map<cl_mem, std::size_t> unused_, used_;
  static inline std::size_t left_ = 256 * mebibyte;
};

/// Memory that is used.
buffer used(const device& d, std::size_t bytes, const char* what = "") {
  buffer b = d.allocate(bytes, what);
  (*d).fill_zero(b.data(), 64);
  return b;
}

std::string refusal(const device& d, std::size_t bytes) {
  try {
    (void)used(d, bytes, "arena of programs");
  } catch (const out_of_memory_error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("memory that a driver lacks when a buffer is first used is taken from the cache, or refused") {
  if (!driver()) return;
  const memory_at_first_use lazily;
  const device d(std::make_shared<gpu::opencl_backend>());
  for (const std::size_t m : {100, 90}) (void)used(d, m * mebibyte);  // cached from now on
  const buffer kept = used(d, 150 * mebibyte, "parameter");
  kept.set_name("wte.weight");
  CHECK(d.memory().figures().retries == 1);
  const std::string said = refusal(d, 150 * mebibyte);
  CAPTURE(said);
  CHECK(
      said.starts_with("weft: opencl: out of memory: CL_MEM_OBJECT_ALLOCATION_FAILURE: could not allocate "
                       "167772160 bytes for arena of programs\n  in use: 167.8 MB"));
  CHECK(said.ends_with("\n    167.8 MB  parameter wte.weight"));
  CHECK(d.memory().figures().failures == 1);
  (*d).synchronize();
}

TEST_CASE("no more is allocated than the device has, and the cache is released first") {
  if (!driver()) return;
  const device d(std::make_shared<gpu::opencl_backend>());
  const std::size_t total = (*d).room().total;
  REQUIRE(total >= 1000 * mebibyte);
  REQUIRE(total <= 1100 * mebibyte);
  for (std::size_t m = 64; m <= 192; m += 16) (void)used(d, m * mebibyte);
  CHECK(d.memory().figures().peak_reserved <= total);
  CHECK(d.memory().figures().retries == 1);
  std::vector<buffer> kept;
  while (refusal(d, 192 * mebibyte).empty()) kept.push_back(used(d, 192 * mebibyte));
  CHECK(kept.size() == 5);
  const std::string said = refusal(d, 192 * mebibyte);
  CAPTURE(said);
  CHECK(said.find(": the device has 1073741824 bytes: could not allocate 201326592 bytes for ") !=
        std::string::npos);
  kept.pop_back();
  CHECK(refusal(d, 192 * mebibyte) == "");
}

TEST_CASE("a buffer that is too large for the driver is refused by name of the limit") {
  if (!driver()) return;
  const device d(std::make_shared<gpu::opencl_backend>());
  const std::string said = refusal(d, 600 * mebibyte);
  CAPTURE(said);
  CHECK(said.find(": one buffer may have at most ") != std::string::npos);
  CHECK(said.find(" bytes (CL_DEVICE_MAX_MEM_ALLOC_SIZE): could not allocate 671088640 bytes for ") !=
        std::string::npos);
}
#endif
