// SPDX-License-Identifier: MIT
// Two threads use one context or one tape: one of them is refused, and the two never touch the same data.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include <weft/weft.hpp>

using namespace weft;

namespace {

/// Calls f on two threads, many times each; returns how often it succeeded. Calls may be refused.
template <class F>
int on_two_threads(F f) {
  std::atomic<int> good = 0, other = 0;
  const auto work = [&] {
    for (int i = 0; i < 300; ++i) try {
        f();
        ++good;
      } catch (const usage_error& e) {
        if (std::string(e.what()).find("one program at a time") == std::string::npos) ++other;
      }
  };
  std::thread beside(work);
  work();
  beside.join();
  CHECK(other == 0);
  return good;
}

}  // namespace

TEST_CASE("a tape on two threads holds what was not refused") {
  context c;
  tape steps(c);
  const variable<float, extents<8>> x(full<float>(extents<8>{}, 2));
  const int good = on_two_threads([&] { steps.eval(sum(x * 2.0f)); });
  CHECK(good > 0);
  CHECK(steps.size() == static_cast<std::size_t>(good));
}

TEST_CASE("a context on two threads gives right values or none") {
  context c;
  const auto x = full<float>(extents<8>{}, 2);
  std::atomic<int> wrong = 0;
  CHECK(on_two_threads([&] { wrong += eval(sum(x * 2.0f), c).item() != 32; }) > 0);
  CHECK(wrong == 0);
}

TEST_CASE("backward on one thread and forward on another") {
  context c;
  std::atomic<int> wrong = 0;
  CHECK(on_two_threads([&] {
          const variable<float, extents<4>> x(full<float>(extents<4>{}, 3));
          tape steps(c);
          steps.backward(steps.eval(sum(x * x)));
          wrong += x.grad().to_vector() != std::vector<float>(4, 6);
        }) > 0);
  CHECK(wrong == 0);
}

TEST_CASE("what a gradient hook evaluates in the same context is not refused") {
  context c;
  variable<float, extents<4>> x(full<float>(extents<4>{}, 3));
  float seen = 0;
  tape steps(c);
  x.on_gradient([&](auto g) { seen = eval(sum(g), c).item(); });
  steps.backward(steps.eval(sum(x * x)));
  CHECK(seen == 24);
}
