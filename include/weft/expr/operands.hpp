// SPDX-License-Identifier: MIT
// A list of values of different types: the operands of a node.
//
// Each node of each expression has a list of its own type. std::tuple would instantiate the classes and
// constraints of its conversions and comparisons for each of them, which took the compiler more time than the
// nodes.
#pragma once

#include <utility>

namespace weft {

/// Values of different types, in order. `apply(f)` calls f with all of them.
template <class... T>
struct operand_list;

template <>
struct operand_list<> {
  template <class F>
  constexpr decltype(auto) apply(F&& f) const {
    return f();
  }
};

template <class A>
struct operand_list<A> {
  [[no_unique_address]] A first;
  constexpr explicit operand_list(A&& a) : first(std::move(a)) {}
  template <class F>
  constexpr decltype(auto) apply(F&& f) const {
    return f(first);
  }
};

template <class A, class B>
struct operand_list<A, B> {
  [[no_unique_address]] A first;
  [[no_unique_address]] B second;
  constexpr operand_list(A&& a, B&& b) : first(std::move(a)), second(std::move(b)) {}
  template <class F>
  constexpr decltype(auto) apply(F&& f) const {
    return f(first, second);
  }
};

template <class A, class B, class C, class... Rest>
struct operand_list<A, B, C, Rest...> {
  [[no_unique_address]] A first;
  [[no_unique_address]] B second;
  [[no_unique_address]] C third;
  [[no_unique_address]] operand_list<Rest...> rest;
  constexpr operand_list(A&& a, B&& b, C&& c, Rest&&... r)
      : first(std::move(a)), second(std::move(b)), third(std::move(c)), rest(std::move(r)...) {}
  template <class F>
  constexpr decltype(auto) apply(F&& f) const {
    return rest.apply([&](const Rest&... r) -> decltype(auto) { return f(first, second, third, r...); });
  }
};

}  // namespace weft
