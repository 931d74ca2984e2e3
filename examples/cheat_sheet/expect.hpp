// SPDX-License-Identifier: MIT
// Checks for the rows of the cheat sheets, from which tests/docs/check.py generates docs/cheat_sheets/.
//
//   //| PyTorch | LibTorch | NumPy | Eigen          a row; "-" if there is no equivalent. A fifth cell is the
//                                                   part of the code below to show
//   expect(weft, {values});                         shown as `weft`, like compiles(weft); or a statement
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <vector>

#include <weft/weft.hpp>

/// Ends the program if the value of `e` does not have these elements, in row-major order.
template <weft::expression E>
void expect(const E& e, std::initializer_list<double> wanted) {
  const auto t = weft::eval(e);
  using T = typename decltype(t)::value_type;
  const auto count = static_cast<std::size_t>(t.size());
  const std::unique_ptr<T[]> elements(new T[count]);
  t.copy_to(elements.get());
  bool same = count == wanted.size();
  for (std::size_t i = 0; same && i < count; ++i)
    same = std::abs(static_cast<double>(elements[i]) - wanted.begin()[i]) <= 1e-4;
  if (same) return;
  std::fprintf(stderr, "expected");
  for (double w : wanted) std::fprintf(stderr, " %g", w);
  std::fprintf(stderr, ", not");
  for (std::size_t i = 0; i < count; ++i) std::fprintf(stderr, " %g", static_cast<double>(elements[i]));
  std::fprintf(stderr, "\n");
  std::exit(1);
}
/// The same for a number or a bool.
template <class T>
  requires std::is_arithmetic_v<T>
void expect(T value, double wanted) {
  if (std::abs(static_cast<double>(value) - wanted) <= 1e-4) return;
  std::fprintf(stderr, "expected %g, not %g\n", wanted, static_cast<double>(value));
  std::exit(1);
}
/// For code without a value to compare.
template <class T>
void compiles(const T&) {}
