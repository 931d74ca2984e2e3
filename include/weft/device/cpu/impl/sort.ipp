// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/sort.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/device/cpu/sort.hpp>

namespace weft {
namespace cpu {
inline namespace WEFT_ISA {
namespace detail {

WEFT_DEFINE void sort_first(keyed* line, index_t size, index_t count) {
  if (count < size) std::partial_sort(line, line + count, line + size);
  else std::sort(line, line + size);
}

}  // namespace detail

WEFT_DEFINE void argsort(const native_call& call) {
  const strided &x = call.in[0], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  const index_t size = x.extents[dim], count = out.extents[dim], stride = out.stride[dim];
  const index_t after = detail::extent_after(x.extents, dim),
                lines = detail::extent_before(x.extents, dim) * after;
  const std::uint64_t reversed = call.at[1] ? ~std::uint64_t{0} : 0;
  const auto tasks = lines * size < 8192 ? 1 : std::min<index_t>(lines, 4 * call.threads.threads());
  call.threads.parallel_for(tasks, [&](index_t task, scratch_memory& scratch) {
    auto* const line =
        static_cast<detail::keyed*>(scratch.get(static_cast<std::size_t>(size) * sizeof(detail::keyed)));
    for (index_t l = lines * task / tasks; l < lines * (task + 1) / tasks; ++l) {
      const index_t from = detail::line_offset(x, dim, l / after, l % after);
      visit_type(x.type, [&]<class T>(T) {
        for (index_t i = 0; i < size; ++i)
          line[i] = {detail::order_key(x.data<const T>()[from + i * x.stride[dim]]) ^ reversed, i};
      });
      detail::sort_first(line, size, count);
      auto* const to = out.data<std::int64_t>() + detail::line_offset(out, dim, l / after, l % after);
      for (index_t i = 0; i < count; ++i) to[i * stride] = line[i].position;
    }
  });
}

WEFT_DEFINE void cumsum(const native_call& call) {
  const strided &x = call.in[0], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  const index_t size = x.extents[dim], first = call.at[1] ? size - 1 : 0, step = call.at[1] ? -1 : 1;
  detail::for_each_line(call, x.extents, dim, [&](index_t before, index_t after) {
    const index_t from = detail::line_offset(x, dim, before, after),
                  to = detail::line_offset(out, dim, before, after);
    visit_type(x.type, [&]<class T>(T) {
      using number = std::conditional_t<std::is_same_v<T, double>, double, float>;  // from and to f16, bf16
      std::conditional_t<is_floating(dtype_of<T>), double, std::uint64_t> sum = 0;
      for (index_t n = 0, i = first; n < size; ++n, i += step) {
        const T v = x.data<const T>()[from + i * x.stride[dim]];
        const index_t at = to + i * out.stride[dim];
        if constexpr (is_floating(dtype_of<T>)) {
          sum += static_cast<number>(v);
          out.data<T>()[at] = static_cast<T>(static_cast<number>(sum));
        } else {
          sum += static_cast<std::uint64_t>(v);
          out.data<std::int64_t>()[at] = static_cast<std::int64_t>(sum);
        }
      }
    });
  });
}

}  // namespace WEFT_ISA
}  // namespace cpu
}  // namespace weft
