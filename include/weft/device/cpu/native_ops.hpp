// SPDX-License-Identifier: MIT
// The native ops of the library on the CPU: the table of their functions.
#pragma once

#include <weft/device/cpu/attention.hpp>
#include <weft/device/cpu/merge.hpp>
#include <weft/device/cpu/product.hpp>
#include <weft/device/cpu/random.hpp>
#include <weft/device/cpu/rows.hpp>
#include <weft/device/cpu/sort.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// The function of a native op whose first operand has elements of type T; null if there is none. Templates
/// are instantiated only for the ops and types that a program names.
template <native_op Op, class T>
constexpr native_function native_function_of() {
  if constexpr (Op == native_op::product) {
    if constexpr (is_floating(dtype_of<T>)) return &product<T>;
  } else if constexpr (Op == native_op::attention) {
    if constexpr (is_floating(dtype_of<T>)) return &attention<T>;
  } else if constexpr (Op == native_op::attention_backward) {
    if constexpr (is_floating(dtype_of<T>)) return &attention_backward<T>;
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (Op == native_op::merge_attention) return &merge_attention<T>;
    if constexpr (Op == native_op::add_positions) return &add_positions<T>;
  }
  switch (Op) {
    case native_op::checked_index: return &checked_index;
    case native_op::index_select: return &index_select;
    case native_op::index_add: return &index_add;
    case native_op::gather: return &gather;
    case native_op::scatter_sum: return &scatter_add;
    case native_op::arg_extremum: return &arg_extremum;
    case native_op::argsort: return &argsort;
    case native_op::cumsum: return &cumsum;
    case native_op::uniform: return &uniform;
    case native_op::checked_probability: return &checked_probability;
    default: return nullptr;
  }
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
