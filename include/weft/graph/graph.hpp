// SPDX-License-Identifier: MIT
// The graph: an array of plain structs, the same at compile time and at run time.
//
// Nodes are topologically ordered. Equal nodes are merged: `apply` returns the existing node if there is one.
// Formulas of ops are called with `value`s, whose operators append nodes.
//
//   compute_graph g;
//   value x = g.leaf({dtype::f32, {1, {8}}}, true);
//   value y = exp(x) * 2.0;              // the operators of expressions, here appending nodes
//
// Member functions that append are defined in graph/build.hpp; flatten.hpp converts an expression to a graph.
#pragma once

#include <weft/base/error.hpp>
#include <weft/base/sequence.hpp>
#include <weft/device/native.hpp>
#include <weft/op/all.hpp>
#include <weft/shape/placement.hpp>
#include <weft/shape/symbols.hpp>

namespace weft::graph {

class compute_graph;
struct node;
struct value;

/// Maximum number of operands of a node.
inline constexpr int max_operands = 8;

/// Maximum number of results of an op.
inline constexpr int max_results = 3;

/// Computes the cotangents of the operands of node `y`, -1 for those without, from those of its results.
using vjp_function = void (*)(compute_graph& g, int y, const int* cotangents, int* operand_cotangents);

/// The properties of an op that passes use, derived from its struct by `info_of` (graph/op_info.hpp).
struct op_info {
  const char* name;
  op::op_kind kind;
  int results;
  int cotangents;  // the number of results whose cotangents its derivative takes
  int arity;  // 0: a source, which has no functions
  inferred (*infer)(symbol_table& dims, const attributes& at, const tensor_spec* operands);
  /// Spec of the k-th result, k > 0, for ops with several results.
  tensor_spec (*result_spec)(int k, const tensor_spec* operands);
  /// The type to which operands are converted, given their promoted type, if `converts`.
  dtype (*operand_type)(dtype promoted);
  bool converts;
  /// Whether operands of storage types are widened: op/rule.hpp.
  bool widens;
  bool in_floats;
  /// Whether the op declares a derivative.
  bool has_vjp;
  /// The derivative of a user-defined op; those of the library are in a table.
  vjp_function vjp;
  /// Appends the formula of a composed op, or the composed form of a native one; null if there is none.
  int (*expand)(compute_graph& g, const node& n);
  /// Number in the library's list of ops; -1 for a user-defined op.
  int number;
  /// The same for element-wise ops and reductions, whose number is their opcode in kernels; otherwise -1.
  int instruction;
  /// Which attributes are extents, as bits.
  unsigned extents;
  /// The code of a native op or a contraction, see device/native.hpp.
  const native_code* native;
  /// The dims that ranks may divide, see op/rule.hpp; null if none.
  const char* divides;
};

/// The op_info of `Op`; defined in graph/op_info.hpp.
template <class Op>
constexpr const op_info& find_info();

/// The op of a node; compares by identity of the op_info.
class op_pointer {
 public:
  constexpr op_pointer() = default;
  constexpr op_pointer(const op_info* info) : info_(info) {}
  constexpr const op_info& operator*() const { return *info_; }
  constexpr const op_info* operator->() const { return info_; }
  friend constexpr bool operator==(op_pointer a, op_pointer b) { return same_object(a.info_, b.info_); }

 private:
  static constexpr op_info none_{};
  const op_info* info_ = &none_;
};

/// An op applied to operands, which are indices of earlier nodes.
struct node {
  op_pointer op{};
  attributes at{};
  tensor_spec result{};
  int operand[max_operands]{};
  int operands = 0;
  bool needs_gradient = false;
  leaf_role role = leaf_role::untracked;  // for leaves

  constexpr bool computes_same(const node& other) const {
    if (op != other.op || operands != other.operands) return false;
    for (int i = 0; i < operands; ++i)
      if (operand[i] != other.operand[i]) return false;
    return at == other.at && result == other.result;
  }
};

/// Handle of a node while the graph is built. Through its base class, formulas in any namespace find the
/// functions and operators of weft.
struct value : graph_value_base {
  compute_graph* owner = nullptr;
  int id = -1;

  constexpr value() = default;
  constexpr value(compute_graph* g, int node_id) : owner(g), id(node_id) {}

  constexpr const node& get() const;
  constexpr dtype type() const { return get().result.type; }
  // By value: references to nodes are valid only until the graph grows, which computing another operand can
  // cause.
  constexpr shape extents() const { return get().result.extents; }
  constexpr attributes attribute_values() const { return get().at; }
  constexpr index_t attribute(int i) const { return get().at[i]; }
};

/// Nodes, outputs and symbolic extents of a computation.
class compute_graph {
 public:
  sequence<node> nodes;
  sequence<int> outputs;
  symbol_table dims;
  int leaves = 0;
  int arguments = 0;
  int sizes = 0;
  bool differentiated = false;  // no derivative will be taken: constant_in_derivative(v) is v
  bool keeps_formulas = false;  // composed ops without a vjp stay nodes and are not expanded

  constexpr int size() const { return nodes.size(); }
  constexpr const node& operator[](int i) const { return nodes[i]; }

  /// Appends a tensor operand; its dynamic extents become symbols. `may_be`: how ranks may divide it.
  constexpr value leaf(tensor_spec f, leaf_role role, const placement& may_be = {});
  /// Appends a number given at run time.
  constexpr value argument(dtype t);
  /// Appends the number `x` as a constant of dtype `t`.
  template <class Number>
  constexpr value constant(Number x, dtype t);
  /// Appends the extent `e`, a number or symbol, as a value.
  constexpr value extent(index_t e, dtype t);
  /// Appends 0, 1, ..., extent - 1.
  constexpr value coordinate(index_t extent, dtype t = dtype::i64);

  /// Appends `Op` applied to operands, some of which may be plain numbers.
  template <class Op, class... A>
  constexpr value apply(const attributes& at, A... a) {
    [[maybe_unused]] const dtype beside = type_beside(a...);
    value v[] = {as_value(beside, a)...};
    return apply(find_info<Op>(), at, v, sizeof...(A));
  }
  /// The same for an op given by its op_info.
  constexpr value apply(const op_info& op, const attributes& at, value* operands, int count);

  /// Returns the existing node that is equal to `n`, or appends `n`.
  constexpr value intern(const node& n) {
    if (2 * nodes.size() >= table_.size()) rehash();
    int slot = first_slot(n);
    for (; table_[slot] >= 0; slot = (slot + 1) & (table_.size() - 1))
      if (nodes[table_[slot]].computes_same(n)) return {this, table_[slot]};
    table_[slot] = nodes.size();
    nodes.push_back(n);
    return {this, nodes.size() - 1};
  }
  /// Appends `n` although an equal node may exist; a later `intern` of an equal node may return it.
  constexpr value append(const node& n) {
    nodes.push_back(n);
    return {this, nodes.size() - 1};
  }

 private:
  /// The element type that a plain number takes: that of the last graph value among the operands.
  template <class... A>
  static constexpr dtype type_beside(const A&... a) {
    dtype t = dtype::f32;
    const auto look = [&](const auto& x) {
      if constexpr (graph_value<decltype(x)>) t = x.type();
    };
    (look(a), ...);
    return t;
  }
  constexpr value as_value(dtype, value v) { return v; }
  template <class Number>
  constexpr value as_value(dtype t, Number x) { return constant(x, number_beside<Number>(t)); }

  constexpr int first_slot(const node& n) const {
    std::uint64_t h = static_cast<std::uint64_t>(n.at[0]) * std::uint64_t{0x9E3779B97F4A7C15} +
                      static_cast<std::uint64_t>(n.at[1]) * std::uint64_t{0x94D049BB133111EB} +
                      static_cast<std::uint64_t>(n.op->instruction + 2);
    for (int i = 0; i < n.operands; ++i)
      h = (h ^ static_cast<std::uint64_t>(n.operand[i])) * std::uint64_t{0xBF58476D1CE4E5B9};
    return static_cast<int>((h ^ h >> 29) & static_cast<std::uint64_t>(table_.size() - 1));
  }
  constexpr void rehash() {
    int room = 64;
    while (room < 4 * nodes.size()) room *= 2;
    table_ = sequence<int>(room, -1);
    for (int i = 0; i < nodes.size(); ++i) {
      int slot = first_slot(nodes[i]);
      while (table_[slot] >= 0) slot = (slot + 1) & (table_.size() - 1);
      table_[slot] = i;
    }
  }

  sequence<int> table_;
};

constexpr const node& value::get() const { return owner->nodes[id]; }

// Functions that formulas of ops call, in addition to those for users; found by argument-dependent lookup.
// Defined in graph/build.hpp.

/// Stands for the cotangent of an operand that has none.
constexpr value no_gradient(value g);
/// `v` converted to dtype `t`; `v` itself if it has it.
constexpr value cast_to(value v, dtype t);
/// `v` reshaped or expanded to extents `to`; `v` itself if it has them.
constexpr value reshape_to(value v, const shape& to);
constexpr value expand_to(value v, const shape& to);
/// Sums `v` over the dims along which a value of shape `to` was broadcast.
constexpr value sum_to(value v, const shape& to);
/// Dim i of the result is dim order[i] of `v`.
constexpr value permute_dims(value v, const attributes& order);
/// `v` with the last two dims swapped.
constexpr value transposed(value v);
/// Elements start, start + step, ... below stop of dim `dim`.
constexpr value slice_dim(value v, int dim, index_t start, index_t stop, index_t step = 1);
/// The product of matrices with equal batch extents.
constexpr value contract_of(value a, value b);
/// Reductions over dims first to last - 1, which are kept with extent 1.
constexpr value sum_dims(value v, index_t first, index_t last);
constexpr value max_dims(value v, index_t first, index_t last);
constexpr value min_dims(value v, index_t first, index_t last);
/// The k-th result, k > 0, of the native op `y`.
constexpr value result_of(value y, int k);
/// `v`, treated as a constant in differentiation.
constexpr value constant_in_derivative(value v);
/// Number of elements of `s`, in the dtype of `beside` if that is floating, otherwise in f32.
constexpr value element_count(value beside, const shape& s);
/// Elements of `x` at the indices along dim `dim`.
constexpr value gather_of(value x, value index, index_t dim);
/// Uniform random numbers with the shape and dtype of `like`, from the draw with this number.
constexpr value random_like(value like, index_t draw);
/// `v` with its leading dims merged so that `order` dims remain.
constexpr value merge_leading(value v, int order);
/// `v` with its batch dims (all but the last two) broadcast to those of its product with `other`.
constexpr value expand_batch(value v, value other);
/// Whether the cotangent of `v` stays in f32: true for a bf16 or f16 value that `expand` repeats, whose
/// cotangent is summed before it is rounded.
constexpr bool has_wide_cotangent(value v);
/// The cotangent of the operand x of slice `y`: `g` surrounded by zeros.
constexpr value unslice(value g, value y, value x);
/// The cotangent of the operand x of pad `y`: the part of `g` that corresponds to it.
constexpr value unpad(value g, value y, value x);

}  // namespace weft::graph
