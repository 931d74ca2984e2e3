// SPDX-License-Identifier: MIT
// Element-wise functions and their derivatives agree with PyTorch, also at infinities, NaN and signed zeros.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("elementwise");
  return all;
}

template <class F>
void unary(const char* name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    c.agrees([&] { return f(x); }, 1e-5, 1e-1, "x", x);
  });
}
template <class F>
void binary(const char* name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    if (c.stored<float, order3>("a").extents() == c.stored<float, order3>("b").extents()) {
      auto a = c.variable<float, order3>("a"), b = c.variable<float, order3>("b");
      c.agrees([&] { return f(a, b); }, 1e-5, 1e-1, "a", a, "b", b);
    } else {
      auto a = c.variable<float, extents<4, 1, 3>>("a");
      auto b = c.variable<float, extents<4, 5, 1>>("b");
      c.agrees([&] { return f(a, b); }, 1e-5, 1e-1, "a", a, "b", b);
    }
  });
}

}  // namespace

#define UNARY(name) \
  TEST_CASE(#name) { unary(#name, [](const auto& x) { return weft::name(x); }); }
#define BINARY(name) \
  TEST_CASE(#name) { binary(#name, [](const auto& a, const auto& b) { return weft::name(a, b); }); }
UNARY(exp)
UNARY(log)
UNARY(log1p)
UNARY(expm1)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(sin)
UNARY(cos)
UNARY(tanh)
UNARY(erf)
UNARY(atan)
UNARY(asin)
UNARY(acos)
UNARY(abs)
UNARY(sign)
UNARY(floor)
UNARY(round)
UNARY(relu)
UNARY(sigmoid)
UNARY(silu)
UNARY(gelu)
UNARY(gelu_tanh)
UNARY(softplus)
UNARY(square)
BINARY(maximum)
BINARY(minimum)
BINARY(pow)
BINARY(atan2)
BINARY(clamp_min)
BINARY(clamp_max)

TEST_CASE("operators") {
  unary("negate", [](const auto& x) { return -x; });
  unary("clamp", [](const auto& x) { return clamp(x, -0.5f, 1.0f); });
  unary("clamp_min_at", [](const auto& x) { return clamp_min(x, -0.5f); });
  unary("clamp_max_at", [](const auto& x) { return clamp_max(x, 1.0f); });
  binary("add", [](const auto& a, const auto& b) { return a + b; });
  binary("subtract", [](const auto& a, const auto& b) { return a - b; });
  binary("multiply", [](const auto& a, const auto& b) { return a * b; });
  binary("divide", [](const auto& a, const auto& b) { return a / b; });
}

TEST_CASE("comparisons and where") {
  const auto comparison = [](const char* name, auto f) {
    for_each_case(cases(), name, [&](const stored_case& c) {
      const auto a = c.stored<float, order3>("a"), b = c.stored<float, order3>("b");
      c.same(*eval(f(a, b)).state(), "y", 0, 0);
    });
  };
  comparison("equal", [](const auto& a, const auto& b) { return equal(a, b); });
  comparison("less", [](const auto& a, const auto& b) { return a < b; });
  comparison("less_equal", [](const auto& a, const auto& b) { return a <= b; });
  for_each_case(cases(), "where", [&](const stored_case& c) {
    const auto condition = c.stored<bool, order3>("c");
    auto a = c.variable<float, order3>("a"), b = c.variable<float, order3>("b");
    c.agrees([&] { return where(condition, a, b); }, 0, 0, "a", a, "b", b);
  });
}
