// SPDX-License-Identifier: MIT
// Results for every element type agree with PyTorch: narrow types round after every op, integers wrap, bool
// stays 0 or 1, and result types are promoted in the same way.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("types");
  return all;
}

template <class T>
constexpr double unit_roundoff = std::is_same_v<T, double>     ? 0x1p-45
                                 : std::is_same_v<T, bfloat16> ? 0x1p-8
                                                               : 0x1p-11;

/// Sums of ops and gradients may be rounded in another order: two units in the last place of T, or of
/// `scale`.
template <class T, class F>
void of_x(const std::string& name, F f, double scale = 0.1) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    auto x = c.variable<T, order3>("x");
    c.agrees([&] { return f(x); }, 4 * unit_roundoff<T>, scale, "x", x);
  });
}
template <class T, class F>
void of_two(const std::string& name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    auto a = c.variable<T, order3>("a"), b = c.variable<T, order3>("b");
    c.same(*eval(f(a, b)).state(), "y", std::is_same_v<T, double> ? 1e-15 : 0, 0);  // each op rounds once
    c.agrees([&] { return f(a, b); }, 4 * unit_roundoff<T>, 0.1, "a", a, "b", b);
  });
}

template <class T>
void floating(const std::string& type) {
  of_two<T>("add_" + type, [](const auto& a, const auto& b) { return a + b; });
  of_two<T>("multiply_" + type, [](const auto& a, const auto& b) { return a * b; });
  of_two<T>("divide_" + type, [](const auto& a, const auto& b) { return a / b; });
  of_two<T>("chain_" + type, [](const auto& a, const auto& b) { return (a + b) * b - a; });
  of_x<T>("gelu_" + type, [](const auto& x) { return gelu(x); });
  of_x<T>("silu_" + type, [](const auto& x) { return silu(x); });
  of_x<T>("tanh_" + type, [](const auto& x) { return tanh(x); }, 1);  // PyTorch uses 1 - y y of a rounded y
  of_x<T>("sigmoid_" + type, [](const auto& x) { return sigmoid(x); });
  of_x<T>("sum_" + type, [](const auto& x) { return sum(x, dims<2>); });
  of_x<T>("mean_" + type, [](const auto& x) { return mean(x, dims<0, 1>); });
  of_x<T>("softmax_" + type, [](const auto& x) { return softmax(x); });
  for_each_case(cases(), "layer_norm_" + type, [](const stored_case& c) {
    auto x = c.variable<T, order3>("x");
    auto w = c.variable<T, order1>("w"), b = c.variable<T, order1>("b");
    c.agrees([&] { return layer_norm(x, w, b); }, 8 * unit_roundoff<T>, 1, "x", x, "w", w, "b", b);
  });
  for_each_case(cases(), "mean_of_many_" + type, [](const stored_case& c) {
    auto x = c.variable<T, order2>("x");
    c.agrees([&] { return mean(x, dims<0>); }, 2 * unit_roundoff<T>, 0, "x", x);
  });
}

template <class T, class Extents, class F>
void exact(const std::string& name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    const auto a = c.stored<T, Extents>("a"), b = c.stored<T, Extents>("b");
    c.same(*eval(f(a, b)).state(), "y", 1e-6, 0);  // only divisions are inexact
  });
}
template <class T, class F>
void exact_of_x(const std::string& name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    c.same(*eval(f(c.stored<T, order2>("x"))).state(), "y", 0, 0);
  });
}

template <class T>
void integers(const std::string& type) {
  exact<T, order2>("add_" + type, [](const auto& a, const auto& b) { return a + b; });
  exact<T, order2>("subtract_" + type, [](const auto& a, const auto& b) { return a - b; });
  exact<T, order2>("multiply_" + type, [](const auto& a, const auto& b) { return a * b; });
  exact<T, order2>("maximum_" + type, [](const auto& a, const auto& b) { return maximum(a, b); });
  exact<T, order2>("minimum_" + type, [](const auto& a, const auto& b) { return minimum(a, b); });
  exact<T, order2>("divide_" + type, [](const auto& a, const auto& b) { return a / b; });
  exact<T, order2>("widened_sum_" + type, [](const auto& a, const auto& b) { return cast<float>(a + b); });
  exact_of_x<T>("sum_" + type, [](const auto& x) { return sum(x, dims<1>); });
  exact_of_x<T>("amax_" + type, [](const auto& x) { return amax(x, dims<1>); });
}

}  // namespace

TEST_CASE("f64") { floating<double>("f64"); }
TEST_CASE("bf16") { floating<bfloat16>("bf16"); }
TEST_CASE("f16") { floating<float16>("f16"); }
TEST_CASE("i64") { integers<std::int64_t>("i64"); }
TEST_CASE("i32") { integers<std::int32_t>("i32"); }
TEST_CASE("u8") { integers<std::uint8_t>("u8"); }

TEST_CASE("bool") {
  exact<bool, order1>("add_bool", [](const auto& a, const auto& b) { return a + b; });
  exact<bool, order1>("multiply_bool", [](const auto& a, const auto& b) { return a * b; });
  exact<bool, order1>("maximum_bool", [](const auto& a, const auto& b) { return maximum(a, b); });
  exact<bool, order1>("minimum_bool", [](const auto& a, const auto& b) { return minimum(a, b); });
  exact<bool, order1>("less_bool", [](const auto& a, const auto& b) { return a < b; });
  exact<bool, order1>("less_equal_bool", [](const auto& a, const auto& b) { return a <= b; });
  exact<bool, order1>("equal_bool", [](const auto& a, const auto& b) { return equal(a, b); });
  exact<bool, order1>("logical_and_bool", [](const auto& a, const auto& b) { return logical_and(a, b); });
  exact<bool, order1>("logical_or_bool", [](const auto& a, const auto& b) { return logical_or(a, b); });
  exact_of_x<bool>("amax_bool", [](const auto& x) { return amax(x, dims<1>); });
  exact_of_x<bool>("amin_bool", [](const auto& x) { return amin(x, dims<1>); });
}
