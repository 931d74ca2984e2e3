// SPDX-License-Identifier: MIT
// The native ops of the library on the CPU: the table of their functions.
#pragma once

#include <weft/device/cpu/attention.hpp>
#include <weft/device/cpu/depthwise.hpp>
#include <weft/device/cpu/merge.hpp>
#include <weft/device/cpu/product.hpp>
#include <weft/device/cpu/random.hpp>
#include <weft/device/cpu/rows.hpp>
#include <weft/device/cpu/sort.hpp>
#include <weft/device/cpu/windows.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// The function of a native op for elements of type T (lower/native_code.hpp); null if there is none.
/// Programs instantiate only the ops and types that they use.
template <native_op Op, class T>
constexpr native_function native_function_of() {
  if constexpr (Op == native_op::product) {
    if constexpr (is_floating(dtype_of<T>)) return &product<T>;
  } else if constexpr (Op == native_op::attention) {
    if constexpr (is_floating(dtype_of<T>)) return &attention<T>;
  } else if constexpr (Op == native_op::attention_backward) {
    if constexpr (is_floating(dtype_of<T>)) return &attention_backward<T>;
  } else if constexpr (Op == native_op::merge_attention) {
    if constexpr (std::is_floating_point_v<T>) return &merge_attention<T>;
  } else if constexpr (Op == native_op::add_positions) {
    if constexpr (std::is_floating_point_v<T>) return &add_positions<T>;
  } else if constexpr (Op == native_op::checked_index) {
    return &checked_index;
  } else if constexpr (Op == native_op::index_select) {
    return &index_select<T>;
  } else if constexpr (Op == native_op::index_add) {
    return &index_add<T>;
  } else if constexpr (Op == native_op::gather) {
    return &gather<T>;
  } else if constexpr (Op == native_op::scatter_sum) {
    return &scatter_add<T>;
  } else if constexpr (Op == native_op::arg_extremum) {
    return &arg_extremum<T>;
  } else if constexpr (Op == native_op::argsort) {
    return &argsort<T>;
  } else if constexpr (Op == native_op::cumsum) {
    return &cumsum<T>;
  } else if constexpr (Op == native_op::fold_windows) {
    return &fold_windows<T>;
  } else if constexpr (Op == native_op::arg_window_max) {
    return &arg_window_max<T>;
  } else if constexpr (Op == native_op::depthwise_conv2d) {
    if constexpr (std::is_floating_point_v<T>) return &depthwise_conv2d<T>;
  } else if constexpr (Op == native_op::depthwise_weight_gradient) {
    if constexpr (std::is_floating_point_v<T>) return &depthwise_weight_gradient<T>;
  } else if constexpr (Op == native_op::cumprod) {
    return &cumprod<T>;
  } else if constexpr (Op == native_op::linear_recurrence) {
    if constexpr (std::is_floating_point_v<T>) return &linear_recurrence<T>;
  } else if constexpr (Op == native_op::uniform) {
    return &uniform<T>;
  } else if constexpr (Op == native_op::checked_probability) {
    return &checked_probability<T>;
  }
  return nullptr;
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
