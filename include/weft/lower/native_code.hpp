// SPDX-License-Identifier: MIT
// Connects the library's native ops to the functions of this CPU.
//
// Steps of plans name a native op. A program, which knows its steps at compile time, names the functions of
// the ops that occur, so that no others are compiled.
#pragma once

#include <weft/device/cpu/native_ops.hpp>
#include <weft/lower/plan.hpp>

namespace weft::lower {

/// A native op of the library for one element type: that of its first operand or, for ops that add at
/// indices, which come first, of the second.
struct native_use {
  native_op op = native_op::own;
  dtype type{};
  friend constexpr bool operator==(const native_use&, const native_use&) = default;
};

/// The native op of a step; `own` if it is not one of the library's.
constexpr native_use native_use_of(const plan_view& p, const step_entry& s) {
  if (same_object(s.native, nullptr) || s.native->op == native_op::own) return {};
  const native_op op = s.native->op;
  const bool begins_with_index = op == native_op::index_add || op == native_op::scatter_sum;
  const int operand = p.operands[static_cast<std::size_t>(s.first_operand + begins_with_index)];
  return {s.native->op, p.values[static_cast<std::size_t>(operand)].result.type};
}

/// The native ops of a plan, without duplicates.
constexpr sequence<native_use> native_uses_of(const plan_view& p) {
  sequence<native_use> uses;
  for (const step_entry& s : p.steps) {
    const native_use use = native_use_of(p, s);
    bool known = use.op == native_op::own;
    for (const native_use& u : uses) known = known || u == use;
    if (!known) uses.push_back(use);
  }
  return uses;
}

/// The function on this CPU of one of the native ops `Ops`, found at run time; null if there is none.
template <native_op... Ops>
constexpr native_function native_function_of(const native_use& use) {
  return visit_type(use.type, [&]<class T>(T) {
    native_function found = nullptr;
    ((use.op == Ops ? void(found = cpu::native_function_of<Ops, T>()) : void()), ...);
    return found;
  });
}

}  // namespace weft::lower
