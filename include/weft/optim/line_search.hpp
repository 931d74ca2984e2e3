// SPDX-License-Identifier: MIT
// A line search for the strong Wolfe conditions (Nocedal and Wright, Numerical Optimization, 2006, 3.5), with
// the constants of torch.optim.LBFGS.
//
//   search_point best = strong_wolfe(start, 1.0, 25, 1e-9, [&](double t) { return evaluate(t); });
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include <weft/tensor/state.hpp>

namespace weft::detail {

/// A point on a line: its parameter, and the function's value, derivative along the line, and gradient there.
struct search_point {
  double t = 0, value = 0, slope = 0;
  std::shared_ptr<tensor_state> gradient{};
};

/// The minimum between `low` and `high` of the cubic through the values and derivatives at `a` and `b`; the
/// middle if it has none.
inline double cubic_minimum(const search_point& a, const search_point& b, double low, double high) {
  const search_point &l = a.t <= b.t ? a : b, &r = a.t <= b.t ? b : a;
  const double d = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t);
  const double square = d * d - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double root = std::sqrt(square);
  const double t = r.t - (r.t - l.t) * ((r.slope + root - d) / (r.slope - l.slope + 2 * root));
  return std::min(std::max(t, low), high);
}

/// Returns a point that satisfies the strong Wolfe conditions, or the best one known after `most`
/// evaluations. `evaluate(t)` returns the point at t. The first trial is `t`, on a line along which the
/// function falls at `start`. The search ends when the bracket is shorter than `shortest`.
template <class Evaluate>
search_point strong_wolfe(const search_point& start, double t, std::int64_t most, double shortest,
                          Evaluate evaluate) {
  constexpr double decrease = 1e-4, flatness = 0.9;
  const auto is_low = [&](const search_point& p) {
    return p.value <= start.value + decrease * p.t * start.slope;
  };
  const auto is_flat = [&](const search_point& p) { return std::abs(p.slope) <= -flatness * start.slope; };
  search_point before = start, now = evaluate(t), low, high;
  int evaluations = 1;
  // Try points further away until a minimum is bracketed by `low`, the point with the lower value, and
  // `high`.
  for (;; ++evaluations) {
    if (evaluations > most) {
      low = start, high = now;
      break;
    }
    if (!is_low(now) || (evaluations > 2 && now.value >= before.value) || (now.slope >= 0 && !is_flat(now))) {
      low = before, high = now;
      break;
    }
    if (is_flat(now)) return now;
    const double further = cubic_minimum(before, now, now.t + 0.01 * (now.t - before.t), 10 * now.t);
    before = std::move(now);
    now = evaluate(further);
  }
  if (high.value < low.value) std::swap(low, high);
  for (bool slow = false; evaluations <= most && std::abs(high.t - low.t) >= shortest; ++evaluations) {
    const auto [left, right] = std::minmax(low.t, high.t);
    double next = cubic_minimum(low, high, left, right);
    const double margin = 0.1 * (right - left);
    if (std::min(right - next, next - left) < margin) {  // steps at the edge make no progress twice
      const bool moves = slow || next >= right || next <= left;
      if (moves) next = right - next < next - left ? right - margin : left + margin;
      slow = !moves;
    } else slow = false;
    now = evaluate(next);
    if (!is_low(now) || now.value >= low.value) {
      high = std::move(now);
      if (high.value < low.value) std::swap(low, high);
    } else {
      if (is_flat(now)) return now;
      if (now.slope * (high.t - low.t) >= 0) high = low;
      low = std::move(now);
    }
  }
  return low;
}

}  // namespace weft::detail
