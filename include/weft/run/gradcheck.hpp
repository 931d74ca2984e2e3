// SPDX-License-Identifier: MIT
// Comparison of derivatives with central differences, for tests of ops, including user-defined ones.
//
//   gradcheck([&] { return sum(squash(x)); }, x)      // true, or throws value_error with the element
#pragma once

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <weft/run/tape.hpp>

namespace weft {

/// Step size of the differences and tolerances of gradcheck. Negative numbers select defaults for the element
/// type: the first number in each comment for f64, the second for f32.
struct gradcheck_options {
  double step = -1;       // 1e-6, 1e-2
  double tolerance = -1;  // for |difference - gradient| / (|difference| + floor): 1e-5, 1e-2
  double floor = -1;      // 1e-3, 1e-1
};

namespace detail {
/// `o` with the defaults for f64 or f32 in place of negative numbers.
constexpr gradcheck_options chosen(gradcheck_options o, bool is_f64) {
  if (o.step < 0) o.step = is_f64 ? 1e-6 : 1e-2;
  if (o.tolerance < 0) o.tolerance = is_f64 ? 1e-5 : 1e-2;
  if (o.floor < 0) o.floor = is_f64 ? 1e-3 : 1e-1;
  return o;
}
}  // namespace detail

/// Compares the gradient of the scalar f() or f(x) with respect to every element of `x` with a central
/// difference, as torch.autograd.gradcheck. Throws value_error with the element and both numbers if they
/// disagree. Use f64: differences in f32 reveal only errors of a hundredth or more. Restores elements and
/// gradient of `x`, even if f throws. Evaluates f 2 n + 1 times.
template <class F, class T, class Extents>
bool gradcheck(F f, variable<T, Extents>& x, gradcheck_options o = {}, context& c = default_context()) {
  static_assert(dtype_of<T> == dtype::f64 || dtype_of<T> == dtype::f32,
                "weft: gradcheck: differences of this element type are too coarse: variable<double, ...>");
  o = detail::chosen(o, dtype_of<T> == dtype::f64);
  const auto value = [&] {
    if constexpr (std::is_invocable_v<F&>) return f();
    else return f(x);
  };
  const std::vector<T> elements = x.to_vector();
  const auto held = std::exchange(x.state()->grad, nullptr);
  const auto value_with = [&](std::size_t i, T replaced) {
    std::vector<T> moved = elements;
    moved[i] = replaced;
    x.copy_from(moved);
    return static_cast<double>(eval(value(), c).item());
  };
  const auto compare = [&] {
    tape steps(c);
    steps.backward(steps.eval(value()));
    const std::vector<T> gradient =
        x.grad().defined() ? x.grad().to_vector() : std::vector<T>(elements.size());
    x.zero_grad();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const double at = static_cast<double>(elements[i]);
      const T above = static_cast<T>(at + o.step), below = static_cast<T>(at - o.step);
      const double apart = static_cast<double>(above) - static_cast<double>(below);
      const double difference = (value_with(i, above) - value_with(i, below)) / apart;
      const double error =
          std::abs(difference - static_cast<double>(gradient[i])) / (std::abs(difference) + o.floor);
      if (!(error <= o.tolerance))
        throw value_error("weft: gradcheck: element " + std::to_string(i) + ": gradient " +
                          std::to_string(gradient[i]) + ", difference quotient " +
                          std::to_string(difference) +
                          (dtype_of<T> == dtype::f32 ? "; f32 is coarse: check in f64" : ""));
    }
  };
  const auto restore = [&] {
    x.copy_from(elements);
    x.state()->grad = held;
  };
  try {
    compare();
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return true;
}

/// Compile-time error: tensors that are not variables have no gradients.
template <class F, class T, class Extents>
bool gradcheck(F, const tensor<T, Extents, false>&, gradcheck_options = {}) {
  static_assert(detail::unsupported<F>,
                "weft: gradcheck: x must be a variable: "
                "variable<double, extents<3>> x(t); gradcheck(f, x)");
  return false;
}

}  // namespace weft
