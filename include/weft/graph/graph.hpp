// SPDX-License-Identifier: MIT
// The graph: an array of small structs, the same at compile time and at run time.
//
// Nodes stand in an order of dependence. Equal nodes are one node: `apply` finds the node that
// already computes what is asked for. Formulas of ops are called with `value`s, which append.
//
//   compute_graph g;
//   value x = g.leaf({dtype::f32, {1, {8}}}, leaf_role::variable);
//   value y = exp(x) * 2.0;              // the operators of expressions, now appending nodes
//
// The members that append are defined in graph/build.hpp; flatten.hpp makes a graph of an expression.
#pragma once

#include <weft/base/error.hpp>
#include <weft/base/sequence.hpp>
#include <weft/device/native.hpp>
#include <weft/op/all.hpp>
#include <weft/shape/symbols.hpp>

namespace weft::graph {

class compute_graph;
struct node;
struct value;

inline constexpr int max_operands = 8;

/// Cotangents of the operands of node `y`, or -1 each.
using vjp_function = void (*)(compute_graph& g, int y, int cotangent, int* operand_cotangents);

/// What passes ask of an op, made from its struct by `info_of` (graph/op_info.hpp).
struct op_info {
  const char* name;
  op::op_kind kind;
  int results;
  int arity;  // 0: a source, which has no functions
  inferred (*infer)(symbol_table& dims, const attributes& at, const tensor_spec* operands);
  /// Form of the k-th result, k > 0, for ops that have several.
  tensor_spec (*result_spec)(int k, const tensor_spec* operands);
  /// The type that operands are brought to, from their promoted type, where `converts`.
  dtype (*operand_type)(dtype promoted);
  bool converts;
  /// Whether operands of storage types are computed with in a wider type: op/rule.hpp.
  bool widens;
  /// Whether it has a derivative: graph/op_info.hpp finds it.
  bool has_vjp;
  /// That of an op of a user; those of the library's are in a table.
  vjp_function vjp;
  /// The formula of a composed op, or the composed form of a native one; null if there is none.
  int (*expand)(compute_graph& g, const node& n);
  /// Number in the library's list of ops; -1 for an op of a user.
  int number;
  /// The same for element-wise ops and reductions, whose number is their code in kernels; else -1.
  int instruction;
  /// Which attributes are extents, as bits.
  unsigned extents;
  /// The native function per device, see device/native.hpp.
  const native_code* native;
};

template <class Op>
constexpr const op_info& find_info();

/// The op of a node: equal where it is the same description.
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

struct node {
  op_pointer op{};
  attributes at{};
  tensor_spec result{};
  int operand[max_operands]{};
  int operands = 0;
  bool needs_gradient = false;
  leaf_role role = leaf_role::untracked;  // of leaves

  constexpr bool computes_same(const node& other) const {
    if (op != other.op || operands != other.operands) return false;
    for (int i = 0; i < operands; ++i)
      if (operand[i] != other.operand[i]) return false;
    return at == other.at && result == other.result;
  }
};

/// Handle of a node while the graph is built. Its base lets formulas written anywhere find the
/// functions and operators of weft.
struct value : graph_value_base {
  compute_graph* owner = nullptr;
  int id = -1;

  constexpr value() = default;
  constexpr value(compute_graph* g, int node_id) : owner(g), id(node_id) {}

  constexpr const node& get() const;
  constexpr dtype type() const { return get().result.type; }
  constexpr const shape& extents() const { return get().result.extents; }
  constexpr const attributes& attribute_values() const { return get().at; }
  constexpr index_t attribute(int i) const { return get().at[i]; }
};

class compute_graph {
 public:
  sequence<node> nodes;
  sequence<int> outputs;
  symbol_table dims;
  int leaves = 0;
  int arguments = 0;
  int sizes = 0;
  int randoms = 0;

  constexpr int size() const { return nodes.size(); }
  constexpr const node& operator[](int i) const { return nodes[i]; }

  /// A tensor operand. Dynamic extents become symbols.
  constexpr value leaf(tensor_spec f, leaf_role role);
  /// A number given at run time.
  constexpr value argument(dtype t);
  template <class Number>
  constexpr value constant(Number x, dtype t);
  /// The extent `e`, a number or a symbol, as a value.
  constexpr value extent(index_t e, dtype t);
  /// 0, 1, ..., extent - 1.
  constexpr value coordinate(index_t extent, dtype t = dtype::i64);

  /// Op on operands, some of which may be plain numbers.
  template <class Op, class... A>
  constexpr value apply(const attributes& at, A... a) {
    [[maybe_unused]] const dtype beside = type_beside(a...);
    value v[] = {as_value(beside, a)...};
    return apply(find_info<Op>(), at, v, sizeof...(A));
  }
  /// The same for an op that is known by its description.
  constexpr value apply(const op_info& op, const attributes& at, value* operands, int count);

  /// The node as given, or the equal one that is already there.
  constexpr value intern(const node& n) {
    if (2 * nodes.size() >= table_.size()) rehash();
    int slot = first_slot(n);
    for (; table_[slot] >= 0; slot = (slot + 1) & (table_.size() - 1))
      if (nodes[table_[slot]].computes_same(n)) return {this, table_[slot]};
    table_[slot] = nodes.size();
    nodes.push_back(n);
    return {this, nodes.size() - 1};
  }
  /// The node as given, always a new one: leaves, random numbers.
  constexpr value append(const node& n) {
    nodes.push_back(n);
    return {this, nodes.size() - 1};
  }

 private:
  /// The element type a plain number takes: that of the last graph value among the operands.
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

// What formulas of ops call besides the functions of users; found by argument-dependent lookup.
// Defined in graph/build.hpp.

/// The cotangent of an operand that has none.
constexpr value no_gradient(value g);
constexpr value cast_to(value v, dtype t);
constexpr value reshape_to(value v, const shape& to);
constexpr value expand_to(value v, const shape& to);
/// Sums `v` over the dims along which a value of shape `to` was broadcast to it.
constexpr value sum_to(value v, const shape& to);
constexpr value permute_dims(value v, const attributes& order);
/// The last two dims exchanged.
constexpr value transposed(value v);
constexpr value slice_dim(value v, int dim, index_t start, index_t stop, index_t step = 1);
/// The product of matrices with equal batch extents.
constexpr value contract_of(value a, value b);
/// Folds over dims [first, last), which stay with extent 1.
constexpr value sum_dims(value v, index_t first, index_t last);
constexpr value max_dims(value v, index_t first, index_t last);
constexpr value min_dims(value v, index_t first, index_t last);
/// The k-th result, k > 0, of the native op `y`.
constexpr value result_of(value y, int k);
/// The value, as a constant for differentiation.
constexpr value constant_in_derivative(value v);
/// Number of elements of `s` as a floating value, in the type of `beside` if that is floating.
constexpr value element_count(value beside, const shape& s);
constexpr value gather_of(value x, value index, index_t dim);
/// Uniform numbers of the shape and dtype of `like`, another draw at each call.
constexpr value random_like(value like);
/// The leading dims merged so that `order` dims are left.
constexpr value merge_leading(value v, int order);
/// `v` with its batch dims (all but two) expanded to those of its product with `other`.
constexpr value expand_batch(value v, value other);
/// The cotangent of the operand of slice `y` of `x`: zeros around `g`.
constexpr value unslice(value g, value y, value x);
/// The cotangent of the operand of pad `y` of `x`: the part of `g` that came from it.
constexpr value unpad(value g, value y, value x);

}  // namespace weft::graph
