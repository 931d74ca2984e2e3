// SPDX-License-Identifier: MIT
// The law of derivatives: the gradients that a tape accumulates, and second derivatives, equal difference
// quotients of the definition.
#pragma once

#include <weft/weft.hpp>

#include "compare.hpp"

namespace weft::test {

using vector = variable<double, extents<dyn>>;
using matrix = variable<double, extents<dyn, dyn>>;

/// Seven points between `low` and `high`.
inline vector points(double low, double high) {
  return vector(generate<double>(
      extents<dyn>{7}, [&](index_t i) { return low + (high - low) * (static_cast<double>(i) + 0.3) / 7; }));
}
inline matrix numbers(index_t rows, index_t columns, std::uint64_t seed = 0) {
  return matrix(randn<double>(extents<dyn, dyn>{rows, columns}, {.seed = seed}));
}
/// Two images of 5 x 6.
inline auto images(index_t channels, std::uint64_t seed) {
  using batch = extents<dyn, dyn, dyn, dyn>;
  return variable<double, batch>(randn<double>(batch{2, channels, 5, 6}, {.seed = seed}));
}

/// A sum that depends on each element differently, so that a derivative in the wrong place shows.
template <expression E>
auto weighed(E e) {
  return sum(e * sin(e * 1.3 + 0.4));
}

/// The gradient with respect to `x` that `steps` computes for the scalar `y`; x's gradient is cleared again.
template <class Y, class V>
oracle::array delivered(tape<>& steps, const Y& y, V& x) {
  x.zero_grad();
  steps.backward(y);
  const oracle::array g = x.grad().defined() ? oracle::read(x.grad())
                                             : oracle::zeros(dtype_of<typename V::value_type>, x.extents());
  x.zero_grad();
  return g;
}
/// The same, for the scalar `e` on a separate tape.
template <expression E, class V>
oracle::array delivered(const E& e, V& x) {
  tape steps;
  return delivered(steps, steps.eval(e), x);
}

inline comparison near_quotients(const oracle::array& seen, const oracle::derivative& expected,
                                 double within) {
  if (!converged(expected)) return comparison("difference quotients do not converge");
  return matches(seen, expected.value,
                 {.absolute = within, .relative = within, .slack = expected.error.f, .times_slack = 10});
}

/// For f64: checks the scalar `e` and its gradient with respect to `x`, computed by one tape.
template <expression E, class V>
comparison derivable(const E& e, V& x, double within = 1e-8) {
  tape steps;
  const auto y = steps.eval(e);
  const comparison value = matches(y, oracle::value(e), {.absolute = 1e-12, .relative = 1e-12});
  return value ? near_quotients(delivered(steps, y, x), oracle::gradient(e, x), within) : value;
}

/// Checks the gradient with respect to `x` of the derivative of the scalar f(a) along `direction`.
template <class F, class A, class C, class V>
comparison twice_derivable(F f, const A& a, const C& direction, V& x, double within = 1e-6) {
  return near_quotients(delivered(sum(grad(f, a) * direction), x),
                        oracle::gradient_along(f(a), a, oracle::read(direction), x), within);
}

}  // namespace weft::test
