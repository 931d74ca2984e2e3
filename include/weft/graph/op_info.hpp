// SPDX-License-Identifier: MIT
// Derivation of an op's op_info from its struct.
#pragma once

#include <weft/graph/graph.hpp>
#include <weft/op/all.hpp>

namespace weft::graph {

namespace detail {

template <class Op, int... I>
concept has_plain_value = requires(value v) { Op::value(((void)I, v)...); };
template <class Op, int... I>
concept has_attributed_value =
    requires(value v, const attributes& at) { Op::value(at, ((void)I, v)...); };

/// Calls Op::value with the values `v`, preceded by the attributes if it takes them.
template <class Op, int... I>
constexpr value call_value(const attributes& at, const value* v, std::integer_sequence<int, I...>) {
  if constexpr (has_attributed_value<Op, I...>) return Op::value(at, v[I]...);
  else return Op::value(v[I]...);
}

template <class Op, class Operands = std::make_integer_sequence<int, Op::arity>>
inline constexpr bool has_value = false;
template <class Op, int... I>
inline constexpr bool has_value<Op, std::integer_sequence<int, I...>> =
    has_plain_value<Op, I...> || has_attributed_value<Op, I...>;

/// Whether Op declares a vjp, without instantiating it: if Op does, the name is ambiguous here.
struct with_vjp {
  void vjp();
};
template <class Op>
struct with_two : Op, with_vjp {};
template <class Op>
inline constexpr bool has_vjp = !requires { &with_two<Op>::vjp; };

template <class Op>
constexpr int expand(compute_graph& g, const node& n) {
  value operands[max_operands]{};
  for (int i = 0; i < n.operands; ++i) operands[i] = {&g, n.operand[i]};
  return call_value<Op>(n.at, operands, std::make_integer_sequence<int, Op::arity>{}).id;
}

constexpr void spread(value cotangent, int* out) { out[0] = cotangent.id; }
template <std::size_t N>
constexpr void spread(const std::array<value, N>& cotangents, int* out) {
  for (std::size_t i = 0; i < N; ++i) out[i] = cotangents[i].id;
}

template <class Op>
constexpr void vjp(compute_graph& g, int y, const int* cotangents, int* out) {
  const node n = g[y];
  const auto given = [&] {
    if constexpr (Op::cotangents == 1) return value{&g, cotangents[0]};
    else {
      std::array<value, Op::cotangents> all;
      for (std::size_t k = 0; k < all.size(); ++k) all[k] = {&g, cotangents[k]};
      return all;
    }
  }();
  [&]<int... I>(std::integer_sequence<int, I...>) {
    spread(Op::vjp(given, value{&g, y}, value{&g, n.operand[I]}...), out);
  }(std::make_integer_sequence<int, Op::arity>{});
}

/// Whether the op_info of Op refers to its vjp. False for ops of the library: their derivatives use each
/// other, and clang compiles a constexpr function where it is named, so the compilation of derivatives would
/// be recursive.
template <class Op>
inline constexpr bool info_names_vjp = has_vjp<Op> && op::number_of_op<Op> < 0;

template <class Op>
constexpr vjp_function library_vjp() {
  if constexpr (Op::arity > 0 && has_vjp<Op>) return &vjp<Op>;
  else return nullptr;
}
template <class List>
struct library_vjps;
template <class... Ops>
struct library_vjps<op::op_list<Ops...>> {
  static constexpr vjp_function at[sizeof...(Ops)] = {library_vjp<Ops>()...};
};

template <class Op>
constexpr inferred infer(symbol_table& dims, const attributes& at, const tensor_spec* operands) {
  return Op::infer(dims, at, operands);
}

template <class Op>
constexpr op_info make_info() {
  static_assert(Op::arity <= max_operands, "weft: an op has at most 8 operands");
  static_assert(Op::results <= max_results && Op::cotangents <= Op::results);
  op_info info{};
  info.name = Op::name;
  info.kind = Op::kind;
  info.results = Op::results;
  info.cotangents = Op::cotangents;
  info.arity = Op::arity;
  info.widens = Op::widens;
  info.in_floats = Op::in_floats;
  info.extents = Op::extents;
  info.number = op::number_of_op<Op>;
  info.instruction = requires { Op::text; } || Op::kind == op::op_kind::reduce ? info.number : -1;
  if constexpr (Op::arity > 0) {
    info.infer = &infer<Op>;
    info.converts = requires { Op::operand_type(dtype{}); } && !std::is_same_v<Op, op::cast>;
    if constexpr (requires { Op::operand_type(dtype{}); }) info.operand_type = &Op::operand_type;
    info.has_vjp = has_vjp<Op>;
    if constexpr (info_names_vjp<Op>) info.vjp = &vjp<Op>;
    if constexpr (has_value<Op>) info.expand = &expand<Op>;
    if constexpr (Op::kind == op::op_kind::native || Op::kind == op::op_kind::contraction)
      info.native = &Op::code;
    if constexpr (requires { Op::divides; }) info.divides = Op::divides;
    if constexpr (Op::results > 1) info.result_spec = &Op::result_spec;
  }
  return info;
}

}  // namespace detail

/// The op_info of an op, whose address identifies the op in the graph. Instantiated when a program first
/// names the op.
template <class Op>
inline constexpr op_info info_of = detail::make_info<Op>();

template <class Op>
constexpr const op_info& find_info() {
  return info_of<Op>;
}

/// The derivative of `op`. `Ops` is the library's list.
template <class Ops>
constexpr vjp_function vjp_of(const op_info& op) {
  return op.number < 0 ? op.vjp : detail::library_vjps<Ops>::at[op.number];
}

}  // namespace weft::graph
