// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/device/device.hpp>
#include <weft/device/memory.hpp>

using namespace weft;

TEST_CASE("memory: a freed block is handed out again, figures add up") {
  const device d(std::make_shared<cpu::cpu_backend>(1));
  void* first = nullptr;
  {
    const buffer b = d.allocate(1000);
    first = b.data();
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
    CHECK(d.memory().figures().in_use >= 1000);
  }
  CHECK(d.memory().figures().in_use == 0);
  CHECK(d.allocate(1000).data() == first);
  CHECK(d.memory().figures().requests == 1);
  d.memory().empty_cache();
  CHECK(d.memory().figures().reserved == 0);
}

#if WEFT_ADDRESS_SANITIZER
TEST_CASE("memory: AddressSanitizer sees what is free, and what lies behind the bytes asked for") {
  const auto forbidden = [](const void* p) { return __asan_address_is_poisoned(p) != 0; };
  const device d(std::make_shared<cpu::cpu_backend>(1));
  const char* at = nullptr;
  for (std::size_t bytes : {1000, 961, 1021}) {  // of one size class
    const buffer b = d.allocate(bytes);
    at = static_cast<const char*>(b.data());
    CHECK_FALSE(forbidden(at));
    CHECK_FALSE(forbidden(at + bytes - 1));
    CHECK(forbidden(at + bytes));
    CHECK_FALSE(forbidden(b.part(8).data()));
  }
  CHECK(forbidden(at));
  scratch_memory scratch;
  const char* const task = static_cast<const char*>(scratch.get(100));
  CHECK(forbidden(task + 100));
  CHECK(scratch.get(90) == task);
  CHECK(forbidden(task + 90));
}
#endif

namespace {
/// Memory of a fixed size.
struct small_backend : cpu::cpu_backend {
  std::size_t left;
  explicit small_backend(std::size_t bytes) : cpu_backend(1), left(bytes) {}
  void* allocate(std::size_t bytes) override {
    if (bytes > left) throw out_of_memory_error("weft: cpu: out of memory");
    left -= bytes;
    return cpu_backend::allocate(bytes);
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override {
    left += bytes;
    cpu_backend::deallocate(memory, bytes);
  }
};
}  // namespace

TEST_CASE(
    "memory: cached blocks go back to a device that has no more, and figures stay right when it fails") {
  const device d(std::make_shared<small_backend>(4096));
  { const buffer a = d.allocate(2048), b = d.allocate(1024); }
  CHECK(d.memory().figures().reserved == 3072);
  const buffer all = d.allocate(4096);
  CHECK(d.memory().figures().reserved == 4096);
  CHECK_THROWS_AS((void)d.allocate(64), out_of_memory_error);
  CHECK(d.memory().figures().in_use == 4096);
  CHECK(d.memory().figures().peak == 4096);
}

TEST_CASE("memory: with a limit no more is reserved than it says or than is in use") {
  const device d(std::make_shared<cpu::cpu_backend>(1));
  d.memory().limit(4096);
  { const buffer a = d.allocate(2048), b = d.allocate(1024); }
  CHECK(d.memory().figures().reserved == 3072);
  { const buffer a = d.allocate(1536); }
  CHECK(d.memory().figures().reserved == 3584);  // b was freed first, and went back
  const buffer more = d.allocate(8192);
  CHECK(d.memory().figures().reserved == 8192);
  CHECK(d.memory().figures().in_use == 8192);
}
