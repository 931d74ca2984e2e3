// SPDX-License-Identifier: MIT
// The law of derivatives: what a tape adds up, and the second derivative, are those of difference quotients
// of the definition.
#pragma once

#include <weft/weft.hpp>

#include "compare.hpp"

namespace weft::test {

/// Weighs elements differently, so that a derivative in the wrong place shows.
template <expression E>
auto weighed(E e) {
  return sum(e * sin(e * 1.3 + 0.4));
}

/// The gradient in `x` that `steps` delivers for the scalar `y`; it is taken away again.
template <class Y, class V>
oracle::array delivered(tape<>& steps, const Y& y, V& x) {
  x.zero_grad();
  steps.backward(y);
  const oracle::array g = x.grad().defined() ? oracle::read(x.grad())
                                             : oracle::zeros(dtype_of<typename V::value_type>, x.extents());
  x.zero_grad();
  return g;
}
/// The same for the scalar `e` on a tape of its own.
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

/// For f64: the scalar `e` and its gradient with respect to `x`, as one tape computes them.
template <expression E, class V>
comparison derivable(const E& e, V& x, double within = 1e-8) {
  tape steps;
  const auto y = steps.eval(e);
  const comparison value = matches(y, oracle::value(e), {.absolute = 1e-12, .relative = 1e-12});
  return value ? near_quotients(delivered(steps, y, x), oracle::gradient(e, x), within) : value;
}

/// The gradient with respect to `x` of the derivative of the scalar f(a) along `direction`.
template <class F, class A, class C, class V>
comparison twice_derivable(F f, const A& a, const C& direction, V& x, double within = 1e-6) {
  return near_quotients(delivered(sum(grad(f, a) * direction), x),
                        oracle::gradient_along(f(a), a, oracle::read(direction), x), within);
}

}  // namespace weft::test
