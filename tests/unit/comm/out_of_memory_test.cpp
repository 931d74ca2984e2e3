// SPDX-License-Identifier: MIT
// Memory that runs out: each allocation of a thread fails once, and nobody waits for ever.
#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <new>

#include <weft/comm/store_table.hpp>
#include <weft/comm/threads.hpp>

namespace {
constexpr int all = std::numeric_limits<int>::max();
thread_local int allocations_left = all;  // of this thread, of any size
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t n) {
  if (allocations_left != all && allocations_left-- == 0) throw std::bad_alloc();
  if (void* const p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

using namespace weft;
using namespace std::chrono_literals;

namespace {

/// Calls f() with one allocation of this thread failing; whether it threw.
template <class F>
bool fails_without(int allocation, F f) {
  allocations_left = allocation;
  try {
    f();
    allocations_left = all;
    return false;
  } catch (const std::exception&) {
    allocations_left = all;
    return true;
  }
}

}  // namespace

TEST_CASE("a rank without memory for a collective or a message ends the wait of the others") {
  for (const index_t count : {index_t{10}, index_t{1} << 17})
    for (const bool message : {false, true})
      for (int allocation = 0;; ++allocation) {
        std::atomic<bool> failed = false;
        CAPTURE(allocation);
        const auto start = std::chrono::steady_clock::now();
        try {
          run_ranks(2, [&](communicator& ranks) {
            std::vector<float> x(static_cast<std::size_t>(count));
            const comm_options o{.timeout = 60s};
            const auto communicate = [&] {
              if (!message) ranks.all_reduce(x, reduction::sum, o).wait();
              else if (ranks.rank() == 0) ranks.receive(x, 1, 0, o).wait();
              else ranks.send(x, 0, 0, o).wait();
            };
            if (ranks.rank() == 0) return communicate();
            std::this_thread::sleep_for(1ms);  // the other rank is usually there
            failed = fails_without(allocation, communicate);
          });
        } catch (const std::exception&) {}
        CHECK(std::chrono::steady_clock::now() - start < 30s);
        if (!failed) break;
        REQUIRE(allocation < 1000);
      }
}

TEST_CASE("ranks for which there is no memory end those that run") {
  for (int allocation = 0; fails_without(
           allocation,
           [] { run_ranks(3, [](communicator& ranks) { ranks.barrier({.timeout = 60s}).wait(); }); });
       ++allocation)
    REQUIRE(allocation < 1000);
}

TEST_CASE("a store without memory for a wait forgets the wait, not those of others") {
  using namespace weft::detail;
  const auto request = [](store_operation what, const std::string& key) {
    return frame_writer().number(7).byte(static_cast<std::uint8_t>(what)).text(key);
  };
  const std::string key(100, 'k'), queue(100, 'q');
  for (const bool pops : {false, true})
    for (int allocation = 0;; ++allocation) {
      store_table t;
      const std::string waits = pops ? request(store_operation::pop, queue).take()
                                     : frame_writer()
                                           .number(7)
                                           .byte(static_cast<std::uint8_t>(store_operation::wait))
                                           .texts({key, key + "2"})
                                           .take();
      t.handle(1, waits);
      bool failed = fails_without(allocation, [&] { t.handle(2, waits); });
      const std::string comes = pops ? request(store_operation::push, queue).text("v").take()
                                     : request(store_operation::set, key).text("v").take();
      failed = fails_without(allocation, [&] { t.handle(3, comes); }) || failed;
      for (const std::uint64_t client : {1, 2, 3}) t.forget(client);
      CHECK(t.waiters() == 0);
      CHECK(t.waiting_bytes() == 0);
      if (!failed) break;
      REQUIRE(allocation < 1000);
    }
}
