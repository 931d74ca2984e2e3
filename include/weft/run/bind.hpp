// SPDX-License-Identifier: MIT
// From an expression object to what its program reads: tensors, numbers, sizes, in the order in
// which graph/flatten.hpp numbered them.
#pragma once

#include <weft/grad/derivative.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::run {

/// The operands of one evaluation.
struct operands {
  tensor_list leaves;
  recycled_vector<any_number> numbers;
  recycled_vector<index_t> sizes;
  bool check_versions = true;  // whether tensors must hold what they held when the expression was written
};

namespace detail {

[[noreturn, gnu::cold]] inline void refuse_changed(const shape& s, std::size_t number) {
  throw value_error("weft: operand " + std::to_string(number) + " of shape " + to_string(s) +
                    " was changed in place after the expression was written");
}

inline void collect_leaf(const std::shared_ptr<tensor_state>& state, bool is_current, operands& to) {
  if (to.check_versions && !is_current) refuse_changed(state->extents, to.leaves.size());
  to.leaves.push_back(state);
}

template <expression E>
  requires E::is_leaf
void collect(const E& leaf, operands& to) {
  collect_leaf(leaf.state(), leaf.is_current(), to);
}

template <class T>
void collect(const scalar<T>& s, operands& to) {
  to.numbers.push_back(any_number::of(s.value));
}

template <class Tag, class T, class Extents>
void collect(const bound<Tag, T, Extents>&, operands&) {}

template <class Tag, class Value, class Body>
void collect(const let_node<Tag, Value, Body>& l, operands& to);
template <class... E>
void collect(const bundle<E...>& b, operands& to);
template <class Tag, class Point, class Body>
void collect(const gradient_node<Tag, Point, Body>& n, operands& to);
template <class Op, class Attr, class... A>
void collect(const node<Op, Attr, A...>& n, operands& to);
template <class Op, class Attr, int Sizes, class... A>
void collect(const sized_node<Op, Attr, Sizes, A...>& n, operands& to);

template <class Tag, class Value, class Body>
void collect(const let_node<Tag, Value, Body>& l, operands& to) {
  collect(l.value, to);
  collect(l.body, to);
}

template <class Tag, class Point, class Body>
void collect(const gradient_node<Tag, Point, Body>& n, operands& to) {
  collect(n.point, to);
  collect(n.body, to);
}

template <class... E>
void collect(const bundle<E...>& b, operands& to) {
  std::apply([&](const auto&... e) { (collect(e, to), ...); }, b.values);
}

template <class Op, class Attr, class... A>
void collect(const node<Op, Attr, A...>& n, operands& to) {
  std::apply([&](const auto&... o) { (collect(o, to), ...); }, n.operands);
}

template <class Op, class Attr, int Sizes, class... A>
void collect(const sized_node<Op, Attr, Sizes, A...>& n, operands& to) {
  collect(static_cast<const node<Op, Attr, A...>&>(n), to);
  for (const given_size& s : n.sizes) to.sizes.push_back(s.value);
}

}  // namespace detail

/// The operands of `e` in the order of its graph.
template <expression E>
operands operands_of(const E& e, bool check_versions = true) {
  operands o;
  o.check_versions = check_versions;
  detail::collect(e, o);
  return o;
}

}  // namespace weft::run
