// SPDX-License-Identifier: MIT
// Construction of graphs: `compute_graph::apply`, and the helper functions that the formulas of ops use.
//
// Every node passes through `apply`: operands are converted to one element type, the shape law is checked,
// composed ops without a vjp are replaced by their formulas, trivial ops are removed, and equal nodes are
// merged.
#pragma once

#include <weft/graph/op_info.hpp>
#include <weft/graph/simplify.hpp>

namespace weft::graph {

constexpr value compute_graph::leaf(tensor_spec f, leaf_role role, const placement& may_be) {
  for (int i = 0; i < f.extents.order; ++i)
    if (f.extents[i] < 0) f.extents[i] = dims.leaf_extent(leaves, i);
  node n;
  n.op = &info_of<op::leaf>;
  n.at = leaf_attributes(leaves++, may_be);
  n.result = f;
  n.role = role;
  n.needs_gradient = role != leaf_role::untracked && is_floating(f.type);
  return append(n);
}

constexpr value compute_graph::argument(dtype t) {
  node n;
  n.op = &info_of<op::argument>;
  n.at = {{arguments++}, 1};
  n.result.type = t;
  return append(n);
}

template <class Number>
constexpr value compute_graph::constant(Number x, dtype t) {
  node n;
  n.op = &info_of<op::constant>;
  n.at = {{any_number::of(t, x).bits}, 1};
  n.result.type = t;
  return intern(n);
}

constexpr value compute_graph::extent(index_t e, dtype t) {
  if (e >= 0) return constant(e, t);
  node n;
  n.op = &info_of<op::extent_value>;
  n.at = {{e}, 1};
  n.result.type = t;
  return intern(n);
}

constexpr value compute_graph::coordinate(index_t extent, dtype t) {
  if (extent == 1)
    return expand_to(constant(0, t), {1, {1}});  // may be a value per row, which has no position
  node n;
  n.op = &info_of<op::coordinate>;
  n.at = {{extent}, 1};
  n.result = {t, {1, {extent}}};
  return intern(n);
}

namespace detail {

/// Index of the first operand whose type affects that of the result; the condition of `where` stays bool.
constexpr int first_number(const op_info& op) { return op.number == op::number_of_op<op::where> ? 1 : 0; }

/// Converts operands to the type in which an element-wise instruction computes.
constexpr void convert_operands(const op_info& op, value* v, int count) {
  const int first = first_number(op);
  dtype common = v[first].type();
  for (int i = first + 1; i < count; ++i) common = promoted(common, v[i].type());
  common = op.operand_type(common);
  for (int i = first; i < count; ++i) v[i] = cast_to(v[i], common);
}

/// Converts operands of storage types to the types of computation, and integers to the type of the result
/// where the op requires it; returns whether it converted any. Formulas keep their bool operands, which they
/// use as conditions.
constexpr bool widen_operands(const op_info& op, value* v, int count, dtype result) {
  bool found = false;
  for (int i = first_number(op); op.widens && i < count; ++i) {
    const dtype t = v[i].type();
    const bool to_floats = op.in_floats && is_floating(result) && !is_floating(t);
    const dtype computed = compute_type(to_floats ? result : t);
    if (computed == t || (t == dtype::boolean && op.kind == op::op_kind::composed)) continue;
    v[i] = cast_to(v[i], computed);
    found = true;
  }
  return found;
}

/// The result of the op's law for its operands; run-time conditions are recorded under the op's name. Throws
/// shape_error if the law does not hold.
constexpr inferred read_law(symbol_table& dims, const op_info& op, const attributes& at,
                            const tensor_spec* operands, int count) {
  dims.begin_law(op.kind == op::op_kind::native ? op.native->name(op.name, at) : op.name, operands, count);
  const inferred law = op.infer(dims, at, operands);
  dims.end_law();
  if (!law.holds || !law.types_fit)
    throw shape_error(std::string("weft: ") + op.name + ": operands do not fit");
  return law;
}

}  // namespace detail

/// A result of a storage type is computed in a wider type and rounded once, also for a formula as a whole. So
/// a value has the precision of its type, whether it is written to memory or stays in a kernel.
constexpr value compute_graph::apply(const op_info& op, const attributes& at, value* v, int count) {
  node n;
  n.op = &op;
  n.at = at;
  n.operands = count;
  const bool is_formula = op.kind == op::op_kind::composed && !op.has_vjp;
  if (op.converts && !is_formula) detail::convert_operands(op, v, count);
  tensor_spec specs[max_operands + 1]{};
  for (int i = 0; i < count; ++i) {
    n.operand[i] = v[i].id;
    specs[i] = {v[i].type(), dims.canonical(v[i].extents())};
  }
  const inferred law = detail::read_law(dims, op, at, specs, count);
  if (detail::widen_operands(op, v, count, law.value.type))
    return cast_to(apply(op, at, v, count), law.value.type);
  n.result = law.value;
  if (is_formula && !keeps_formulas) return cast_to({this, op.expand(*this, n)}, law.value.type);
  for (int i = 0; i < count; ++i)
    n.needs_gradient |= v[i].get().needs_gradient && is_floating(n.result.type);
  if (const int simpler = simplified(*this, n); simpler >= 0) return {this, simpler};
  const value y = intern(n);
  for (int k = 1; k < op.results; ++k) result_of(y, k);
  return y;
}

constexpr value no_gradient(value g) { return {g.owner, -1}; }

constexpr value cast_to(value v, dtype t) {
  if (v.type() == t) return v;
  return v.owner->apply<op::cast>(attributes{{static_cast<index_t>(t)}, 1}, v);
}

constexpr value reshape_to(value v, const shape& to) {
  if (v.owner->dims.canonical(v.extents()) == v.owner->dims.canonical(to)) return v;
  return v.owner->apply<op::reshape>(extents_attributes(to), v);
}

constexpr value expand_to(value v, const shape& to) {
  if (v.owner->dims.canonical(v.extents()) == v.owner->dims.canonical(to)) return v;
  return v.owner->apply<op::expand>(extents_attributes(to), v);
}

constexpr value permute_dims(value v, const attributes& order) {
  return v.owner->apply<op::permute>(order, v);
}

constexpr value transposed(value v) {
  attributes order;
  order.count = v.extents().order;
  for (int i = 0; i < order.count; ++i) order[i] = i;
  std::swap(order[order.count - 2], order[order.count - 1]);
  return permute_dims(v, order);
}

constexpr value slice_dim(value v, int dim, index_t start, index_t stop, index_t step) {
  return v.owner->apply<op::slice>(attributes{{dim, start, stop, step}, 4}, v);
}

constexpr value contract_of(value a, value b) {
  return a.owner->apply<op::contract>(attributes{}, a, b);
}

namespace detail {
/// A kernel reduces either the last dim of its space, or dims before others that remain. So trailing dims are
/// reduced one at a time, starting with the last.
template <class Op>
constexpr value fold_dims(value v, index_t first, index_t last) {
  if (const dtype t = v.type(); compute_type(t) != t)  // rounded once, not after each dim
    return cast_to(fold_dims<Op>(cast_to(v, compute_type(t)), first, last), t);
  const shape s = v.extents();
  int kept_after = 0;
  for (int i = static_cast<int>(last); i < s.order; ++i) kept_after += s[i] != 1;
  if (kept_after) return v.owner->apply<Op>(attributes{{first, last}, 2}, v);
  shape folded = s;
  folded.order = static_cast<int>(last);
  v = reshape_to(v, folded);
  for (int i = folded.order; i > first; --i) {
    v = v.owner->apply<Op>(attributes{{i - 1, i}, 2}, v);
    shape rest = v.extents();
    if (i - 1 > first) --rest.order;
    v = reshape_to(v, rest);
  }
  shape result = s;
  for (index_t i = first; i < last; ++i) result[static_cast<int>(i)] = 1;
  return reshape_to(v, result);
}
}  // namespace detail

constexpr value sum_dims(value v, index_t first, index_t last) {
  return detail::fold_dims<op::reduce_sum>(v, first, last);
}
constexpr value max_dims(value v, index_t first, index_t last) {
  return detail::fold_dims<op::reduce_max>(v, first, last);
}
constexpr value min_dims(value v, index_t first, index_t last) {
  return detail::fold_dims<op::reduce_min>(v, first, last);
}

constexpr value result_of(value y, int k) {
  const node& from = y.get();
  tensor_spec specs[max_operands + 1]{};
  for (int i = 0; i < from.operands; ++i) specs[i] = (*y.owner)[from.operand[i]].result;
  node n;
  n.op = &info_of<op::result>;
  n.at = {{k}, 1};
  n.result = from.op->result_spec(k, specs);
  n.operand[0] = y.id;
  n.operands = 1;
  n.needs_gradient = from.needs_gradient && is_floating(n.result.type);
  return y.owner->intern(n);
}

constexpr value constant_in_derivative(value v) {
  return v.owner->differentiated ? v : v.owner->apply<op::detach>(attributes{}, v);
}

constexpr value element_count(value beside, const shape& s) {
  compute_graph& g = *beside.owner;
  return g.extent(product(g.dims, s, 0, s.order), op::floating(beside.type()));
}

constexpr value sum_to(value v, const shape& target) {
  const shape to = v.owner->dims.canonical(target);
  if (const dtype t = v.type(); is_narrow(t) && v.owner->dims.canonical(v.extents()) != to)
    return cast_to(sum_to(cast_to(v, dtype::f32), target), t);
  const int extra = v.extents().order - to.order;
  for (int i = v.extents().order; i > extra;) {
    const int last = i;
    while (i > extra && to[i - 1 - extra] == 1 &&
           v.owner->dims.canonical(v.extents()[i - 1]) != 1)
      --i;
    if (i < last) v = sum_dims(v, i, last);
    else --i;
  }
  if (extra > 0) v = sum_dims(v, 0, extra);
  return reshape_to(v, to);
}

constexpr value gather_of(value x, value index, index_t dim) {
  return x.owner->apply<op::gather>(attributes{{dim}, 1}, x, index);
}

constexpr value random_like(value like, index_t draw) {
  return like.owner->apply<op::uniform_like>(attributes{{draw}, 1}, like);
}

constexpr value merge_leading(value v, int order) {
  if (v.extents().order == order) return v;
  shape merged;
  merged.append(product(v.owner->dims, v.extents(), 0, v.extents().order - order + 1));
  for (int i = order - 1; i > 0; --i) merged.append(v.extents().from_right(i - 1));
  return reshape_to(v, merged);
}

constexpr value expand_batch(value v, value other) {
  const shape a = v.extents(), b = other.extents();
  shape to;
  to.order = a.order > b.order ? a.order : b.order;
  for (int i = 0; i < to.order; ++i) {
    const index_t x = a.from_right(i), y = b.from_right(i);
    to[to.order - 1 - i] = i < 2 || x != 1 ? x : y;
  }
  return expand_to(v, to);
}

constexpr bool has_wide_cotangent(value v) {
  return is_narrow(v.type()) && v.get().op == &info_of<op::expand>;
}

constexpr value unslice(value g, value y, value x) {
  const int dim = static_cast<int>(y.attribute(0));
  const attributes at{{dim, y.attribute(1), x.extents()[dim], y.attribute(3)}, 4};
  return g.owner->apply<op::pad>(at, g);
}

constexpr value unpad(value g, value y, value x) {
  symbol_table& dims = g.owner->dims;
  const int dim = static_cast<int>(y.attribute(0));
  const index_t start = y.attribute(1), step = y.attribute(3);
  const index_t count = x.extents()[dim];
  if (step == 1 || count == 0) return slice_dim(g, dim, start, dims.add(start, count), step);
  const index_t span = dims.multiply(dims.subtract(count, 1), step);
  return slice_dim(g, dim, start, dims.add(dims.add(start, span), 1), step);
}

}  // namespace weft::graph
