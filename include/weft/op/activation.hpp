// SPDX-License-Identifier: MIT
// Activation functions, applied element by element.
//
// Each is a formula over the primitives of op/elementwise.hpp and inherits its derivative. An explicit `vjp`
// is given only where the derived one would be less accurate or would save more for the backward pass.
//
//   auto h = gelu(matmul(x, w) + b);
#pragma once

#include <array>

#include <weft/op/functions.hpp>
#include <weft/op/rule.hpp>

namespace weft::op {

/// max(x, 0). The derivative is 0 at 0 and 1 at NaN, as in PyTorch.
struct relu : on_numbers<elementwise<1>> {
  static constexpr auto name = "relu";
  static constexpr auto value(auto x) { return weft::maximum(x, 0); }
  static constexpr auto vjp(auto g, auto y, auto) { return weft::where(y <= 0, 0, g); }
};

/// 1 / (1 + exp(-x)).
struct sigmoid : elementwise<1> {
  static constexpr auto name = "sigmoid";
  static constexpr auto value(auto x) { return 1 / (1 + weft::exp(-x)); }
  static constexpr auto vjp(auto g, auto y, auto) { return g * (y * (1 - y)); }
};

/// x / (1 + exp(-x)), also called swish (Elfwing, Uchibe and Doya, 2018).
struct silu : elementwise<1> {
  static constexpr auto name = "silu";
  static constexpr auto value(auto x) { return x / (1 + weft::exp(-x)); }
  static constexpr auto vjp(auto g, auto, auto x) {
    const auto s = weft::apply<sigmoid>(x);  // its derivative does not overflow
    return g * (s * (1 + x * (1 - s)));
  }
};

/// x * Phi(x) with Phi the standard normal distribution function (Hendrycks and Gimpel, 2016).
struct gelu : elementwise<1> {
  static constexpr auto name = "gelu";
  static constexpr auto value(auto x) {
    return 0.5 * x * (1 + weft::erf(x * 0.70710678118654752440));
  }
};

/// The tanh form of GELU that GPT-2 was trained with; differs from `gelu` by at most 4.8e-4.
///
/// Written as x * sigmoid(2 u), which is the same function: one exponential instead of a tanh.
struct gelu_tanh : elementwise<1> {
  static constexpr auto name = "gelu_tanh";
  static constexpr double scale = 1.5957691216057307117;  // 2 sqrt(2 / pi)
  static constexpr auto value(auto x) {
    return x / (1 + weft::exp(x * (x * x * (-scale * 0.044715) - scale)));
  }
  static constexpr auto vjp(auto g, auto, auto x) {
    const auto square = x * x;
    const auto s = weft::apply<sigmoid>(-(x * (square * (-scale * 0.044715) - scale)));
    return g * (s + x * (s * (1 - s)) * (square * (3 * scale * 0.044715) + scale));
  }
};

/// x * x.
struct square : on_numbers<elementwise<1>> {
  static constexpr auto name = "square";
  static constexpr auto value(auto x) { return x * x; }
};

/// log(1 + exp(x)) without overflow.
struct softplus : elementwise<1> {
  static constexpr auto name = "softplus";
  static constexpr auto value(auto x) {
    return weft::maximum(x, 0) + weft::log1p(weft::exp(-weft::abs(x)));
  }
  static constexpr auto vjp(auto g, auto, auto x) { return g * weft::apply<sigmoid>(x); }
};

/// x where it is positive, otherwise x * slope.
struct leaky_relu : elementwise<2> {
  static constexpr auto name = "leaky_relu";
  static constexpr auto value(auto x, auto slope) { return weft::where(0 < x, x, x * slope); }
};

/// x where it is positive, otherwise alpha * (exp(x) - 1) (Clevert, Unterthiner and Hochreiter, 2016).
struct elu : elementwise<2> {
  static constexpr auto name = "elu";
  static constexpr auto value(auto x, auto alpha) {
    return weft::where(x <= 0, alpha * weft::expm1(weft::minimum(x, 0)), x);
  }
  static constexpr auto vjp(auto g, auto, auto x, auto alpha) {
    const auto of_x = g * alpha * weft::exp(weft::where(x < 0, x, 0));  // its derivative at 0 is 0
    return std::array{weft::where(x <= 0, of_x, g), g * weft::expm1(weft::minimum(x, 0))};
  }
};

}  // namespace weft::op

namespace weft {

/// max(x, 0), for every type but bool; NaN stays NaN. The derivative is 0 at 0 and 1 at NaN, as in PyTorch.
template <operand X> requires operands<X>
constexpr auto relu(X x) { return apply<op::relu>(std::move(x)); }
/// 1 / (1 + exp(-x)). Integers and bool become f32. The backward pass saves the result, not x.
template <operand X> requires operands<X>
constexpr auto sigmoid(X x) { return apply<op::sigmoid>(std::move(x)); }
/// x * sigmoid(x), also called swish (Elfwing, Uchibe and Doya, 2018). Integers and bool become f32.
template <operand X> requires operands<X>
constexpr auto silu(X x) { return apply<op::silu>(std::move(x)); }
/// x * Phi(x) with Phi the standard normal distribution function (Hendrycks and Gimpel, 2016): PyTorch's gelu
/// with approximate="none". Integers and bool become f32.
template <operand X> requires operands<X>
constexpr auto gelu(X x) { return apply<op::gelu>(std::move(x)); }
/// The tanh approximation of `gelu`, as GPT-2 uses it: PyTorch's gelu with approximate="tanh". Differs from
/// `gelu` by at most 4.8e-4. Integers and bool become f32.
template <operand X> requires operands<X>
constexpr auto gelu_tanh(X x) { return apply<op::gelu_tanh>(std::move(x)); }
/// log(1 + exp(x)), computed without overflow; its derivative is sigmoid(x). Integers and bool become f32.
/// PyTorch's softplus with beta = 1 and without a threshold.
template <operand X> requires operands<X>
constexpr auto softplus(X x) { return apply<op::softplus>(std::move(x)); }
/// x where it is positive, otherwise x * slope; the derivative at 0 is the slope, as in PyTorch. Integers and
/// bool become f32.
template <operand X, operand S = double>
requires operands<X, S>
constexpr auto leaky_relu(X x, S slope = 0.01) {
  return apply<op::leaky_relu>(std::move(x), std::move(slope));
}
/// x where it is positive, otherwise alpha * (exp(x) - 1) (Clevert, Unterthiner and Hochreiter, 2016); the
/// derivative is alpha at 0 and 1 at NaN, as in PyTorch. Integers and bool become f32.
template <operand X, operand A = double>
requires operands<X, A>
constexpr auto elu(X x, A alpha = 1.0) { return apply<op::elu>(std::move(x), std::move(alpha)); }
/// x * x, for every type but bool; integers wrap modulo 2^bits.
template <operand X> requires operands<X>
constexpr auto square(X x) { return apply<op::square>(std::move(x)); }

}  // namespace weft
