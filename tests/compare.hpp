// SPDX-License-Identifier: MIT
// The comparison of results that all tests use: types and shapes are the same, NaN and infinities are in the
// same places, integers and bool are equal, finite numbers are within a tolerance.
//
//   CHECK(matches(eval(e), oracle::value(e), {.relative = 1e-6}));   // says which element differs first
#pragma once

#include <ostream>
#include <string>

#include "oracle.hpp"

namespace weft::test {

/// How far a finite element may be from the expected one: absolute + relative * |expected| + of_largest * the
/// largest finite |expected| of the tensor + times_slack * slack. An element whose tolerance is NaN never
/// matches.
struct tolerance {
  double absolute = 0, relative = 0, of_largest = 0;
  std::vector<double> slack{};  // per element; empty: none
  double times_slack = 1;
};

/// The outcome of a comparison: whether everything is as expected, and if not, the first difference.
class comparison {
 public:
  comparison() = default;
  explicit comparison(std::string difference) : difference_(std::move(difference)) {}
  explicit operator bool() const { return difference_.empty(); }
  const std::string& difference() const { return difference_; }
  friend std::ostream& operator<<(std::ostream& out, const comparison& c) {
    return out << (c ? std::string("the same") : c.difference_);
  }

 private:
  std::string difference_;
};

/// Rounds `expected` to its type first, as the result of an op is rounded.
comparison matches(const oracle::array& actual, const oracle::array& expected, const tolerance& t = {});

template <element T, class Extents, bool Tracked>
comparison matches(const tensor<T, Extents, Tracked>& actual, const oracle::array& expected,
                   const tolerance& t = {}) {
  if (!actual.defined()) return comparison("there is no tensor");
  return matches(oracle::read(actual), expected, t);
}
/// Compares with a derivative; 10 times its estimated error is added to the tolerance. A derivative that has
/// not converged matches nothing.
template <element T, class Extents, bool Tracked>
comparison matches(const tensor<T, Extents, Tracked>& actual, const oracle::derivative& expected,
                   tolerance t = {}) {
  if (!converged(expected)) return comparison("the expected derivative has not converged");
  t.slack = expected.error.f;
  t.times_slack = 10;
  return matches(actual, expected.value, t);
}

/// Elements that are not in a tensor, as a one-dimensional array.
template <class T>
oracle::array flat(const std::vector<T>& elements) {
  const shape s{1, {static_cast<index_t>(elements.size())}};
  if constexpr (std::is_integral_v<T>)
    return oracle::integers(dtype_of<T>, s, {elements.begin(), elements.end()});
  else return oracle::numbers(dtype_of<T>, s, {elements.begin(), elements.end()});
}

/// Compares elements in plain vectors of one type with `expected`, within the tolerance.
template <class T>
comparison matches(const std::vector<T>& actual, const std::vector<T>& expected, const tolerance& t = {}) {
  return matches(flat(actual), flat(expected), t);
}

/// The largest |a - b| / |b|; infinite if the lengths differ or any element is not finite.
double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b);
/// The largest |a - b| / (1 + |b|), likewise.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);
template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  return largest_difference(std::vector<double>(a.begin(), a.end()), std::vector<double>(b.begin(), b.end()));
}

}  // namespace weft::test
