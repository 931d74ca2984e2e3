// SPDX-License-Identifier: MIT
// The allocator on the fake driver: streams other than the device's, mapped pages, errors.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include <weft/device/counting.hpp>
#include <weft/gpu/cuda_event.hpp>

#include "fake_cuda.hpp"

using namespace weft;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// A device, its driver, and another stream on it.
struct gpu_with_streams {
  explicit gpu_with_streams(const memory_options& o = {})
      : gpu(std::make_shared<gpu::cuda_backend>(0)),
        where(gpu, o),
        copies(gpu->driver(), gpu->queue().device) {}

  /// Queues a copy on the other stream.
  void copy(const buffer& to, const buffer& from, std::size_t bytes) {
    const auto current = copies.use();
    gpu->driver().check(gpu->driver().within_device(reinterpret_cast<CUdeviceptr>(to.data()),
                                                    reinterpret_cast<CUdeviceptr>(from.data()), bytes,
                                                    copies.stream),
                        "cuMemcpyDtoDAsync");
  }
  void await_copies() {
    const auto current = copies.use();
    gpu->driver().check(gpu->driver().wait_stream(copies.stream), "cuStreamSynchronize");
  }

  std::shared_ptr<gpu::cuda_backend> gpu;
  device where;
  gpu::cuda_queue copies;
};

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const out_of_memory_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("memory: a block that another stream reads is not overwritten, if the allocator is told") {
  const std::vector<int> written(1000, 7);
  const std::size_t bytes = written.size() * sizeof(int);
  for (const bool told : {true, false}) {
    gpu_with_streams on;
    buffer from = on.where.allocate(bytes);
    const buffer to = on.where.allocate(bytes);
    on.where->upload(from.data(), written.data(), bytes);
    on.where->synchronize();
    on.copy(to, from, bytes);
    if (told)
      CHECK(on.where.memory().record_use(from.data(),
                                         std::make_shared<gpu::cuda_stream_use>(*on.gpu, on.copies.stream)));
    from = {};
    const buffer next = on.where.allocate(bytes);
    on.where->fill_zero(next.data(), bytes);
    on.where->synchronize();
    on.await_copies();
    std::vector<int> read(written.size());
    on.where->download(read.data(), to.data(), bytes);
    CHECK((read == written) == told);
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: uses by other streams take and leave nothing of the driver") {
  const long before = fake_cuda::held();
  {
    gpu_with_streams on;
    for (int round = 0; round < 3; ++round) {
      const buffer b = on.where.allocate(1000);
      on.where.memory().record_use(b.data(),
                                   std::make_shared<gpu::cuda_stream_use>(*on.gpu, on.copies.stream));
    }
    CHECK(on.where.memory().figures().awaited == 0);
    CHECK(on.where.memory().figures().requests == 1);
  }
  CHECK(fake_cuda::held() == before);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: tensors that grow in segments of their own reserve more than in segments that expand") {
  gpu_with_streams on;
  buffer last;
  for (std::size_t m = 4; m <= 64; m += 4) last = on.where.allocate(m * mebibyte);
  CHECK(on.where.memory().figures().peak_reserved == 544 * mebibyte);
}

TEST_CASE("memory: segments expand by pages that the driver maps, and go back") {
  const long before = fake_cuda::held();
  {
    gpu_with_streams on({.expandable_segments = true});
    const caching_allocator& memory = on.where.memory();
    buffer last;
    for (std::size_t m = 4; m <= 64; m += 4) {
      last = on.where.allocate(m * mebibyte);
      on.where->fill_zero(last.data(), m * mebibyte);  // also across the border of two pages
    }
    CHECK(memory.figures().peak_reserved == 180 * mebibyte);
    last = {};
    on.where.memory().empty_cache();  // while the last fill is queued
    CHECK(memory.figures().reserved == 0);
    last = on.where.allocate(30 * mebibyte);
    CHECK(memory.figures().reserved == 40 * mebibyte);
    std::vector<char> read(30 * mebibyte, 1);
    on.where->fill_zero(last.data(), read.size());
    on.where->download(read.data(), last.data(), read.size());
    CHECK(read == std::vector<char>(read.size(), 0));
  }
  CHECK(fake_cuda::held() == before);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: other devices may access what is mapped, if they can") {
  for (const bool can : {true, false}) {
    setenv("FAKE_CUDA_PEERS", can ? "1" : "0", 1);
    {
      gpu_with_streams on({.expandable_segments = true});
      const buffer b = on.where.allocate(30 * mebibyte);
      for (const std::size_t at : {std::size_t{0}, 25 * mebibyte})
        CHECK(fake_cuda::access_of(static_cast<char*>(b.data()) + at) == (can ? 3 : 1));  // for two devices
    }
    unsetenv("FAKE_CUDA_PEERS");
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: if other devices are refused, pages are mapped for their own device alone") {
  gpu_with_streams on({.expandable_segments = true});
  fake_cuda::fail("cuMemSetAccess", CUDA_ERROR_INVALID_DEVICE, 1);
  const buffer b = on.where.allocate(30 * mebibyte);
  CHECK(fake_cuda::access_of(b.data()) == 1);
  on.where->fill_zero(b.data(), 30 * mebibyte);
  on.where->synchronize();
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: pages that cannot be mapped leave nothing behind") {
  gpu_with_streams on({.expandable_segments = true});
  const buffer kept = on.where.allocate(18 * mebibyte);
  const long held = fake_cuda::held();
  for (const auto& [call, times] : {std::pair("cuMemMap", 1), std::pair("cuMemSetAccess", 2)}) {
    fake_cuda::fail(call, CUDA_ERROR_ILLEGAL_ADDRESS, times);  // cuMemSetAccess: also for the device alone
    CHECK_THROWS_WITH_AS((void)on.where.allocate(90 * mebibyte), doctest::Contains(call), device_error);
    CHECK(fake_cuda::held() == held);
    CHECK(on.where.memory().figures().reserved == 20 * mebibyte);
  }
  fake_cuda::fail("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, -1);
  const std::string said = refusal([&] { (void)on.where.allocate(90 * mebibyte, "arena of programs"); });
  fake_cuda::fail("cuMemCreate", 0, 0);
  CHECK(said.starts_with("weft: cuda: out of memory: could not map 20971520 bytes for arena of programs\n"));
  CHECK(fake_cuda::held() == held);
  CHECK(on.where.allocate(90 * mebibyte).data() != nullptr);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("memory: the driver's word for it, and what the device has") {
  gpu_with_streams on;
  const buffer b = on.where.allocate(96 * mebibyte, "parameter");
  b.set_name("wte.weight");
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  const std::string said = refusal([&] { (void)on.where.allocate(mebibyte); });
  CAPTURE(said);
  CHECK(said.starts_with("weft: cuda: out of memory: could not allocate 1048576 bytes\n  in use: 100.7 MB"));
  CHECK(said.find("the device has 1073.7 MB, of which 939.5 MB are free") != std::string::npos);
  CHECK(said.ends_with("\n    100.7 MB  parameter wte.weight"));
}

TEST_CASE("memory: what is reserved on a device is what a device that only counts has forecast") {
  for (const memory_options& o : {memory_options{}, memory_options{.max_split_size = 6 * mebibyte},
                                  memory_options{.expandable_segments = true}}) {
    const auto run = [&](const device& d) {
      std::mt19937 random(5);
      std::vector<buffer> held(12);
      for (int round = 0; round < 400; ++round) {
        buffer& b = held[random() % held.size()];
        b = {};
        b = d.allocate(std::size_t{1} << (8 + random() % 16) | random() % 5000);
      }
      return d.memory().figures();
    };
    const memory_figures forecast = run(device(std::make_shared<counting_backend>(false), o)),
                         found = run(device(std::make_shared<gpu::cuda_backend>(0), o));
    CHECK(found.reserved == forecast.reserved);
    CHECK(found.peak_reserved == forecast.peak_reserved);
    CHECK(found.peak == forecast.peak);
    CHECK(found.requests == forecast.requests);
    CHECK(found.largest_free == forecast.largest_free);
  }
  CHECK(fake_cuda::misuse() == "");
}
