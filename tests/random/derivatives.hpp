// SPDX-License-Identifier: MIT
// Checks the derivatives of random programs: first and second derivatives along random directions are
// compared with difference quotients of the oracle's values in double.
#pragma once

#include <utility>

namespace weft::random_programs {

/// Elements in [-1, 1), for a direction or the weights of the result.
inline test::oracle::array random_elements(dtype type, const shape& extents, std::uint64_t seed) {
  std::vector<double> elements(static_cast<std::size_t>(extents.size()));
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = 2 * uniform(seed, 77, i) - 1;
  return test::oracle::numbers(type, extents, std::move(elements));
}

/// A derivative by differences. `smooth`: both sides agree.
struct quotient {
  double value, error;
  bool smooth;
};

/// The derivative of f at 0, by central differences of three steps.
template <class F>
quotient derivative_at_zero(const F& f) {
  constexpr double step = 0x1p-13;
  double central[3];
  for (int k = 0; k < 3; ++k) {
    const double h = std::ldexp(step, -k);
    central[k] = (f(h) - f(-h)) / (2 * h);
  }
  const double once = (4 * central[1] - central[0]) / 3, again = (4 * central[2] - central[1]) / 3;
  const double here = f(0), right = (f(step) - here) / step, left = (here - f(-step)) / step;
  return {again, std::abs(again - once) + 0x1p-50 * std::abs(here) / step,
          std::abs(right - left) <= 0.02 * (std::abs(right) + std::abs(left)) + 1e-3};
}

/// The elements of `leaf`, moved by t along `direction`.
inline test::oracle::replacements moved_along(const tensor_state& leaf, const test::oracle::array& direction,
                                              double t) {
  test::oracle::array elements = test::oracle::read(leaf);
  for (std::size_t i = 0; i < elements.f.size(); ++i) elements.f[i] += t * direction.f[i];
  return {{&leaf, std::move(elements)}};
}

inline constexpr int directions = 3;

/// The relative error allowed for the derivatives of a program of this type.
constexpr double derivative_tolerance(dtype t) {
  return (t == dtype::f64 ? 1e6 : t == dtype::f32 ? 400 : 12) * epsilon_of(t);
}

/// The size of the terms whose sum is differentiated: a derivative has rounding errors of this size even if
/// the terms cancel.
template <class E>
double size_of_terms(const E& e, const test::oracle::array& weights) {
  double size = 0;
  const test::oracle::array value = test::oracle::value(e, {.rounding = false, .leaves = {}});
  for (index_t j = 0; j < value.size(); ++j)
    size += std::abs(value.number(j) * weights.number(j)) / std::sqrt(static_cast<double>(value.size()));
  return size;
}

/// Compares `gradient` with differences of sum(e * weights) in the elements of `leaf`. `size`: see
/// size_of_terms.
template <class E>
void compare_gradient(verdict& v, const std::string& where, const numbers& gradient, const E& e,
                      const test::oracle::array& weights, double size, const tensor_state& leaf,
                      const expectation& right, std::uint64_t seed) {
  if (!(gradient.extents == leaf.extents))
    return v.say(where + ": a gradient of extents " + to_string(gradient.extents));
  const auto sum = [&](const test::oracle::replacements& leaves) {
    return test::oracle::detail::weighed(test::oracle::value(e, {.rounding = false, .leaves = leaves}),
                                         weights);
  };
  // Derivatives of values that cancel, such as x / x, consist of their rounding errors.
  const double rounding = 64 * epsilon_of(right.coarsest) * right.largest;
  for (std::uint64_t k = 0; k < directions; ++k) {
    const test::oracle::array direction = random_elements(leaf.type, leaf.extents, mixed(seed + k));
    const quotient q = derivative_at_zero([&](double t) { return sum(moved_along(leaf, direction, t)); });
    if (!q.smooth) continue;
    double along = 0, terms = 0;
    for (std::size_t i = 0; i < gradient.at.size(); ++i) {
      along += gradient.at[i] * direction.f[i];
      terms += std::abs(gradient.at[i] * direction.f[i]);
    }
    const double tolerance =
        derivative_tolerance(right.coarsest) * (terms + size + std::abs(q.value)) + rounding + 10 * q.error;
    if (!(std::abs(along - q.value) <= tolerance))
      return v.say(where + ": the derivative along a direction is " + text_of(along) + ", expected " +
                   text_of(q.value) + " within " + text_of(tolerance));
  }
}

template <class T, class Extents, bool G>
tensor<T, Extents> weights_on(const device& where, const tensor<T, Extents, G>& like,
                              const test::oracle::array& weights) {
  return tensor<T, Extents>(weft::detail::generated<T>(
      like.extents(), [&](index_t i) { return weights.number(i); }, where));
}

template <bool Cut, class Form, class P, class... Leaf>
void check_gradients(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  auto own = make_leaves(default_device(), seed, l...);  // the leaves that the oracle reads
  const auto e = std::apply([&](auto&... x) { return program(no_cut, x...); }, own);
  Form::template look_at<std::remove_const_t<decltype(e)>>(v);
  const expectation right = expected_of(e, seed);
  test::oracle::array weights = random_elements(right.value.type, right.value.extents, seed + 5);
  for (double& w : weights.f) w = test::oracle::rounded(w, right.value.type);
  const double size = size_of_terms(e, weights);
  everywhere(v, seed, [&](const place& p, context& c, auto&... x) {
    const auto pass = [&] {
      tape steps(c);
      const auto cut = [&](auto part) {
        if constexpr (Cut) return steps.eval(part);
        else return part;
      };
      const auto y = steps.eval(program(cut, x...));
      compare(v, p.name, downloaded(y, v), right);
      steps.backward(y, weights_on(p.where, y, weights));
    };
    pass();
    const auto gradient_of = [&](const auto& t) {
      return t.grad().defined() ? downloaded(t.grad(), v)
                                : numbers{t.state()->type, t.extents(),
                                          std::vector<double>(static_cast<std::size_t>(t.size()))};
    };
    std::vector<numbers> once;
    const auto look = [&]<bool Tracked>(const auto& t, const auto& mine, std::bool_constant<Tracked>) {
      if constexpr (Tracked) {
        once.push_back(gradient_of(t));
        compare_gradient(v, std::string(p.name) + ", gradient " + std::to_string(once.size()), once.back(), e,
                         weights, size, *mine.state(), right, seed);
      }
    };
    std::apply([&](auto&... mine) { (look(x, mine, std::bool_constant<Leaf::tracked>{}), ...); }, own);
    pass();  // gradients accumulate
    std::size_t number = 0;
    const auto look_again = [&]<bool Tracked>(const auto& t, std::bool_constant<Tracked>) {
      if constexpr (Tracked) {
        const numbers& before = once[number++];
        expectation twice{before, {}};
        for (double& g : twice.value.at) {
          twice.tolerance.push_back(64 * epsilon_of(before.type) * (std::abs(g) + size) +
                                    smallest_of(before.type));
          g *= 2;
        }
        compare(v, std::string(p.name) + ", gradient " + std::to_string(number) + " added up twice",
                gradient_of(t), twice);
      }
    };
    (look_again(x, std::bool_constant<Leaf::tracked>{}), ...);
  }, l...);
}

template <class Form, class P, class... Leaf>
void check_gradient(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  check_gradients<false, Form>(v, seed, program, l...);
}
/// The same with a part of the program as a separate statement on the tape.
template <class Form, class P, class... Leaf>
void check_gradient_cut(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  check_gradients<true, Form>(v, seed, program, l...);
}

/// The Hessian in the first leaf, times a vector, along another direction.
template <class Form, class P, class First, class... Leaf>
void check_second(verdict& v, std::uint64_t seed, const P& program, const First& first, const Leaf&... l) {
  auto own = make_leaves(default_device(), seed, first, l...);
  const auto e = std::apply([&](auto&... x) { return program(no_cut, x...); }, own);
  Form::template look_at<std::remove_const_t<decltype(e)>>(v);
  const numbers value = from_oracle(test::oracle::value(e));
  const test::oracle::array weights = random_elements(value.type, value.extents, seed + 5);
  const tensor_state& point = *std::get<0>(own).state();
  const test::oracle::array vector = random_elements(point.type, point.extents, seed + 6);
  const auto sum = [&](const test::oracle::array& other, double s, double t) {
    test::oracle::replacements leaves = moved_along(point, vector, s);
    for (std::size_t i = 0; i < other.f.size(); ++i) leaves.begin()->second.f[i] += t * other.f[i];
    return test::oracle::detail::weighed(test::oracle::value(e, {.rounding = false, .leaves = leaves}),
                                         weights);
  };
  everywhere(
      v, seed,
      [&](const place& p, context& c, auto& x, auto&... rest) {
        const auto w = weights_on(
            p.where, tensor<double, extents_of<std::remove_const_t<decltype(e)>>>(value.extents), weights);
        const auto u = weights_on(p.where, x, vector);
        const auto f = [&](auto at) { return weft::sum(program(no_cut, at, rest...) * w); };
        const numbers product = downloaded(eval(hvp(f, x, u), c), v);
        for (std::uint64_t k = 0; k < directions; ++k) {
          const test::oracle::array other = random_elements(point.type, point.extents, mixed(seed + k));
          const auto mixed_difference = [&](double h) {
            return (sum(other, h, h) - sum(other, h, -h) - sum(other, -h, h) + sum(other, -h, -h)) /
                   (4 * h * h);
          };
          const double wide = mixed_difference(0x1p-9), half = mixed_difference(0x1p-10),
                       quarter = mixed_difference(0x1p-11);
          const double once = (4 * half - wide) / 3, again = (4 * quarter - half) / 3;
          double along = 0, terms = 0;
          for (std::size_t i = 0; i < product.at.size(); ++i) {
            along += product.at[i] * other.f[i];
            terms += std::abs(product.at[i] * other.f[i]);
          }
          const double noise = 0x1p-48 * (1 + std::abs(sum(other, 0, 0))) * 0x1p22;
          const double error = std::abs(again - once);
          if (error > 0.01 * std::abs(again) + noise) continue;  // a kink, as of maximum, is near
          const double tolerance = 1e-6 * terms + 10 * error + noise;
          if (!(std::abs(along - again) <= tolerance))
            return v.say(std::string(p.name) + ": the second derivative along two directions is " +
                         text_of(along) + ", expected " + text_of(again) + " within " + text_of(tolerance));
        }
      },
      first, l...);
}

}  // namespace weft::random_programs
