// SPDX-License-Identifier: MIT
// Definitions of <weft/run/joined_product.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/run/joined_product.hpp>

namespace weft {
namespace runtime {
namespace detail {

/// The elements of argument `a` of a kernel, of type f32: as a row along the space's last dim if its other
/// strides are 0, or all of them.
inline bool is_row(const kernel_args& k, int a) {
  for (int d = 0; d + 1 < k.order; ++d)
    if (k.extent[d] != 1 && k.stride[a][d] != 0) return false;
  return k.order > 1 && k.stride[a][k.order - 1] == 1;
}
inline bool is_contiguous(int order, const index_t* extents, const index_t* strides) {
  index_t size = 1;
  for (int d = order; d-- > 0; size *= extents[d])
    if (extents[d] != 1 && strides[d] != size) return false;
  return true;
}
inline bool is_contiguous(const kernel_args& k, int a) {
  return is_contiguous(k.order, k.extent, k.stride[a]);
}
inline bool is_contiguous(const strided& t) {
  return is_contiguous(t.extents.order, t.extents.extent, t.stride);
}
inline index_t size_of_space(const kernel_args& k) {
  index_t n = 1;
  for (int d = 0; d < k.order; ++d) n *= k.extent[d];
  return n;
}

inline bool multiply_with_next(backend& device, const strided& a, const strided& b, const strided& c,
                               const lower::epilogue& how, const kernel_args& next) {
  const index_t columns = c.extents.last();
  if (a.type == dtype::f64 || c.adds || c.size() == 0 || detail::size_of_space(next) != c.size() ||
      !detail::is_contiguous(c) ||
      next.pointer[how.product] != c.pointer || !detail::is_contiguous(next, how.product) ||
      !detail::is_contiguous(next, how.result))
    return false;
  strided row, whole, result = c;
  result.pointer = next.pointer[how.result];
  result.type = how.type;
  product_epilogue e;
  e.gelu = how.gelu;
  for (const int term : how.terms) {
    if (term < 0) continue;
    if (!e.bias && detail::is_row(next, term) && next.extent[next.order - 1] == columns) {
      row.pointer = next.pointer[term];
      row.extents = {1, {columns}};
      row.stride[0] = 1;
      e.bias = &row;
    } else if (!e.added && detail::is_contiguous(next, term)) {
      whole = result;
      whole.type = dtype::f32;
      whole.pointer = next.pointer[term];
      e.added = &whole;
    } else {
      return false;
    }
  }
  return device.multiply_with(a, b, result, e);
}

inline bool multiply_with_sums(backend& device, const strided& a, const strided& b, const strided& c,
                               bool of_right, const kernel_args& sums) {
  const strided& of = of_right ? b : a;
  const int order = of.extents.order;
  if (order != 2 || c.size() == 0) return false;
  const index_t length = of.extents[of_right ? 1 : 0], depth = of.extents[of_right ? 0 : 1];
  // The kernel sums over rows of a contiguous matrix [depth, length].
  if (of.type != dtype::f32 || sums.pointer[0] != of.pointer || detail::size_of_space(sums) != of.size() ||
      sums.extent[sums.order - 1] != length || sums.rows() != 1 || !detail::is_contiguous(sums, 0) ||
      of.stride[of_right ? 1 : 0] != 1 || (depth > 1 && of.stride[of_right ? 0 : 1] != length))
    return false;
  strided result;
  result.pointer = sums.pointer[1];
  result.extents = {1, {length}};
  result.stride[0] = 1;
  return device.multiply_with(a, b, c, {.sums = &result, .of_right = of_right});
}

}  // namespace detail

WEFT_DEFINE joined_product joined_product_of(const lower::plan_view& p, int step, bool next_is_alone) {
  const lower::step_entry& product = p.steps[static_cast<std::size_t>(step)];
  const auto base = [&](const lower::step_entry& s, int operand) {
    return lower::base_of(p, p.operands[static_cast<std::size_t>(s.first_operand + operand)]);
  };
  const auto instructions_of = [&](const lower::step_entry& s) {
    const lower::kernel_entry& k = p.kernels[static_cast<std::size_t>(s.kernel)];
    return p.instructions.subspan(static_cast<std::size_t>(k.first_instruction),
                                  static_cast<std::size_t>(k.instructions));
  };
  const auto is_kernel = [&](const lower::step_entry& s, kernel_division d) {
    return s.kind == lower::step_kind::kernel && p.kernels[static_cast<std::size_t>(s.kernel)].division == d;
  };
  const lower::value_entry& result = p.values[static_cast<std::size_t>(base(product, 2))];
  const auto after = p.steps.subspan(static_cast<std::size_t>(step) + 1);
  if (!after.empty() && next_is_alone && result.output < 0 && result.last_step == step + 1 &&
      is_kernel(after[0], kernel_division::elements) && after[0].outputs == 1) {
    int argument = -1, reads = 0;  // of the product or views of it
    for (int i = 0; i < after[0].inputs; ++i)
      if (base(after[0], i) == base(product, 2)) argument = i, ++reads;
    if (reads == 1) {
      const lower::epilogue next = lower::epilogue_of(instructions_of(after[0]), argument);
      if (next.found()) return {step + 1, next, false};
    }
  }
  for (std::size_t f = 0; f < after.size(); ++f) {
    const lower::step_entry& s = after[f];
    if (!is_kernel(s, kernel_division::columns) || s.inputs != 1 || s.outputs != 1 ||
        p.values[static_cast<std::size_t>(base(s, 1))].output < 0 ||
        lower::column_sums_of(instructions_of(s)) != 1)
      continue;
    for (const int operand : {0, 1})
      if (base(s, 0) == base(product, operand)) return {step + 1 + static_cast<int>(f), {}, operand == 1};
  }
  return {};
}

WEFT_DEFINE bool multiply_joined(backend& device, std::span<const strided> t, const joined_product& how,
                                 const kernel_args& kernel) {
  if (how.next.found()) return detail::multiply_with_next(device, t[0], t[1], t[2], how.next, kernel);
  return detail::multiply_with_sums(device, t[0], t[1], t[2], how.of_right, kernel);
}

}  // namespace runtime
}  // namespace weft
