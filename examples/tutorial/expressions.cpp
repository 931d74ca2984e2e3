// SPDX-License-Identifier: MIT
// Chapter 2 of the tutorial, docs/tutorial/expressions.md: expressions, let and shared.
#include <iostream>

#include <weft/run/draw.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [function]
/// An expression can be returned: it owns handles to its operands.
auto standardized(expression auto x) {
  auto centred = x - mean(x, dims<-1>, keepdim);
  return centred / sqrt(mean(square(centred), dims<-1>, keepdim) + 1e-5f);
}
// [/function]

// [let]
auto gated(expression auto x) {
  return let(tanh(x), [](auto t) { return t * t + t; });   // tanh is computed once
}
auto gated_by_name(expression auto x) {
  auto t = shared(tanh(x));                                 // the same without a function
  return t * t + t;
}
// [/let]

int main() {
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});

  section("lazy");
  // [lazy]
  auto y = exp(x) / sum(exp(x), dims<1>, keepdim);   // no element is computed here
  auto t = eval(y);                                  // one kernel computes all of it
  std::cout << t << '\n';
  static_assert(decltype(y)::static_shape[1] == 3);  // the shape is known at compile time
  // [/lazy]

  section("graph");
  // [graph]
  std::cout << to_dot(softmax(x + 1.0f));            // dot -Tsvg graph.dot -o graph.svg
  // [/graph]

  section("fused");
  // [fused]
  std::cout << peak_bytes<decltype(y)>() << " bytes\n";
  static_assert(peak_bytes<decltype(y)>() <= 64);
  // [/fused]

  section("function");
  std::cout << eval(standardized(x)) << '\n';

  section("broadcast");
  // [broadcast]
  auto bias = from(extents<3>{}, std::vector<float>{10, 20, 30});
  auto column = from(extents<2, 1>{}, std::vector<float>{100, 200});
  std::cout << eval(x + bias + column) << '\n';
  // [/broadcast]

  section("choose");
  // [choose]
  std::cout << eval(where(x > 3.0f, x, 0.0f)) << '\n'
            << eval(clamp(x, 2.0f, 5.0f)) << '\n'
            << eval(x == 3.0f) << '\n';
  // [/choose]

  section("reduce");
  // [reduce]
  std::cout << eval(sum(x)) << '\n'
            << eval(mean(x, dims<0>)) << '\n'
            << eval(amax(x, dims<1>, keepdim)) << '\n'
            << eval(argmax<1>(x)) << '\n';
  // [/reduce]

  section("let");
  std::cout << eval(gated(x)) << '\n';
  std::cout << eval(sum(abs(gated(x) - gated_by_name(x)))).item() << '\n';

  section("stale");
  // [stale]
  auto doubled = x * 2.0f;
  x.copy_from({6, 5, 4, 3, 2, 1});
  try {
    eval(doubled);
  } catch (const value_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/stale]

  section("compile");
  // [compile]
  auto twice = compile(x * 2.0f);                    // each call reads the elements that x has then
  std::cout << twice() << '\n';
  x.copy_from({1, 1, 1, 2, 2, 2});
  std::cout << twice() << '\n';
  // [/compile]
}
