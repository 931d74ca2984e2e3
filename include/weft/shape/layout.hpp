// SPDX-License-Identifier: MIT
// The memory layout of a view: extents, strides, offset, and one function per view op.
//
// All decisions about memory follow from this description: whether a reshape needs a copy, whether the inner
// stride is 1, which dims can be merged, whether a view stays inside its base, whether two views have the
// same elements. While a program is compiled, extents and strides can be symbols, and "false" means "not
// known to hold". At run time all of them are numbers, and the symbol table is empty. The stride of a dim of
// extent 1 is arbitrary.
//
//   symbol_table dims;
//   layout l = contiguous_layout(dims, {2, {3, 4}});
//   make_view(dims, view_kind::slice, {{1, 1, 2, 1}, 4}, {2, {3, 1}}, l);   // l: strides [4, 1], offset 1
#pragma once

#include <weft/shape/attributes.hpp>
#include <weft/shape/symbols.hpp>

namespace weft {

/// How a value views its base; `none` for a value with memory of its own.
enum class view_kind : std::uint8_t { none, reshape, permute, expand, slice, flip, windows };

/// A stride in elements: `times` if `of` is 1, else `times` times the symbol `of`.
struct stride_term {
  index_t times = 0, of = 1;
  constexpr bool operator==(const stride_term&) const = default;
};

/// Memory layout: element (i, j, ...) of a value is element offset + i * stride[0] + ... of its base.
struct layout {
  shape extents{};
  stride_term stride[max_order]{};
  index_t offset = 0;  // valid only where all extents and strides are numbers, also those of what it views
};

/// The stride obtained by covering `extent` elements of stride `s`.
[[gnu::cold]] constexpr stride_term times_extent(symbol_table& dims, stride_term s, index_t extent) {
  if (s.times == 0) return s;
  const auto [of, times] = dims.term_of(extent);
  s.times = wrapping_product(s.times, times);  // overflows only if another extent is 0
  if (of != 1) s.of = dims.multiply(s.of, of);
  return s.times == 0 ? stride_term{} : s;
}

/// Whether two neighbouring dims can be iterated as one; if so, `merged` receives its stride.
constexpr bool merge_strides(symbol_table& dims, index_t outer_extent, stride_term outer,
                             index_t inner_extent, stride_term inner, stride_term& merged) {
  merged = inner_extent == 1 ? outer : inner;
  return outer_extent == 1 || inner_extent == 1 || outer == times_extent(dims, inner, inner_extent);
}
/// The same for numbers.
constexpr bool merge_strides(index_t outer_extent, index_t outer, index_t inner_extent, index_t inner,
                             index_t& merged) {
  merged = inner_extent == 1 ? outer : inner;
  return outer_extent == 1 || inner_extent == 1 || outer == wrapping_product(inner, inner_extent);
}

/// Whether an extent is known to be 0, so that there are no elements and strides are arbitrary.
constexpr bool is_empty(const shape& s) {
  for (int i = 0; i < s.order; ++i)
    if (s[i] == 0) return true;
  return false;
}

/// The layout of row-major elements without gaps.
[[gnu::cold]] constexpr layout contiguous_layout(symbol_table& dims, const shape& extents) {
  layout l{extents, {}, 0};
  stride_term s{1, 1};
  for (int i = extents.order; i-- > 0;) {
    l.stride[i] = s;
    if (i > 0) s = times_extent(dims, s, extents[i]);
  }
  return l;
}

/// Whether elements are known to be row-major without gaps.
[[gnu::cold]] constexpr bool is_contiguous(symbol_table& dims, const layout& l) {
  if (is_empty(l.extents)) return true;
  stride_term s{1, 1};
  for (int i = l.extents.order; i-- > 0;) {
    if (l.extents[i] != 1 && l.stride[i] != s) return false;
    if (i > 0) s = times_extent(dims, s, l.extents[i]);
  }
  return true;
}

/// Whether the innermost dim that has more than one element has stride 1.
constexpr bool has_unit_inner_stride(const layout& l) {
  for (int i = l.extents.order; i-- > 0;)
    if (l.extents[i] != 1) return l.stride[i] == stride_term{1, 1};
  return true;
}

namespace detail {

/// Dims [i, i_end) of one shape and [j, j_end) of another have the same number of elements.
struct dim_group {
  int i, i_end, j, j_end;
};

/// Finds the smallest group that begins at dims i and j, neither of which has extent 1. Returns false if no
/// products of extents are known to be equal.
[[gnu::cold]] constexpr bool find_group(symbol_table& dims, const shape& from, const shape& to,
                                        dim_group& g) {
  index_t products[2][max_order]{};
  int counts[2] = {0, 0};
  const auto grow = [&](int side) {
    const shape& s = side == 0 ? from : to;
    int& end = side == 0 ? g.i_end : g.j_end;
    if (end == s.order) return false;
    int& n = counts[side];
    products[side][n] = n == 0 ? s[end] : dims.multiply(products[side][n - 1], s[end]);
    ++n;
    ++end;
    return true;
  };
  g.i_end = g.i;
  g.j_end = g.j;
  if (!grow(0) || !grow(1)) return false;
  for (int last = 0;;) {  // for the side that grew last: is its product one of the other side's?
    const index_t product = products[last][counts[last] - 1];
    for (int k = 0; k < counts[1 - last]; ++k)
      if (products[1 - last][k] == product) {
        (last == 0 ? g.j_end : g.i_end) = (last == 0 ? g.j : g.i) + k + 1;
        return true;
      }
    const index_t a = products[0][counts[0] - 1], b = products[1][counts[1] - 1];
    last = a >= 0 && b >= 0 ? (a < b ? 0 : 1) : (counts[0] <= counts[1] ? 0 : 1);
    if (!grow(last) && ((a >= 0 && b >= 0) || !grow(last = 1 - last))) return false;
  }
}

/// The stride of dims first to last - 1 iterated as one; false if they cannot be.
[[gnu::cold]] constexpr bool merge_dims(symbol_table& dims, const layout& l, int first, int last,
                                        stride_term& merged) {
  merged = {1, 1};
  index_t inner_extent = 1;
  stride_term inner{1, 1};
  bool found = false;
  for (int d = last; d-- > first;) {
    if (l.extents[d] == 1) continue;
    if (found && l.stride[d] != times_extent(dims, inner, inner_extent)) return false;
    if (!found) merged = l.stride[d];
    found = true;
    inner = l.stride[d];
    inner_extent = l.extents[d];
  }
  return true;
}

/// Sets the strides of dims of extent 1 as in contiguous memory, which is what libraries expect.
[[gnu::cold]] constexpr void set_free_strides(symbol_table& dims, layout& l) {
  for (int d = l.extents.order; d-- > 0;) {
    if (l.extents[d] != 1) continue;
    l.stride[d] =
        d + 1 < l.extents.order ? times_extent(dims, l.stride[d + 1], l.extents[d + 1]) : stride_term{1, 1};
  }
}

/// Computes the strides of a reshape, by groups of dims with equal products: the dims of `from` in a group
/// must merge, and the result divides the merged dim.
[[gnu::cold]] constexpr bool reshape_strides(symbol_table& dims, const layout& from, layout& l) {
  const shape& to = l.extents;
  for (dim_group g{};; g.i = g.i_end, g.j = g.j_end) {
    while (g.i < from.extents.order && from.extents[g.i] == 1) ++g.i;
    while (g.j < to.order && to[g.j] == 1) ++g.j;
    if (g.i == from.extents.order && g.j == to.order) break;
    stride_term s;
    if (!find_group(dims, from.extents, to, g) || !merge_dims(dims, from, g.i, g.i_end, s)) return false;
    for (int j = g.j_end; j-- > g.j;) {
      l.stride[j] = s;
      if (j > g.j) s = times_extent(dims, s, to[j]);
    }
  }
  set_free_strides(dims, l);
  return true;
}

}  // namespace detail

/// Whether the reshape is possible without a copy; if so, `l` becomes its layout.
[[gnu::cold]] constexpr bool make_reshape(symbol_table& dims, const shape& to, layout& l) {
  if (is_contiguous(dims, l)) {
    const index_t offset = l.offset;
    l = contiguous_layout(dims, to);
    l.offset = offset;
    return true;
  }
  layout reshaped{to, {}, l.offset};
  if (!detail::reshape_strides(dims, l, reshaped)) return false;
  l = reshaped;
  return true;
}

/// Replaces `l` by the layout of a view of it with attributes `at` and resulting `extents`. Returns false if
/// strides cannot express the view: a reshape that must copy.
[[gnu::cold]] constexpr bool make_view(symbol_table& dims, view_kind kind, const attributes& at,
                                       const shape& extents, layout& l) {
  if (is_empty(extents)) {
    l = contiguous_layout(dims, extents);
    return true;
  }
  if (kind == view_kind::reshape) return make_reshape(dims, extents, l);
  const layout from = l;
  l.extents = extents;
  const auto move = [&](index_t elements, stride_term s) {
    if (elements >= 0 && s.of == 1) l.offset += elements * s.times;
  };
  const int dim = static_cast<int>(at[0]);
  if (kind == view_kind::permute) {
    for (int i = 0; i < extents.order; ++i) l.stride[i] = from.stride[at[i]];
  } else if (kind == view_kind::expand) {
    for (int i = 0; i < extents.order; ++i) {
      const int f = i - (extents.order - from.extents.order);
      l.stride[i] = f < 0 || (from.extents[f] == 1 && extents[i] != 1) ? stride_term{} : from.stride[f];
    }
  } else if (kind == view_kind::slice) {
    move(at[1], from.stride[dim]);
    l.stride[dim].times = wrapping_product(l.stride[dim].times, at[3]);
  } else if (kind == view_kind::flip) {
    move(from.extents[dim] - 1, from.stride[dim]);
    l.stride[dim].times = -from.stride[dim].times;
  } else if (kind == view_kind::windows) {
    const height_width step = height_width::of(at[1]), inner = height_width::of(at[2]);
    const int first = from.extents.order - 2;
    const auto set = [&](int d, index_t between, index_t within) {
      l.stride[d].times = wrapping_product(from.stride[d].times, between);
      l.stride[d + 2] = from.stride[d];
      l.stride[d + 2].times = wrapping_product(from.stride[d].times, within);
    };
    set(first, step.height, inner.height);
    set(first + 1, step.width, inner.width);
  }
  return true;
}

/// Whether no two dims overlap, so that different indices refer to different elements; dims of stride 0,
/// which repeat elements, do not count. All extents and strides are numbers.
constexpr bool has_distinct_elements(const layout& l) {
  const auto step = [&](int d) { return l.stride[d].times < 0 ? -l.stride[d].times : l.stride[d].times; };
  for (int a = 0; a < l.extents.order; ++a)
    for (int b = 0; b < a; ++b) {
      const index_t sa = step(a), sb = step(b);
      if (sa != 0 && sb != 0 && l.extents[a] > 1 && l.extents[b] > 1 && sa < sb * l.extents[b] &&
          sb < sa * l.extents[a])
        return false;
    }
  return true;
}

/// Elements first to last - 1 of the base; all extents and strides are numbers.
struct element_range {
  index_t first = 0, last = 0;
};

/// The range of elements of the base that a view covers.
[[gnu::cold]] constexpr element_range range_of(const layout& l) {
  if (is_empty(l.extents)) return {};
  element_range r{l.offset, l.offset + 1};
  for (int d = 0; d < l.extents.order; ++d)
    (l.stride[d].times < 0 ? r.first : r.last) += (l.extents[d] - 1) * l.stride[d].times;
  return r;
}

}  // namespace weft
