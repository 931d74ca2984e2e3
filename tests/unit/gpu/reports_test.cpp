// SPDX-License-Identifier: MIT
// Which thread gets the error of an invalid index on a device. WEFT_TEST_DEVICE names the device; the default
// is opencl.
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <weft/gpu/report_words.hpp>
#include <weft/weft.hpp>

#include "../../gpu/device_memory.hpp"

using namespace weft;
using test::tested_device;

namespace {

using rows = tensor<float, extents<2, 3>>;

rows looked_up(const device& d, std::int32_t index) {
  context c(d);
  return eval(embedding(ones<float>(extents<4, 3>{}, d), full<std::int32_t>(extents<2>{}, index, d)), c);
}
/// The message of the error at a read; empty if there is none.
std::string said(const rows& y) {
  try {
    (void)y.to_vector();
  } catch (const value_error& e) { return e.what(); }
  return "";
}
template <class F>
void on_thread(F f) {
  std::thread(f).join();
}

constexpr const char* refusal = "weft: embedding: an index is out of range";

}  // namespace

TEST_CASE("an invalid index of a thread that has ended is reported once, to who reads the result") {
  const device* const d = tested_device();
  if (!d) return;
  rows y = looked_up(*d, 1);
  CHECK(said(y) == "");
  on_thread([&] { y = looked_up(*d, 7); });
  CHECK(said(y) == refusal);
  CHECK(said(y) == "");
  for (int i = 0; i < 70; ++i) {
    std::string others = "no";
    on_thread([&] { others = said(looked_up(*d, 1)); });
    CHECK(others == "");
  }
}

TEST_CASE("an invalid index is reported to the thread that evaluated it while that runs, and not to others") {
  const device* const d = tested_device();
  if (!d) return;
  std::string first, second;
  std::barrier both(2);
  std::thread one([&] {
    const rows y = looked_up(*d, -1);
    both.arrive_and_wait();
    both.arrive_and_wait();
    first = said(y);
  });
  std::thread other([&] {
    both.arrive_and_wait();
    second = said(looked_up(*d, 2));
    both.arrive_and_wait();
  });
  one.join();
  other.join();
  CHECK(first == refusal);
  CHECK(second == "");
}

TEST_CASE("words for reports: one for each thread, taken over from those that end, shared by too many") {
  gpu::report_words words;
  const std::size_t mine = words.own();
  CHECK(words.own() == mine);
  CHECK(words.asked() == std::vector{mine});
  words.give_back(words.asked());
  CHECK(words.asked().empty());
  std::size_t of_ended = 0;
  on_thread([&] { of_ended = words.own(); });
  CHECK(words.own() != of_ended);
  CHECK(words.asked().size() == 2);
  on_thread([&] { CHECK(words.asked().empty()); });
  words.give_back(words.asked());
  constexpr std::size_t n = gpu::report_words::count + 2;
  std::vector<std::size_t> used(gpu::report_words::count);
  std::barrier all(n);
  std::vector<std::thread> threads;
  std::mutex one;
  for (std::size_t t = 0; t < n; ++t)
    threads.emplace_back([&] {
      {
        const std::lock_guard lock(one);
        ++used[words.own()];
      }
      all.arrive_and_wait();
      const std::lock_guard lock(one);
      CHECK(words.asked().size() == 1);
      words.give_back(words.asked());
    });
  for (std::thread& t : threads) t.join();
  CHECK(std::count(used.begin(), used.end(), 1u) == static_cast<long>(gpu::report_words::count) - 2);
  CHECK(std::count(used.begin(), used.end(), 2u) == 2);
  CHECK(words.asked().empty());
}
