// SPDX-License-Identifier: MIT
// Invariants of graphs, checked after each pass. Off in users' builds; the tests define WEFT_VERIFY, and then
// a pass that violates an invariant does not compile.
//
//   const compute_graph lean = verified(expanded(g), verify_expanded);
#pragma once

#include <weft/graph/fuse.hpp>
#include <weft/graph/views.hpp>

namespace weft {

/// A violated invariant, and the node or step concerned.
struct broken_promise {
  const char* what = nullptr;
  int at = -1;
  constexpr explicit operator bool() const { return what != nullptr; }
};

/// `x`, checked by `verify` if WEFT_VERIFY is defined. Throws error if an invariant is violated.
template <class T, class Verify>
constexpr T verified(T x, [[maybe_unused]] Verify verify) {
#ifdef WEFT_VERIFY
  if (const broken_promise broken = verify(x))
    throw error(std::string("weft: a pass broke its promise: ") + broken.what + " at " +
                std::to_string(broken.at));
#endif
  return x;
}

}  // namespace weft

namespace weft::graph {

namespace detail {
/// A number for each extent: the value of its formula, with made-up numbers for extents without a formula.
/// Equal extents with different formulas have equal numbers.
class sampled_extents {
 public:
  constexpr explicit sampled_extents(const symbol_table& dims)
      : dims_(dims), numbers_(dims.symbols.size(), 0), known_(dims.symbols.size(), false) {
    sequence<bool> has_formula(dims.symbols.size(), false);
    for (int i = 0; i < dims.symbols.size(); ++i)
      if (is_formula(i) && !known(-2 - i)) has_formula[representative(i)] = true;
    for (int i = 0; i < dims.symbols.size(); ++i)
      if (!known(-2 - i) && !has_formula[representative(i)]) set(i, made_up(i));
    for (int i = 0; i < dims.symbols.size(); ++i) {
      compute_formulas();
      if (!known(-2 - i)) set(i, made_up(i));  // cyclic formulas
    }
  }
  constexpr double operator()(index_t e) const {
    e = dims_.canonical(e);
    return symbol_table::is_symbol(e) ? numbers_[symbol_table::number_of(e)] : static_cast<double>(e);
  }

 private:
  constexpr bool is_formula(int i) const {
    return dims_.symbols[i].kind != symbol_kind::leaf_extent && dims_.symbols[i].kind != symbol_kind::given;
  }
  constexpr int representative(int i) const { return symbol_table::number_of(dims_.canonical(-2 - i)); }
  constexpr bool known(index_t e) const {
    e = dims_.canonical(e);
    return !symbol_table::is_symbol(e) || known_[symbol_table::number_of(e)];
  }
  constexpr void set(int i, double number) {
    numbers_[representative(i)] = number;
    known_[representative(i)] = true;
  }
  static constexpr double made_up(int i) { return 1000.0 + 17.0 * i; }

  constexpr void compute_formulas() {
    for (bool found = true; found;) {
      found = false;
      for (int i = 0; i < dims_.symbols.size(); ++i) {
        const symbol& s = dims_.symbols[i];
        if (!is_formula(i) || known(-2 - i) || !known(s.a) || !known(s.b)) continue;
        set(i, value_of(s));
        found = true;
      }
    }
  }
  constexpr double value_of(const symbol& s) const {
    const double a = (*this)(s.a), b = (*this)(s.b);
    switch (s.kind) {
      case symbol_kind::add: return a + b;
      case symbol_kind::subtract: return a - b;
      case symbol_kind::multiply: return a * b;
      case symbol_kind::divide: return a / b;
      default: return 31.0 * static_cast<int>(s.kind) + 1.7 * a + 0.3 * b;
    }
  }

  const symbol_table& dims_;
  sequence<double> numbers_;
  sequence<bool> known_;
};
constexpr bool equal_extents(const symbol_table& dims, const shape& a, const shape& b) {
  if (dims.canonical(a) == dims.canonical(b)) return true;
  if (a.order != b.order) return false;
  const sampled_extents sampled(dims);
  for (int i = 0; i < a.order; ++i) {
    const double difference = sampled(a[i]) - sampled(b[i]);
    if (difference > 1e-6 || difference < -1e-6) return false;
  }
  return true;
}
}  // namespace detail

/// After any pass: operands precede their nodes, and every spec follows from those of the operands by the
/// op's law.
constexpr broken_promise verify_graph(const compute_graph& g) {
  symbol_table dims = g.dims;
  for (int i = 0; i < g.size(); ++i) {
    const node& n = g[i];
    if (n.op == op_pointer()) return {"a node has no op", i};
    if (n.operands < 0 || n.operands > max_operands) return {"a node has too many operands", i};
    tensor_spec specs[max_operands + 1]{};
    for (int k = 0; k < n.operands; ++k) {
      if (n.operand[k] < 0 || n.operand[k] >= i) return {"an operand does not stand before its node", i};
      specs[k] = {g[n.operand[k]].result.type, dims.canonical(g[n.operand[k]].result.extents)};
    }
    if (n.op == &info_of<op::leaf> && (n.at[0] < 0 || n.at[0] >= g.leaves))
      return {"a leaf has no number", i};
    if (n.op->arity == 0 || n.op->kind == op::op_kind::result) continue;
    const inferred law = n.op->infer(dims, n.at, specs);
    if (!law.holds || !law.types_fit) return {"operands do not fit the law of their op", i};
    const bool same = law.value.type == n.result.type &&
                      detail::equal_extents(dims, law.value.extents, n.result.extents);
    if (!same) return {"a spec does not follow from its operands", i};
  }
  for (int o : g.outputs)
    if (o < -1 || o >= g.size()) return {"an output is not a node", o};
  return {};
}

/// After `expanded`: only ops that kernels, views and native code implement remain, in types of computation.
constexpr broken_promise verify_expanded(const compute_graph& g) {
  for (int i = 0; i < g.size(); ++i) {
    const node& n = g[i];
    const bool only_differentiates = n.op == &info_of<op::detach> || n.op == &info_of<op::differentiated_at>;
    if (n.op->kind == op::op_kind::composed || only_differentiates) return {"a formula is left", i};
    for (int k = detail::first_number(*n.op); n.op->widens && k < n.operands; ++k)
      if (const dtype t = g[n.operand[k]].result.type; compute_type(t) != t)
        return {"an op computes with a storage type", i};
  }
  return verify_graph(g);
}

/// For a joint graph whose ops are expanded (autodiff::with_cotangents): cotangents have the types and shapes
/// of their leaves.
constexpr broken_promise verify_cotangents(const compute_graph& g) {
  for (int i = 0; i < g.size(); ++i) {
    if (g[i].op != &info_of<op::leaf> || g[i].at[0] + 1 >= g.outputs.size()) continue;
    const int o = g.outputs[static_cast<int>(g[i].at[0]) + 1];
    if (o < 0) continue;
    if (g[o].result.type != g[i].result.type) return {"a cotangent has another type than its leaf", o};
    if (!detail::equal_extents(g.dims, g[o].result.extents, g[i].result.extents))
      return {"a cotangent has another shape than its leaf", o};
  }
  return verify_expanded(g);
}

/// After `with_legal_views`: each output has its own memory.
constexpr broken_promise verify_views(const compute_graph& g) {
  for (int k = 0; k < g.outputs.size(); ++k) {
    const int o = g.outputs[k];
    if (o < 0) continue;
    const int base = reshaped_from(g, o);
    const op::op_kind kind = g[base].op->kind;
    if (kind == op::op_kind::view || kind == op::op_kind::leaf || kind == op::op_kind::constant)
      return {"an output has no memory of its own", o};
    for (int j = 0; j < k; ++j)
      if (g.outputs[j] >= 0 && reshaped_from(g, g.outputs[j]) == base)
        return {"two outputs share their memory", o};
  }
  return verify_expanded(g);
}

/// After `fuse`: every node that can be fused is in exactly one group, in order, and has the group's space or
/// is a row value of it. No group has more than max_group nodes.
constexpr broken_promise verify_fusion(const compute_graph& g, const fusion& f) {
  sequence<int> seen(g.size(), 0);
  for (int k = 0; k < f.groups.size(); ++k) {
    const kernel_group& group = f.groups[k];
    if (group.nodes.size() > max_group) return {"a group has too many nodes", k};
    for (int j = 0; j < group.nodes.size(); ++j) {
      const int m = group.nodes[j];
      ++seen[m];
      if (f.group_of[m] != k) return {"a node is in a group that it does not name", m};
      if (j > 0 && group.nodes[j - 1] >= m) return {"the nodes of a group are out of order", m};
      const bool folds = g[m].op->kind == op::op_kind::reduce;
      const shape& space = folds ? g[g[m].operand[0]].result.extents : g[m].result.extents;
      if (!(space == group.space) && !(space == detail::row_shape(group.space)))
        return {"a node does not fit the space of its group", m};
    }
  }
  for (int i = 0; i < g.size(); ++i)
    if (seen[i] != (detail::fuses(g[i]) ? 1 : 0)) return {"a node is in no group, or in several", i};
  return {};
}

}  // namespace weft::graph
