// SPDX-License-Identifier: MIT
// Translates graphs to operators of ONNX.
//
//   onnx::known_values values;                         // the tensors that the program reads
//   onnx::translator t(file, g, operands, numbers, values);
//   const std::string name = t.name_of(g.outputs[0]);
//
// bf16 and f16 values are f32 in the file, rounded wherever weft rounds, so that they are bitwise identical
// and every operator has kernels. Only inputs, outputs and initializers have their own type. Extents that are
// not numbers are computed in the file from the extents of its inputs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/graph/rewrite.hpp>
#include <weft/onnx/model.hpp>
#include <weft/run/bind.hpp>
#include <weft/run/symbols.hpp>

namespace weft::onnx {

/// The dtype in which the file computes with values of dtype `t`.
constexpr dtype type_in_file(dtype t) { return is_narrow(t) ? dtype::f32 : t; }

/// `x` converted to type `to` by Cast.
std::string converted(operator_graph& in, const std::string& x, dtype to);
/// The value `x` of type `t` in type_in_file(t).
inline std::string widened(operator_graph& in, const std::string& x, dtype t) {
  return is_narrow(t) ? converted(in, x, type_in_file(t)) : x;
}

/// An extent in a file: a number, or the name of its value, i64 [1].
struct extent {
  index_t number = 0;
  std::string value{};
  int symbol = -1;  // the dimension of an input that it equals; see known_values

  bool is_number() const { return value.empty(); }
};
/// The value of extents, i64 [n].
std::string value_of(operator_graph& in, const std::vector<extent>& all);

/// A value of the file that a program reads as a tensor.
struct known_value {
  std::shared_ptr<tensor_state> state;
  std::string name;  // of type type_in_file
  std::vector<extent> extents;
};

/// The tensors that have values in the file, and the names of the symbolic extents of its inputs.
class known_values {
 public:
  /// A new symbol, called `otherwise` if `name` is empty; for a name used before, the same symbol.
  int symbol(const std::string& name, const std::string& otherwise);
  /// States that the symbols are equal.
  void unify(int a, int b);
  /// States that the symbol is a number.
  void fix(int symbol, index_t number);
  /// The symbol as a dimension of an input or output.
  dimension dimension_of(int symbol) const;

  void add(known_value v) { values_.insert_or_assign(v.state.get(), std::move(v)); }
  /// The value of a tensor; null if it has none.
  const known_value* find(const tensor_state* t) const;

 private:
  struct symbol_entry {
    std::string name;
    bool is_given;  // whether the name was given by the caller
    int same_as;
    std::optional<index_t> number;
  };
  int representative(int symbol) const;

  std::map<const tensor_state*, known_value> values_;
  std::vector<symbol_entry> symbols_;
  std::map<std::string, int> by_name_;
};

/// Whether the formula `n` of a graph has operators of its own in ONNX and need not be expanded.
bool has_operator(const graph::compute_graph& g, const graph::node& n);

/// `g` with all other formulas expanded and with canonical extents.
graph::compute_graph with_operators(const graph::compute_graph& g);

/// Translates one graph, made by with_operators.
class translator {
 public:
  /// `o` are the operands of the graph, whose tensors are among `values`, and `numbers` the values of its
  /// symbols.
  translator(operator_graph& to, const graph::compute_graph& g, const runtime::operands& o,
             const runtime::symbol_values& numbers, known_values& values);

  /// The name of the value of node `i`, of type type_in_file. Throws value_error if an op on which it depends
  /// cannot be exported.
  const std::string& name_of(int i);
  /// The extents of node `i`.
  std::vector<extent> extents_of(int i) { return extents_of(g_[i].result.extents); }

 private:
  using node = graph::node;

  std::string translate(const node& n);
  std::string composed(const node& n);
  std::string native(const node& n);

  const known_value& value_of_leaf(index_t number) const {
    return *values_.find(operands_.leaves[static_cast<std::size_t>(number)].get());
  }
  const std::string& operand(const node& n, int k) { return name_of(n.operand[k]); }
  const tensor_spec& spec(const node& n, int k) const { return g_[n.operand[k]].result; }
  /// Operand k converted to type `t`.
  std::string operand_as(const node& n, int k, dtype t) { return cast(operand(n, k), spec(n, k).type, t); }
  names operands(const node& n);
  /// An operand that is an index, as i64 or i32.
  std::string index(const node& n, int k);

  // Numbers, types and extents.
  std::string scalar(any_number x, dtype t);
  template <class Number>
  std::string scalar(Number x, dtype t) {
    return scalar(any_number::of(t, x), t);
  }
  std::string cast_in_file(const std::string& x, dtype to) { return converted(to_, x, to); }
  /// `x`, of type `from`, converted as op cast does.
  std::string cast(const std::string& x, dtype from, dtype to);
  std::string integer_of_floating(const std::string& x, dtype from, dtype to);
  /// `x`, computed in type_in_file(t), rounded to type `t`.
  std::string rounded(const std::string& x, dtype t);
  extent extent_of(index_t e);
  /// The sum, difference, product or quotient of two extents.
  extent combined(symbol_kind how, const extent& a, const extent& b);
  std::vector<extent> extents_of(const shape& s);
  std::string value_of(const std::vector<extent>& all) { return onnx::value_of(to_, all); }
  std::string value_of(index_t e) { return value_of({extent_of(e)}); }
  std::string scalar_of(index_t e);
  index_t number_of(index_t e) const { return runtime::detail::number_of(numbers_, g_.dims.canonical(e)); }
  void note_symbols();

  // Elements at other positions.
  std::string reshaped(const std::string& x, const std::vector<extent>& to);
  std::string reshaped(const std::string& x, const shape& to) { return reshaped(x, extents_of(to)); }
  std::string permuted(const std::string& x, const integers& order);
  std::string expanded(const std::string& x, const shape& to);
  std::string zeros(dtype t, const shape& s) { return expanded(scalar(0, t), s); }
  std::string sliced(const std::string& x, int dim, const std::string& start, const std::string& stop,
                     index_t step = 1);
  std::string padded(const std::string& x, int dim, const extent& before, const extent& after, dtype t);
  /// first, first + step, ... as i64, `count` of them.
  std::string range(index_t count, index_t step = 1);
  std::string slice(const node& n);
  std::string pad(const node& n);
  std::string windows(const node& n);

  // Ops.
  std::string sign(const node& n);
  std::string log1p(const node& n);
  std::string expm1(const node& n);
  std::string reduced(const std::string& x, const char* op, const integers& dims, bool keep);
  std::string reduction(const node& n, const char* op);
  std::string convolution(const node& n, const char* op);
  std::string pool2d(const node& n, const char* op);
  std::string batch_norm(const node& n);
  std::string standardize(const node& n);
  std::string attention(const node& n);
  std::string dims_reduction(const node& n, const char* op);
  /// The first `count` (i64 [1]) elements of operand 0, sorted along dim v0. `which`: 0 for the elements, 1
  /// for their positions.
  std::string ordered(const node& n, const std::string& count, bool descending, int which);
  std::string ordered(const node& n, int which);
  std::string extremum_position(const node& n);
  std::string cumprod(const node& n);
  std::string index_add(const node& n);
  std::string checked_index(const node& n);
  [[noreturn]] void refuse_op(const node& n, const char* why) const;
  [[noreturn]] void refuse_random(const node& n) const;
  /// Whether an operand is the number 0.
  bool is_zero(const node& n, int k) const;

  operator_graph& to_;
  const graph::compute_graph& g_;
  const runtime::operands& operands_;
  const runtime::symbol_values& numbers_;
  known_values& values_;
  std::vector<std::string> names_;     // by node
  std::map<index_t, extent> extents_;  // of symbols
};

}  // namespace weft::onnx

#ifndef WEFT_COMPILED
#include <weft/onnx/impl/translator.ipp>
#include <weft/onnx/impl/translator_ops.ipp>
#endif
