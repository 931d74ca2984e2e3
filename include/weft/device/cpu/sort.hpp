// SPDX-License-Identifier: MIT
// Sorting, and running sums and products, along a dim on the CPU.
//
// Elements of all types are compared by 64-bit keys with the same order as unsigned numbers, so that one
// instance of the sorting functions serves all types.
#pragma once

#include <bit>

#include <weft/device/cpu/lines.hpp>
#include <weft/device/cpu/rows.hpp>
#include <weft/device/multiply.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// A number whose unsigned order is that of the elements: NaN is above all numbers, and -0 equals 0.
template <element T>
std::uint64_t order_key(T x) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  if constexpr (is_floating(dtype_of<T>)) {
    const double wide = std::is_same_v<T, double> ? static_cast<double>(x) : static_cast<float>(x);
    if (wide != wide) return ~std::uint64_t{0};
    const auto bits = std::bit_cast<std::uint64_t>(wide == 0 ? 0.0 : wide);
    return bits & sign ? ~bits : bits | sign;
  } else {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(x)) ^ sign;
  }
}

/// An element to be sorted: its key, and its position, which breaks ties between equal keys.
struct keyed {
  std::uint64_t key;
  index_t position;
  bool operator<(const keyed& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

/// Moves the first `count` elements of the sorted line to its beginning.
void sort_first(keyed* line, index_t size, index_t count);

/// Number of elements of the dims before `dim`.
inline index_t extent_before(const shape& s, int dim) {
  index_t n = 1;
  for (int i = 0; i < dim; ++i) n *= s[i];
  return n;
}
/// Offset of the first element of a line.
index_t line_offset(const strided& t, int dim, index_t before, index_t after);

}  // namespace detail

/// in: x; out: the positions along dim v0 of its elements in ascending order, or descending if v1 is 1; only
/// as many as the result has. Equal elements stay in the order of their positions; NaN is larger than every
/// number.
template <class T>
void argsort(const native_call& call) {
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
      for (index_t i = 0; i < size; ++i)
        line[i] = {detail::order_key(x.data<const T>()[from + i * x.stride[dim]]) ^ reversed, i};
      detail::sort_first(line, size, count);
      auto* const to = out.data<std::int64_t>() + detail::line_offset(out, dim, l / after, l % after);
      for (index_t i = 0; i < count; ++i) to[i * stride] = line[i].position;
    }
  });
}

namespace detail {
/// The type of running sums and products of elements of T: f64, or integers modulo 2^64.
template <class T>
using running = std::conditional_t<is_floating(dtype_of<T>), double, std::uint64_t>;

/// For every line along dim v0: out = next(total, element) for one element after the other, starting with the
/// last one if `backwards`. `next` changes the total, which is initially `start`.
template <class T, class F>
void run_along(const native_call& call, bool backwards, running<T> start, F next) {
  using number = std::conditional_t<std::is_same_v<T, double>, double, float>;  // also for f16 and bf16
  using result = std::conditional_t<is_floating(dtype_of<T>), T, std::int64_t>;
  const strided &x = call.in[0], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  const index_t size = x.extents[dim], first = backwards ? size - 1 : 0, step = backwards ? -1 : 1;
  const grouped_lines groups(x.extents, dim);
  groups.for_each(call, [&](index_t group, index_t count) {
    const T* const from = x.data<const T>() + groups.offset(x, group);
    result* const to = out.data<result>() + groups.offset(out, group);
    const auto run = [&](auto lines, auto across_from, auto across_to) {
      running<T> totals[std::size_t{grouped_lines::most}];
      result results[std::size_t{grouped_lines::most}];  // they alias nothing
      std::fill_n(totals, index_t{lines}, start);
      for (index_t n = 0, i = first; n < size; ++n, i += step) {
        const T* const elements = from + i * x.stride[dim];
        for (index_t l = 0; l < lines; ++l) {
          const T v = elements[l * across_from];
          if constexpr (is_floating(dtype_of<T>))
            results[l] = static_cast<T>(static_cast<number>(next(totals[l], static_cast<number>(v))));
          else results[l] = static_cast<std::int64_t>(next(totals[l], static_cast<std::uint64_t>(v)));
        }
        result* const line = to + i * out.stride[dim];
        for (index_t l = 0; l < lines; ++l) line[l * across_to] = results[l];
      }
    };
    grouped_lines::with_constants(run, count, groups.step(x), groups.step(out));
  });
}
}  // namespace detail

/// in: x; out: the sums of the elements up to each position along dim v0; if v1 is 1, from the end. Floating
/// elements are summed in f64, others modulo 2^64.
template <class T>
void cumsum(const native_call& call) {
  detail::run_along<T>(call, call.at[1] != 0, 0, [](auto& sum, auto x) { return sum += x; });
}

/// in: x; out: the products of the elements up to each position along dim v0; if v1 is 1, of those before it.
/// Types as for cumsum.
template <class T>
void cumprod(const native_call& call) {
  const bool before = call.at[1] != 0;
  detail::run_along<T>(call, false, 1, [before](auto& product, auto x) {
    const auto old = product;
    product *= x;
    return before ? old : product;
  });
}

/// in: a, b; out: along dim v0, out[i] = a[i] out[i - 1] + b[i]; if v1 is 1, from the end, out[i] = a[i + 1]
/// out[i + 1] + b[i]. Computed in f64.
template <class T>
void linear_recurrence(const native_call& call) {
  const strided &a = call.in[0], &b = call.in[1], &out = call.out[0];
  const int dim = static_cast<int>(call.at[0]);
  const bool from_end = call.at[1] != 0;
  const index_t size = a.extents[dim], first = from_end ? size - 1 : 0, step = from_end ? -1 : 1;
  const detail::grouped_lines groups(a.extents, dim);
  groups.for_each(call, [&](index_t group, index_t lines) {
    const T* const factors = a.data<const T>() + groups.offset(a, group);
    const T* const summands = b.data<const T>() + groups.offset(b, group);
    T* const to = out.data<T>() + groups.offset(out, group);
    double ys[std::size_t{detail::grouped_lines::most}]{};
    for (index_t n = 0, i = first; n < size; ++n, i += step) {
      const T* const factor = factors + (from_end && n ? i + 1 : i) * a.stride[dim];
      const T* const summand = summands + i * b.stride[dim];
      T* const line = to + i * out.stride[dim];
      for (index_t l = 0; l < lines; ++l) {
        double& y = ys[l];
        y = n ? simd::multiply(static_cast<double>(factor[l * groups.step(a)]), y) : 0;
        y += static_cast<double>(summand[l * groups.step(b)]);
        line[l * groups.step(out)] = static_cast<T>(y);
      }
    }
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/sort.ipp>
#endif
