// SPDX-License-Identifier: MIT
// Definitions of <weft/run/step_text.hpp>.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/lower/code.hpp>
#include <weft/op/all.hpp>
#include <weft/run/step_text.hpp>

namespace weft {
namespace runtime {
namespace detail {

/// Elements in memory, without those that strides of 0 repeat.
template <class Extents, class Strides>
index_t distinct_elements(int order, const Extents& extents, const Strides& strides) {
  index_t n = 1;
  for (int d = 0; d < order; ++d)
    if (strides[d] != 0) n *= extents[d];
  return n;
}
WEFT_DEFINE std::string with_type(const shape& extents, dtype type) {
  return to_string(extents) + " " + name_of(type);
}

/// The name of an instruction; null if it computes nothing.
WEFT_DEFINE const char* name_of_instruction(const lower::instruction& w) {
  switch (w.op) {
    case lower::fold_sum:
    case lower::column_sum: return "sum";
    case lower::fold_max:
    case lower::column_max: return "amax";
    case lower::fold_min:
    case lower::column_min: return "amin";
    default: return w.op < lower::first_opcode ? op::op_names<op::all::list>::at[w.op] : nullptr;
  }
}
constexpr bool writes_memory(int op) {
  return op == lower::store || op == lower::store_row || (op >= lower::column_sum && op <= lower::column_min);
}

WEFT_DEFINE step_text text_of_kernel(const kernel_call& call) {
  constexpr std::size_t most_names = 8;
  std::vector<const char*> names;
  std::optional<dtype> result;
  lower::for_each_instruction(call.instructions, [&](const lower::instruction& w) {
    if (writes_memory(w.op) && !result) result = w.type;
    const char* name = name_of_instruction(w);
    const auto is_it = [&](const char* known) { return std::strcmp(known, name) == 0; };
    if (name && std::none_of(names.begin(), names.end(), is_it)) names.push_back(name);
  });
  step_text text;
  if (names.empty()) text.name = "copy";
  for (std::size_t i = 0; i < std::min(names.size(), most_names); ++i)
    text.name += (i ? ", " : "") + std::string(names[i]);
  if (names.size() > most_names) text.name += ", and " + std::to_string(names.size() - most_names) + " more";
  const kernel_args& args = call.args;
  shape space{args.order, {}};
  std::copy_n(args.extent, args.order, space.extent);
  text.name += " " + with_type(space, result.value_or(dtype::f32));
  text.bytes = bytes_of_kernel(call);
  return text;
}

}  // namespace detail

WEFT_DEFINE std::int64_t bytes_of_tensors(std::span<const strided> tensors) {
  std::int64_t bytes = 0;
  for (const strided& t : tensors)
    bytes += detail::distinct_elements(t.extents.order, t.extents, t.stride) * size_of(t.type);
  return bytes;
}

WEFT_DEFINE std::int64_t bytes_of_kernel(const kernel_call& call) {
  dtype types[max_arguments] = {};
  lower::for_each_instruction(call.instructions, [&](const lower::instruction& w) {
    if (detail::writes_memory(w.op) || w.op == lower::load || w.op == lower::load_row) types[w.a] = w.type;
  });
  std::int64_t bytes = 0;
  for (int a = 0; a < call.args.arguments; ++a)
    bytes += detail::distinct_elements(call.args.order, call.args.extent, call.args.stride[a]) *
             size_of(types[a]);
  return bytes;
}

WEFT_DEFINE double operations_of_product(std::span<const strided> t) {
  return 2 * static_cast<double>(t[2].size()) * static_cast<double>(t[0].extents.last());
}

WEFT_DEFINE double operations_of_native(const native_code& code, std::span<const strided> in,
                                        std::span<const strided> out) {
  if (code.op == native_op::attention || code.op == native_op::attention_backward) {
    const double pairs = static_cast<double>(in[0].size()) * static_cast<double>(in[1].extents[1]);
    return (code.op == native_op::attention ? 4 : 8) * pairs;
  }
  const bool is_gradient = code.op == native_op::depthwise_weight_gradient;
  if (code.op != native_op::depthwise_conv2d && !is_gradient) return 0;
  const strided &weight = is_gradient ? out[0] : in[1], &images = is_gradient ? in[1] : out[0];
  const index_t channels = std::max<index_t>(weight.extents[0], 1);
  return 2 * static_cast<double>(images.size()) * static_cast<double>(weight.size() / channels);
}

WEFT_DEFINE step_text text_of_launch(std::span<const kernel_call* const> calls) {
  step_text all = detail::text_of_kernel(*calls[0]);
  for (const kernel_call* other : calls.subspan(1)) all.bytes += bytes_of_kernel(*other);
  if (calls.size() > 1) all.name += ", with " + std::to_string(calls.size() - 1) + " more";
  return all;
}

WEFT_DEFINE step_text text_of_product(std::span<const strided> t) {
  return {"matmul " + to_string(t[0].extents) + " x " + detail::with_type(t[1].extents, t[1].type),
          operations_of_product(t), bytes_of_tensors(t.first(3))};
}

WEFT_DEFINE step_text text_of_native(const char* op, const native_code& code, const attributes& at,
                                     std::span<const strided> in, std::span<const strided> out) {
  return {code.name(op, at) + (" " + detail::with_type(out[0].extents, out[0].type)),
          operations_of_native(code, in, out), bytes_of_tensors(in) + bytes_of_tensors(out)};
}

}  // namespace runtime
}  // namespace weft
