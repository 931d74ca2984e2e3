// SPDX-License-Identifier: MIT
// The value of an expression by its definition, against which the library is tested.
//
// A walk over the type and the object of an expression; each op is computed by plain loops over an
// n-dimensional index (oracle.cpp), floating elements in double, integers and bool in int64. It shares
// no code with the library's evaluation: no graph, no strides, no kernels, no device. It takes from the
// library the structs of expressions, the names of ops and the bytes of tensors.
//
//   CHECK(matches(eval(e), oracle::value(e), {.relative = 1e-6}));      // compare.hpp
//
// Every op is computed in double and its result rounded to its element type, as PyTorch evaluates op by op:
// the value does not depend on how a program is divided into kernels.
//
// Random ops (dropout, bernoulli, uniform_like) have no value by definition. Custom ops have none here.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <weft/expr/expression.hpp>
#include <weft/expr/shared.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::op {
struct product_of_one_shape;
struct difference_of_one_shape;
struct requirement;
struct plus_channel_bias;
}  // namespace weft::op

namespace weft {
template <class F, expression X, expression Labels>
struct slices_node;  // run/boundary.hpp
}

namespace weft::test::oracle {

/// A dense array in row-major order: elements of floating types in `f`, integers and bool (0, 1) in `i`.
struct array {
  dtype type = dtype::f32;
  shape extents{};
  std::vector<double> f;
  std::vector<std::int64_t> i;

  index_t size() const { return static_cast<index_t>(f.size() + i.size()); }
  bool floating() const { return is_floating(type); }
  double number(index_t k) const {
    return floating() ? f[static_cast<std::size_t>(k)] : static_cast<double>(i[static_cast<std::size_t>(k)]);
  }
};

/// Thrown if an expression has no value: an index, label or bound is out of range, or shapes do not match.
struct undefined : std::domain_error {
  using std::domain_error::domain_error;
};

/// Zeros.
array zeros(dtype type, const shape& extents);
/// `elements`, not rounded.
array numbers(dtype type, const shape& extents, std::vector<double> elements);
array integers(dtype type, const shape& extents, std::vector<std::int64_t> elements);
/// The elements of a tensor of `type` from the bytes of its memory. The byte of a bool is taken unchanged.
array decoded(dtype type, const shape& extents, const void* bytes);
/// The number of a floating type nearest to `x`, ties to even.
double rounded(double x, dtype type);
/// The distance from 1 to the next larger number of a floating type.
double epsilon(dtype type);

/// The elements of `t`, on any device.
inline array read(const tensor_state& t) {
  std::vector<std::byte> bytes(t.bytes());
  weft::detail::download_to(t, bytes.data());
  return decoded(t.type, t.extents, bytes.data());
}
template <element T, class Extents, bool Tracked>
array read(const tensor<T, Extents, Tracked>& t) {
  return read(*t.state());
}

/// A function that may change the elements of an array that op `op` computes or reads.
using disturbance = std::function<void(std::string_view op, array&)>;

/// One application of an op.
struct call {
  std::string_view op;
  attributes at;
  dtype type;      // of the result, as the expression says
  bool rounding;   // whether the result is rounded to its type
  std::vector<array> operands;
  disturbance disturb_operand{};
};
array compute(const call& c);
/// Whether the op of this name has a definition here.
bool is_defined(std::string_view op);

/// Elements to be used in place of the leaves' own.
using replacements = std::map<const tensor_state*, array>;

struct options {
  bool rounding = true;   // false: narrow floating types stay in double throughout
  replacements leaves{};
  disturbance disturb{};          // called with every result, and with leaves as op "leaf"
  disturbance disturb_operand{};  // with every operand, changed for that op alone, and the means of norms
};

/// The state of a walk: the options, and the variables of the enclosing lets.
struct environment {
  struct variable {
    const char* identity;
    array value, still;  // `still`: computed from the leaves' own elements, for use inside detach
  };
  const options* given;
  bool detached = false;
  std::vector<variable> variables;
};

namespace detail {

/// One address per type.
template <class T>
inline constexpr char identity = 0;

array leaf(const tensor_state& t, const environment& e);
array variable(const char* identity, const environment& e);
/// Attributes with the sizes given at run time filled in, in order, where the type leaves them open.
attributes with_sizes(attributes at, const index_t* sizes, int count);
template <class T>
array constant(T x) {
  if constexpr (std::is_integral_v<T>) return integers(dtype_of<T>, {}, {static_cast<std::int64_t>(x)});
  else return numbers(dtype_of<T>, {}, {static_cast<double>(x)});
}

template <class Tag, class T, class Extents>
array walk(const bound<Tag, T, Extents>&, environment& e) {
  return variable(&identity<bound<Tag, T, Extents>>, e);
}
template <class T>
array walk(const scalar<T>& s, environment&) {
  return constant(s.value);
}
template <expression E>
  requires E::is_leaf
array walk(const E& t, environment& e) {
  return leaf(*t.state(), e);
}
template <class Tag, class E>
array walk(const shared_node<Tag, E>& s, environment& e);
template <class Tag, class Value, class Body>
array walk(const let_node<Tag, Value, Body>& l, environment& e);
template <class Op, class Attr, class... O>
array walk(const node<Op, Attr, O...>& n, environment& e);
template <class Op, class Attr, int Sizes, class... O>
array walk(const sized_node<Op, Attr, Sizes, O...>& n, environment& e);
/// A sum over rows, computed from all rows at once.
template <class F, class X, class Labels>
array walk(const slices_node<F, X, Labels>& n, environment& e) {
  return walk(n.f(n.operand, n.labels), e);
}

template <class Tag, class E>
array walk(const shared_node<Tag, E>& s, environment& e) {
  return walk(*s.operand, e);  // evaluated as often as it is written
}

/// The name under which an op is defined: ops that differ from another one only in the shapes that they
/// accept, and in the name in errors, have its definition.
template <class Op>
constexpr std::string_view defined_as() {
  if (std::derived_from<Op, op::product_of_one_shape>) return "multiply";
  if (std::derived_from<Op, op::difference_of_one_shape>) return "subtract";
  if (std::derived_from<Op, op::plus_channel_bias>) return "plus_channel_bias";
  if (std::derived_from<Op, op::requirement>) return "contiguous";
  return Op::name;
}

template <class Op, class Attr, class... O>
array walk_node(const node<Op, Attr, O...>& n, const attributes& at, environment& e) {
  call c{defined_as<Op>(),  at, dtype_of<typename node<Op, Attr, O...>::value_type>,
         e.given->rounding, {}, e.given->disturb_operand};
  const bool detached = e.detached;
  e.detached = detached || c.op == "detach" || c.op == "sum_over_positions";
  n.operands.apply([&](const auto&... o) { (c.operands.push_back(walk(o, e)), ...); });
  e.detached = detached;
  if (c.disturb_operand)
    for (array& operand : c.operands) c.disturb_operand(c.op, operand);
  array result = compute(c);
  if (e.given->disturb) e.given->disturb(c.op, result);
  return result;
}
template <class Op, class Attr, class... O>
array walk(const node<Op, Attr, O...>& n, environment& e) {
  return walk_node(n, Attr::value, e);
}
template <class Op, class Attr, int Sizes, class... O>
array walk(const sized_node<Op, Attr, Sizes, O...>& n, environment& e) {
  return walk_node(static_cast<const node<Op, Attr, O...>&>(n), with_sizes(Attr::value, n.sizes, Sizes), e);
}

template <class Tag, class Value, class Body>
array walk(const let_node<Tag, Value, Body>& l, environment& e) {
  using variable = bound<Tag, typename Value::value_type, extents_of<Value>>;
  array value = walk(l.value, e), still;
  if (!e.given->leaves.empty()) {
    const bool detached = std::exchange(e.detached, true);
    still = walk(l.value, e);
    e.detached = detached;
  }
  e.variables.push_back({&identity<variable>, std::move(value), std::move(still)});
  array body = walk(l.body, e);
  e.variables.pop_back();
  return body;
}

}  // namespace detail

/// The value of `e` by its definition. Throws `undefined` where it has none.
template <expression E>
array value(const E& e, const options& o = {}) {
  environment all{&o, false, {}};
  return detail::walk(e, all);
}
/// The values of a bundle.
template <expression... E>
std::vector<array> value(const bundle<E...>& b, const options& o = {}) {
  return b.values.apply([&](const auto&... e) { return std::vector<array>{value(e, o)...}; });
}

/// A derivative by difference quotients, with an error estimate for each element. If a function has a kink,
/// or is not defined near the point, the estimate is large, infinite or NaN.
struct derivative {
  array value, error;
};
/// Whether every element of a derivative is known to within 1e-4 of the largest.
bool converged(const derivative& d);

namespace detail {
using function = std::function<double(const replacements&)>;
derivative slope(const function& f, const tensor_state& leaf, const array& direction);
/// The slopes of f with respect to the elements of a leaf.
derivative slopes(const function& f, const tensor_state& leaf);
/// The slopes of f's derivative along `direction` in `along`, with respect to the elements of `leaf`.
derivative slopes_along(const function& f, const tensor_state& along, const array& direction,
                        const tensor_state& leaf);
/// The sum of a * weights, or of a if `weights` is empty.
double weighed(const array& a, const array& weights);

template <class E>
function of(const E& e, const array& weights) {
  return [&](const replacements& leaves) {
    return weighed(oracle::value(e, {.rounding = false, .leaves = leaves}), weights);
  };
}
}  // namespace detail

/// The gradient of sum(e * weights), or of sum(e) without weights, with respect to `leaf`. In double for all
/// element types; flows through casts to floating types, not through detach. Costs about ten walks per
/// element.
template <expression E, expression X>
derivative gradient(const E& e, const X& leaf, const array& weights = {}) {
  return detail::slopes(detail::of(e, weights), *leaf.state());
}
/// The derivative of sum(e * weights) along `direction` in `leaf`, an array of one element, for leaves that
/// are too large for a gradient. Costs about ten walks.
template <expression E, expression X>
derivative slope(const E& e, const X& leaf, const array& direction, const array& weights = {}) {
  return detail::slope(detail::of(e, weights), *leaf.state(), direction);
}
/// The gradient with respect to `leaf` of the derivative of sum(e * weights) along `direction` in `along`. If
/// leaf = along, it is the Hessian times `direction`.
template <expression E, expression A, expression X>
derivative gradient_along(const E& e, const A& along, const array& direction, const X& leaf,
                          const array& weights = {}) {
  return detail::slopes_along(detail::of(e, weights), *along.state(), direction, *leaf.state());
}

}  // namespace weft::test::oracle
