// SPDX-License-Identifier: MIT
// From the struct of an op to the pointers that passes follow.
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

/// Calls Op::value with the values `v`, and the attributes first if it takes them.
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

/// Whether Op declares a vjp, asked without compiling it: if it does, the name is ambiguous here.
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
constexpr void vjp(compute_graph& g, int y, int cotangent, int* out) {
  const node n = g[y];
  [&]<int... I>(std::integer_sequence<int, I...>) {
    spread(Op::vjp(value{&g, cotangent}, value{&g, y}, value{&g, n.operand[I]}...), out);
  }(std::make_integer_sequence<int, Op::arity>{});
}

template <class Op>
constexpr inferred infer(symbol_table& dims, const attributes& at, const form* operands) {
  return Op::infer(dims, at, operands);
}

template <class Op>
constexpr op_info make_info() {
  op_info info{};
  info.name = Op::name;
  info.kind = Op::kind;
  info.results = Op::results;
  info.instruction = -1;
  if constexpr (requires { Op::text; } || Op::kind == op::op_kind::reduce)
    info.instruction = op::number_of_op<Op>;
  if constexpr (Op::arity > 0) {
    info.infer = &infer<Op>;
    if constexpr (requires { Op::operand_type(dtype{}); } && !std::is_same_v<Op, op::cast>)
      info.operand_type = &Op::operand_type;
    if constexpr (has_vjp<Op>) info.vjp = &vjp<Op>;
    if constexpr (has_value<Op>) info.expand = &expand<Op>;
    if constexpr (Op::kind == op::op_kind::native) info.native = &Op::code;
    if constexpr (Op::results > 1) info.result_form = &Op::result_form;
  }
  return info;
}

template <int Count>
struct info_table {
  op_info infos[Count];
};
template <class... Ops>
constexpr info_table<sizeof...(Ops)> make_table(op::op_list<Ops...>) {
  return {{make_info<Ops>()...}};
}
inline constexpr auto library = make_table(op::all::list{});

template <class Op>
inline constexpr op_info user_op = make_info<Op>();

}  // namespace detail

template <class Op>
constexpr const op_info& find_info() {
  if constexpr (op::number_of_op<Op> >= 0) return detail::library.infos[op::number_of_op<Op>];
  else return detail::user_op<Op>;
}

/// The description of an op. Its address is its identity in the graph.
template <class Op>
inline constexpr const op_info& info_of = find_info<Op>();

}  // namespace weft::graph
