// SPDX-License-Identifier: MIT
// Collects the operands of an expression object (tensors, numbers and sizes) in the order in which
// graph/flatten.hpp numbered them.
#pragma once

#include <algorithm>

#include <weft/grad/derivative.hpp>
#include <weft/run/module_contents.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {
// Defined in run/boundary.hpp, run/experts.hpp, run/recurrence.hpp, run/list.hpp and
// run/batch_statistics.hpp.
template <class Block, expression X>
struct boundary_node;
template <class F, expression X, expression Labels>
struct slices_node;
template <bool Renormalise, class Expert, expression X, expression Probabilities>
struct experts_node;
template <expression X, expression Loss>
struct attached_node;
template <class Step, expression X, expression... Start>
struct recurrence_node;
template <index_t Dim, bool Stacks, class Leaf>
struct list_node;
template <expression X, index_t C>
struct batch_statistics_node;
}  // namespace weft

namespace weft::runtime {

/// The operands of one evaluation: tensors, numbers and sizes, in the order of the graph.
struct operands {
  tensor_list leaves;
  recycled_vector<any_number> numbers;
  recycled_vector<index_t> sizes;
  recycled_vector<index_t> draws;   // the calls that draw random numbers, in order of occurrence
  module_contents* held = nullptr;  // receives what blocks and experts hold; see append_operands
  bool check_versions = true;       // whether tensors must be unchanged since the expression was written
};

namespace detail {

[[noreturn, gnu::cold]] inline void refuse_changed(const shape& s, std::size_t number) {
  refuse<value_error>(
      {"weft: operand ", number, " of shape ", s, " was changed in place after the expression was written"});
}

inline void collect_leaf(const std::shared_ptr<tensor_state>& state, bool is_current, operands& to) {
  if (to.check_versions && !is_current) refuse_changed(state->whole(), to.leaves.size());
  to.leaves.push_back(state);
}

using scope = weft::detail::expression_scope<recycled_vector>;
using weft::detail::identity;

[[noreturn, gnu::cold]] inline void refuse_ambiguous(const shape& extents) {
  refuse<usage_error>(
      {"weft: shared: one call of `shared` made two values of the same type, of shape ", extents,
       ", and both are in this expression, which identifies them by type: give the operands different types, "
       "use let(x, [&](auto x) { return f(x); }), or evaluate one of them first"});
}

// Variables are tracked only where shared values may read them.
template <class Body, class Variable, class F>
void within_let(scope& s, F collect_body) {
  if constexpr (weft::detail::has_shared<Body>) {
    s.bind(&identity<Variable>, 0);
    collect_body();
    s.unbind();
  } else {
    collect_body();
  }
}

/// The number of a draw within its program, so that draws of other programs do not affect it.
inline index_t number_of_draw(index_t call, operands& to) {
  const auto known = std::find(to.draws.begin(), to.draws.end(), call);
  const index_t number = known - to.draws.begin();
  if (known == to.draws.end()) to.draws.push_back(call);
  return number;
}

template <expression E>
  requires E::is_leaf
void collect(const E& leaf, operands& to, scope&) {
  collect_leaf(leaf.state(), leaf.is_current(), to);
}

template <class T>
void collect(const scalar<T>& s, operands& to, scope&) {
  to.numbers.push_back(any_number::of(s.value));
}

template <class Tag, class T, class Extents>
void collect(const bound<Tag, T, Extents>&, operands&, scope& s) {
  s.read(&identity<bound<Tag, T, Extents>>);
}

template <class Tag, class Value, class Body>
void collect(const let_node<Tag, Value, Body>& l, operands& to, scope& s);
template <class... E>
void collect(const bundle<E...>& b, operands& to, scope& s);
template <class Tag, class Point, class Body>
void collect(const gradient_node<Tag, Point, Body>& n, operands& to, scope& s);
template <class Tag, class E>
void collect(const shared_node<Tag, E>& n, operands& to, scope& s);
template <class Tag, class Leaf>
void collect(const one_operand<Tag, Leaf>& x, operands& to, scope& s);
template <class Block, class X>
void collect(const boundary_node<Block, X>& n, operands& to, scope& s);
template <class F, class X, class Labels>
void collect(const slices_node<F, X, Labels>& n, operands& to, scope& s);
template <bool Renormalise, class Expert, class X, class P>
void collect(const experts_node<Renormalise, Expert, X, P>& n, operands& to, scope& s);
template <class X, class Loss>
void collect(const attached_node<X, Loss>& n, operands& to, scope& s);
template <class Step, class X, class... Start>
void collect(const recurrence_node<Step, X, Start...>& n, operands& to, scope& s);
template <index_t Dim, bool Stacks, class Leaf>
void collect(const list_node<Dim, Stacks, Leaf>& n, operands& to, scope& s);
template <class X, index_t C>
void collect(const batch_statistics_node<X, C>& n, operands& to, scope& s);
template <class Op, class Attr, class... A>
void collect(const node<Op, Attr, A...>& n, operands& to, scope& s);
template <class Op, class Attr, int Sizes, class... A>
void collect(const sized_node<Op, Attr, Sizes, A...>& n, operands& to, scope& s);

template <class Tag, class Value, class Body>
void collect(const let_node<Tag, Value, Body>& l, operands& to, scope& s) {
  collect(l.value, to, s);
  within_let<Body, typename let_node<Tag, Value, Body>::variable>(s, [&] { collect(l.body, to, s); });
}

template <class Tag, class Point, class Body>
void collect(const gradient_node<Tag, Point, Body>& n, operands& to, scope& s) {
  collect(n.point, to, s);
  within_let<Body, typename gradient_node<Tag, Point, Body>::variable>(s, [&] { collect(n.body, to, s); });
}

/// Collects `e` at the first occurrence of `node`; `operand` identifies its object.
template <class E>
void collect_once(const E& e, const char* node, const void* operand, operands& to, scope& s) {
  if (const auto* known = s.find(node)) {
    if (known->operand != operand) refuse_ambiguous(E::static_shape);
    return;
  }
  const std::uint64_t before = s.begin();
  collect(e, to, s);
  s.end(node, 0, operand, before);
}
template <class Tag, class E>
void collect(const shared_node<Tag, E>& n, operands& to, scope& s) {
  collect_once(*n.operand, &identity<shared_node<Tag, E>>, n.operand.get(), to, s);
}
template <class Tag, class Leaf>
void collect(const one_operand<Tag, Leaf>& x, operands& to, scope& s) {
  collect_once(static_cast<const Leaf&>(x), &identity<one_operand<Tag, Leaf>>, x.state().get(), to, s);
}

// The contents of blocks, experts and steps stand for their operands.
template <class Block, class X>
void collect(const boundary_node<Block, X>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  append_contents(*n.blocks, *to.held);
}
template <class F, class X, class Labels>
void collect(const slices_node<F, X, Labels>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  collect(n.labels, to, s);
  collect(n.f.weight, to, s);
  to.sizes.push_back(n.rows);
}

template <bool Renormalise, class Expert, class X, class P>
void collect(const experts_node<Renormalise, Expert, X, P>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  collect(n.probabilities, to, s);
  append_contents(*n.experts, *to.held);
}
template <class X, class Loss>
void collect(const attached_node<X, Loss>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  collect(n.loss, to, s);
}
template <class Step, class X, class... Start>
void collect(const recurrence_node<Step, X, Start...>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  n.start.apply([&](const auto&... e) { (collect(e, to, s), ...); });
  append_contents(n.step, *to.held);
}
template <index_t Dim, bool Stacks, class Leaf>
void collect(const list_node<Dim, Stacks, Leaf>& n, operands& to, scope& s) {
  for (const Leaf& leaf : *n.parts) collect(leaf, to, s);
  to.sizes.push_back(static_cast<index_t>(n.parts->size()));
}
template <class X, index_t C>
void collect(const batch_statistics_node<X, C>& n, operands& to, scope& s) {
  collect(n.operand, to, s);
  append_contents(n.running, *to.held);
  to.sizes.push_back(n.training);
}

template <class... E>
void collect(const bundle<E...>& b, operands& to, scope& s) {
  b.values.apply([&](const auto&... e) { (collect(e, to, s), ...); });
}

template <class Op, class Attr, class... A>
void collect(const node<Op, Attr, A...>& n, operands& to, scope& s) {
  n.operands.apply([&](const auto&... o) { (collect(o, to, s), ...); });
}

template <class Op, class Attr, int Sizes, class... A>
void collect(const sized_node<Op, Attr, Sizes, A...>& n, operands& to, scope& s) {
  collect(static_cast<const node<Op, Attr, A...>&>(n), to, s);
  if constexpr (weft::detail::drawing_op<Op>) to.sizes.push_back(number_of_draw(n.sizes[0], to));
  else
    for (const index_t size : n.sizes) to.sizes.push_back(size);
}

}  // namespace detail

/// Appends the operands of `e` to those of other expressions. Expressions with boundaries (run/boundary.hpp)
/// are allowed only if `to.held` is set: it receives what their blocks hold, and the operands of blocks are
/// left out.
template <expression E>
void append_operands(const E& e, operands& to) {
  detail::scope s;
  detail::collect(e, to, s);
}

/// The operands of `e` in the order of its graph. Throws value_error if a tensor was changed in place since
/// `e` was written (unless check_versions is false), and usage_error if shared values cannot be
/// distinguished.
template <expression E>
operands operands_of(const E& e, bool check_versions = true) {
  operands o;
  o.check_versions = check_versions;
  append_operands(e, o);
  return o;
}

}  // namespace weft::runtime
