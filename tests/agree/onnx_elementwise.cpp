// SPDX-License-Identifier: MIT
// Cases of check_onnx.py: element-wise ops of all types, conversions, special values.
#include "onnx_cases.hpp"

using namespace weft;

namespace {

constexpr float nan = __builtin_nanf(""), infinity = __builtin_inff();

/// Special values and their neighbors.
tensor<float, extents<dyn>> special() {
  return from(extents<dyn>{23},
              std::vector<float>{0.f,    -0.f,  1.f,          -1.f,    0.5f,     -0.5f,     1.5f,  2.5f,
                                 -2.5f,  1e-6f, -1e-6f,       1e-20f,  3e9f,     -3e9f,     1e20f, -1e20f,
                                 300.7f, -0.9f, 2147483647.f, 9.3e18f, infinity, -infinity, nan});
}

template <element T>
void arithmetic(onnx_cases& to, const std::string& type) {
  const auto x = numbers<T>(extents<dyn, 5>{3}), y = numbers<T>(extents<dyn, 5>{3}, 1);
  const auto row = numbers<T>(extents<1, 5>{}, 2);
  to.add(
      "arithmetic_" + type, [](auto a, auto b, auto c) { return (a + b) * c - a * a; }, x, y, row);
  to.add(
      "extrema_" + type, [](auto a, auto b) { return maximum(a, b) - minimum(a, -b); }, x, y);
  to.add(
      "compare_" + type,
      [](auto a, auto b, auto c) { return ((a < b) & (b <= c)) | !(a == c) | (a > c) | (a != b); }, x, y,
      row);
  to.add(
      "where_" + type, [](auto a, auto b) { return where(a < b, a, 1); }, x, y);
  to.add(
      "signs_" + type, [](auto a) { return sign(a) + abs(a); }, x);
  to.add(
      "clamp_" + type, [](auto a) { return clamp(a, 1, 2); }, x);
  to.add("one_sided_clamp_" + type, [](auto a, auto b) { return clamp_min(a, 1) + clamp_max(a, b); }, x, y);
  to.add(
      "divide_" + type, [](auto a, auto b) { return a / (b * b + 1); }, x, y);
  to.add(
      "rounding_" + type, [](auto a) { return floor(a) + round(a); }, x);
  to.add(
      "relu_" + type, [](auto a) { return relu(a) + square(a); }, x);
  to.add(
      "mix_" + type, [](auto a) { return a * 2.5f + 3; }, x);
  to.add(
      "scalar_" + type, [](auto a) { return a + a; }, numbers<T>(extents<>{}, 5));
  to.add(
      "empty_" + type, [](auto a) { return a * a; }, numbers<T>(extents<dyn, 3>{0}));
}

template <element To, element From>
void conversions(onnx_cases& to, const std::string& name) {
  to.add(
      "cast_" + name, [](auto a) { return cast<To>(a); }, numbers<From>(extents<dyn, 7>{3}));
}
template <element From>
void conversions_from(onnx_cases& to, const std::string& name) {
  conversions<double, From>(to, name + "_f64");
  conversions<float, From>(to, name + "_f32");
  conversions<bfloat16, From>(to, name + "_bf16");
  conversions<float16, From>(to, name + "_f16");
  conversions<std::int64_t, From>(to, name + "_i64");
  conversions<std::int32_t, From>(to, name + "_i32");
  conversions<std::uint8_t, From>(to, name + "_u8");
  conversions<bool, From>(to, name + "_bool");
}

template <element T>
void functions(onnx_cases& to, const std::string& type) {
  const auto x = numbers<T>(extents<dyn, 5>{7}), p = positive<T>(extents<dyn, 5>{7});
  to.add(
      "exp_" + type, [](auto a) { return exp(a) + sin(a) * cos(a) + tanh(a); }, x);
  to.add("atan2_" + type, [](auto a) { return atan2(a, 1 - a) + atan(a) + asin(a / 8) * acos(a / 8); }, x);
  to.add(
      "log_" + type, [](auto a) { return log(a) + sqrt(a) + rsqrt(a) + pow(a, 1.5f); }, p);
  to.add(
      "log1p_" + type, [](auto a) { return log1p(a) - expm1(a); }, p);
  to.add(
      "erf_" + type, [](auto a) { return erf(a) + gelu(a); }, x);
  to.add(
      "activations_" + type, [](auto a) { return sigmoid(a) + silu(a) + gelu_tanh(a); }, x);
  to.add(
      "softplus_" + type, [](auto a) { return softplus(a); }, x);
}

}  // namespace

int main(int, char** arguments) {
  onnx_cases to(arguments[1]);
  arithmetic<double>(to, "f64");
  arithmetic<float>(to, "f32");
  arithmetic<float16>(to, "f16");
  arithmetic<bfloat16>(to, "bf16");
  arithmetic<std::int64_t>(to, "i64");
  arithmetic<std::int32_t>(to, "i32");
  arithmetic<std::uint8_t>(to, "u8");
  functions<double>(to, "f64");
  functions<float>(to, "f32");
  functions<float16>(to, "f16");
  functions<bfloat16>(to, "bf16");
  conversions_from<double>(to, "f64");
  conversions_from<float>(to, "f32");
  conversions_from<bfloat16>(to, "bf16");
  conversions_from<float16>(to, "f16");
  conversions_from<std::int64_t>(to, "i64");
  conversions_from<std::int32_t>(to, "i32");
  conversions_from<std::uint8_t>(to, "u8");
  conversions_from<bool>(to, "bool");

  const auto b = numbers<bool>(extents<dyn, 5>{3});
  const auto c = numbers<bool>(extents<1, 5>{}, 1);
  to.add(
      "logical", [](auto p, auto q) { return ((p & q) | !p) == (p + q); }, b, c);
  to.add(
      "where_bool", [](auto p, auto q) { return where(p, q, !q); }, b, c);

  const auto s = special();
  to.add(
      "special_i32", [](auto a) { return cast<std::int32_t>(a); }, s);
  to.add(
      "special_i64", [](auto a) { return cast<std::int64_t>(a); }, s);
  to.add(
      "special_u8", [](auto a) { return cast<std::uint8_t>(a); }, s);
  to.add(
      "special_bool", [](auto a) { return cast<bool>(a); }, s);
  to.add(
      "special_f16", [](auto a) { return cast<float>(cast<float16>(a)); }, s);
  to.add(
      "special_bf16", [](auto a) { return cast<float>(cast<bfloat16>(a)) - a; }, s);
  to.add(
      "special_f64_i32", [](auto a) { return cast<std::int32_t>(cast<double>(a)); }, s);
  to.add(
      "special_f64_i64", [](auto a) { return cast<std::int64_t>(cast<double>(a)); }, s);
  to.add(
      "special_sign", [](auto a) { return sign(a); }, s);
  to.add(
      "special_round", [](auto a) { return round(a) + floor(a); }, s);
  to.add(
      "special_maximum", [](auto a) { return maximum(a, 0.5f); }, s);
  to.add(
      "special_minimum", [](auto a) { return minimum(0.5f, a); }, s);
  to.add(
      "special_log1p", [](auto a) { return log1p(a); }, s);
  to.add(
      "special_expm1", [](auto a) { return expm1(a); }, s);
  to.add(
      "special_small", [](auto a) { return log1p(a) * 1e6f + expm1(a) * 1e6f; },
      from(extents<dyn>{4}, std::vector<float>{1e-7f, -3e-8f, 1e-10f, 3e-4f}));
  to.add(
      "special_relu", [](auto a) { return relu(a); }, s);
  to.add(
      "special_sigmoid", [](auto a) { return sigmoid(a) + softplus(-abs(a)); }, s);
  to.add(
      "special_finite",
      [](auto a) { return cast<std::int32_t>(isnan(a)) + 2 * cast<std::int32_t>(isfinite(a)); }, s);
  to.add(
      "special_bf16_sum",
      [](auto a) { return cast<bfloat16>(a) * cast<bfloat16>(1.1f * a) + cast<bfloat16>(0.3f * a); },
      numbers<float>(extents<dyn, 5>{7}));
}
