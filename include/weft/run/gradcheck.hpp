// SPDX-License-Identifier: MIT
// Checks derivatives against central differences: for tests of ops, yours included.
//
//   gradcheck([&] { return sum(squash(x)); }, x)      // true, or throws and says where
#pragma once

#include <cmath>
#include <string>

#include <weft/run/tape.hpp>

namespace weft {

struct gradcheck_options {
  double step = 1e-6;
  double tolerance = 1e-5;  // of |difference| / (|gradient| + floor)
  double floor = 1e-3;
};

/// Compares the gradient of the scalar f() with respect to every element of `x` with a central
/// difference. Throws value_error with the element and both numbers if they disagree. Use f64.
template <class F, class T, class Extents>
bool gradcheck(F f, variable<T, Extents>& x, gradcheck_options o = {}, context& c = default_context()) {
  tape steps(c);
  x.zero_grad();
  steps.backward(steps.eval(f()));
  const std::vector<T> gradient = x.grad().defined() ? x.grad().to_vector()
                                                     : std::vector<T>(static_cast<std::size_t>(x.size()));
  x.zero_grad();
  std::vector<T> elements = x.to_vector();
  const auto value_with = [&](std::size_t i, T replaced) {
    std::swap(elements[i], replaced);
    x.copy_from(elements);
    std::swap(elements[i], replaced);
    return static_cast<double>(eval(f(), c).item());
  };
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double above = value_with(i, static_cast<T>(elements[i] + o.step));
    const double below = value_with(i, static_cast<T>(elements[i] - o.step));
    const double difference = (above - below) / (2 * o.step);
    const double error = std::abs(difference - gradient[i]) / (std::abs(difference) + o.floor);
    if (!(error <= o.tolerance))
      throw value_error("weft: gradcheck: element " + std::to_string(i) + ": gradient " +
                        std::to_string(gradient[i]) + ", difference quotient " + std::to_string(difference));
  }
  x.copy_from(elements);
  return true;
}

}  // namespace weft
