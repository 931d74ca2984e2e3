// SPDX-License-Identifier: MIT
// Comparison of derivatives with central differences, for tests of ops, including your own.
//
//   gradcheck([&] { return sum(squash(x)); }, x)      // true, or throws value_error with the element
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <weft/run/tape.hpp>

namespace weft {

/// Step of the differences and tolerances of gradcheck; the defaults are for f64.
struct gradcheck_options {
  double step = 1e-6;
  double tolerance = 1e-5;  // of |difference| / (|gradient| + floor)
  double floor = 1e-3;
};

/// Compares the gradient of the scalar f() with respect to every element of `x` with a central difference, as
/// torch.autograd.gradcheck. Throws value_error with the element and both numbers if they disagree. Use f64.
/// Restores elements and gradient of `x`, also if f throws. Evaluates f 2 n + 1 times.
template <class F, class T, class Extents>
bool gradcheck(F f, variable<T, Extents>& x, gradcheck_options o = {}, context& c = default_context()) {
  const std::vector<T> elements = x.to_vector();
  const auto held = std::exchange(x.state()->grad, nullptr);
  const auto value_with = [&](std::size_t i, double replaced) {
    std::vector<T> moved = elements;
    moved[i] = static_cast<T>(replaced);
    x.copy_from(moved);
    return static_cast<double>(eval(f(), c).item());
  };
  const auto compare = [&] {
    tape steps(c);
    steps.backward(steps.eval(f()));
    const std::vector<T> gradient =
        x.grad().defined() ? x.grad().to_vector() : std::vector<T>(elements.size());
    x.zero_grad();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const double at = static_cast<double>(elements[i]);
      const double difference = (value_with(i, at + o.step) - value_with(i, at - o.step)) / (2 * o.step);
      const double error = std::abs(difference - gradient[i]) / (std::abs(difference) + o.floor);
      if (!(error <= o.tolerance))
        throw value_error("weft: gradcheck: element " + std::to_string(i) + ": gradient " +
                          std::to_string(gradient[i]) + ", difference quotient " +
                          std::to_string(difference));
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

}  // namespace weft
