// SPDX-License-Identifier: MIT
#include "compare.hpp"

#include <cmath>
#include <limits>
#include <sstream>

namespace weft::test {

namespace {

/// The position of element number `k` as text, "[1, 0, 2]".
std::string place(const shape& s, index_t k) {
  shape p = s;
  for (int d = s.order; d-- > 0; k /= s[d]) p[d] = k % s[d];
  return to_string(p);
}

comparison differs(const shape& s, index_t k, const std::string& actual, const std::string& expected) {
  return comparison("element " + place(s, k) + " of " + to_string(s) + ": " + actual + ", expected " +
                    expected);
}

std::string text(double x) {
  std::ostringstream out;
  out.precision(17);
  out << x;
  return out.str();
}

double largest_finite(const std::vector<double>& x) {
  double largest = 0;
  for (double e : x)
    if (std::isfinite(e) && std::abs(e) > largest) largest = std::abs(e);
  return largest;
}

/// Whether `a` matches `b` within `bound`.
bool near(double a, double b, double bound) {
  if (std::isnan(b)) return std::isnan(a);
  if (std::isinf(b) || std::isinf(a)) return a == b;
  return std::abs(a - b) <= bound;  // false if either is NaN
}

}  // namespace

comparison matches(const oracle::array& actual, const oracle::array& expected, const tolerance& t) {
  if (actual.type != expected.type)
    return comparison(std::string("type ") + name_of(actual.type) + ", expected " + name_of(expected.type));
  if (actual.extents != expected.extents)
    return comparison("shape " + to_string(actual.extents) + ", expected " + to_string(expected.extents));
  if (actual.size() != expected.size()) return comparison("another number of elements");
  for (index_t k = 0; k < static_cast<index_t>(expected.i.size()); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (actual.i[at] != expected.i[at])
      return differs(expected.extents, k, std::to_string(actual.i[at]), std::to_string(expected.i[at]));
  }
  if (!t.slack.empty() && t.slack.size() != expected.f.size()) return comparison("a slack of another size");
  const double everywhere = t.absolute + t.of_largest * largest_finite(expected.f);
  for (index_t k = 0; k < static_cast<index_t>(expected.f.size()); ++k) {
    const auto at = static_cast<std::size_t>(k);
    const double right = oracle::rounded(expected.f[at], expected.type);
    double bound = everywhere;
    if (std::isfinite(right)) bound += t.relative * std::abs(right);
    if (!t.slack.empty()) bound += t.times_slack * t.slack[at];
    if (!std::isfinite(bound))
      return differs(expected.extents, k, text(actual.f[at]), text(right) + ", within no finite bound");
    if (!near(actual.f[at], right, bound))
      return differs(expected.extents, k, text(actual.f[at]), text(right) + " within " + text(bound));
  }
  return {};
}

namespace {
/// The largest |a - b| / (offset + |b|).
double largest_apart(const std::vector<double>& a, const std::vector<double>& b, double offset) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double apart = std::abs(a[k] - b[k]) / (offset + std::abs(b[k]));
    if (!std::isfinite(a[k]) || !std::isfinite(b[k])) return std::numeric_limits<double>::infinity();
    if (a[k] != b[k] && apart > largest) largest = apart;
  }
  return largest;
}
}  // namespace

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  return largest_apart(a, b, 0);
}
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  return largest_apart(a, b, 1);
}

}  // namespace weft::test
