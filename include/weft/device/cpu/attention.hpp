// SPDX-License-Identifier: MIT
// Attention on the CPU in memory linear in the number of positions.
//
// Scores are computed blockwise and never stored (Dao et al., "FlashAttention", 2022): forward saves the
// logarithm of each row's sum, from which backward recomputes them. Heads run in parallel; within a head the
// order of all sums is fixed.
#pragma once

#include <algorithm>
#include <cmath>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/micro_kernel.hpp>
#include <weft/device/math.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

namespace detail {

/// Positions per block of scores.
inline constexpr index_t attention_block = 64;

/// One head of a [batch, position, head, feature] tensor.
template <class T>
struct head_view {
  T* data;
  index_t position, feature;  // strides

  static head_view of(const strided& t, index_t batch, index_t head) {
    return {t.data<T>() + batch * t.stride[0] + head * t.stride[2], t.stride[1], t.stride[3]};
  }
};

/// Sizes of one head, with features padded to whole tiles and positions to whole blocks.
template <class T>
struct head_size {
  index_t positions, features, padded_positions, padded_features;
  bool causal;
  T scale;

  head_size(const strided& q, bool is_causal) : causal(is_causal) {
    constexpr index_t lanes = micro_kernels<T>::few ? blocking<T>::tile_columns : blocking<T>::lanes;
    positions = q.extents[1];
    features = q.extents[3];
    padded_positions = (positions + attention_block - 1) / attention_block * attention_block;
    padded_features = (features + lanes - 1) / lanes * lanes;
    scale = T(1) / std::sqrt(static_cast<T>(features));
  }
};

/// C = A B, or C += A B, with A read by strides and rows of B contiguous; columns are whole vectors.
template <class T>
void multiply_in_place(index_t m, index_t n, index_t k, const T* a, index_t a_row, index_t a_column,
                       const T* b, index_t b_row, T* c, index_t c_row, bool add) {
  using K = micro_kernels<T>;
  constexpr index_t lanes = blocking<T>::lanes, wide = K::wide * lanes;
  for (index_t j = 0; j < n;) {
    const index_t left = n - j, columns = K::few              ? wide
                                          : left == 4 * lanes ? 2 * lanes
                                                              : std::min(left, wide);
    for (index_t i = 0; i < m; i += K::full)
      K::run(static_cast<int>(std::min<index_t>(K::full, m - i)), static_cast<int>(columns / lanes),
             k, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row, add);
    j += columns;
  }
}

/// Features from `d` on of the row of position `t`, followed by zeros.
template <class V, class T>
V row_part(const head_view<T>& x, index_t t, index_t d, index_t features) {
  const T* const from = x.data + t * x.position + d * x.feature;
  if (x.feature == 1) return simd::load_some<V>(from, features - d);
  V v{};
  for (index_t i = 0; i < std::min<index_t>(simd::lane_count<V>, features - d); ++i)
    v[i] = from[i * x.feature];
  return v;
}

/// Rows of positions, padded with zeros: [padded_positions, padded_features].
template <class T>
void pack_rows(const head_view<const T>& x, const head_size<T>& s, T* to) {
  for (index_t t = 0; t < s.positions; ++t, to += s.padded_features) {
    const T* from = x.data + t * x.position;
    if (x.feature == 1) std::copy_n(from, s.features, to);
    else for (index_t d = 0; d < s.features; ++d) to[d] = from[d * x.feature];
    std::fill(to + s.features, to + s.padded_features, T{});
  }
  std::fill_n(to, (s.padded_positions - s.positions) * s.padded_features, T{});
}
/// The same transposed blockwise: [blocks, features, attention_block]. Rows of all positions would often be
/// multiples of 4 KiB apart and fall into the same cache sets.
template <class T>
void pack_columns(const head_view<const T>& x, const head_size<T>& s, T* to) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t side = blocking<T>::lanes;
  for (index_t t0 = 0; t0 < s.padded_positions; t0 += side) {
    T* const block = to + t0 / attention_block * attention_block * s.features + t0 % attention_block;
    for (index_t d0 = 0; d0 < s.features; d0 += side) {
      V square[std::size_t{side}];
      for (index_t t = 0; t < side; ++t)
        square[t] = t0 + t < s.positions ? row_part<V>(x, t0 + t, d0, s.features) : V{};
      transpose(square);
      for (index_t d = 0; d < std::min(side, s.features - d0); ++d)
        simd::store(block + (d0 + d) * attention_block, square[d]);
    }
  }
}
/// Copies packed rows first to last - 1 to x.
template <class T>
void unpack_rows(const T* from, const head_size<T>& s, const head_view<T>& x, index_t first, index_t last) {
  for (index_t t = first; t < last; ++t, from += s.padded_features) {
    T* to = x.data + t * x.position;
    if (x.feature == 1) std::copy_n(from, s.features, to);
    else for (index_t d = 0; d < s.features; ++d) to[d * x.feature] = from[d];
  }
}

/// First key to which query `i` does not attend.
template <class T>
index_t visible(const head_size<T>& s, index_t i) {
  return s.causal ? std::min(i + 1, s.positions) : s.positions;
}

/// Replaces the scores of as many rows as a vector has lanes by weights exp(score - maximum), and updates the
/// running maxima and sums, one row per lane. Returns the factors by which previous sums must be multiplied.
template <class T, class V = simd::vec<T, blocking<T>::lanes>>
V weigh_rows(const head_size<T>& s, index_t i0, index_t j0, T* scores, V& maximum, V& sum) {
  constexpr index_t lanes = blocking<T>::lanes, block = attention_block;
  V rows[std::size_t{lanes}];
  for (index_t r = 0; r < lanes; ++r) {
    T* const score = scores + r * block;
    for (index_t c = std::clamp<index_t>(visible(s, i0 + r) - j0, 0, block); c < block; ++c)
      score[c] = -std::numeric_limits<T>::infinity();
    rows[r] = simd::load<V>(score);
    for (index_t c = lanes; c < block; c += lanes) rows[r] = simd::maximum(rows[r], simd::load<V>(score + c));
  }
  transpose(rows);
  V top = rows[0];
  for (index_t i = 1; i < lanes; ++i) top = simd::maximum(top, rows[i]);
  const V next = simd::maximum(maximum, top * s.scale);
  for (index_t r = 0; r < lanes; ++r) {
    rows[r] = V{};
    for (index_t c = 0; c < block; c += lanes) {
      const V w = math::exp(simd::multiply_add(simd::load<V>(scores + r * block + c), s.scale, -next[r]));
      simd::store(scores + r * block + c, w);
      rows[r] += w;
    }
  }
  transpose(rows);
  for (index_t i = 1; i < lanes; ++i) rows[0] += rows[i];
  const V factor = math::exp(maximum - next);
  sum = simd::multiply_add(sum, factor, rows[0]);
  maximum = next;
  return factor;
}

template <class T>
void attend(const head_size<T>& s, const head_view<const T>& q, const head_view<const T>& k,
            const head_view<const T>& v, const head_view<T>& out, T* log_sum,
            scratch_memory& scratch) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t block = attention_block, lanes = blocking<T>::lanes;
  const index_t row = s.padded_features, matrix_size = s.padded_positions * row;
  T* keys = static_cast<T*>(
      scratch.get(static_cast<std::size_t>(3 * matrix_size + block * (block + row)) * sizeof(T)));
  T* values = keys + matrix_size;
  T* queries = values + matrix_size;
  T* scores = queries + matrix_size;
  T* sums = scores + block * block;
  pack_columns(k, s, keys);
  pack_rows(v, s, values);
  pack_rows(q, s, queries);
  for (index_t i0 = 0; i0 < s.positions; i0 += block) {
    const index_t rows = std::min(block, s.positions - i0), whole_groups = (rows + lanes - 1) / lanes * lanes;
    V maximum[std::size_t{block / lanes}], sum[std::size_t{block / lanes}];
    std::fill(maximum, maximum + block / lanes, simd::splat<V>(-std::numeric_limits<T>::max()));
    std::fill(sum, sum + block / lanes, V{});
    const index_t end = visible(s, i0 + rows - 1);
    for (index_t j0 = 0; j0 < end; j0 += block) {
      multiply_in_place(whole_groups, block, s.features, queries + i0 * row, row, index_t{1},
                        keys + j0 * s.features, block, scores, block, false);
      for (index_t r = 0; r < whole_groups; r += lanes) {
        const V factor = weigh_rows(s, i0 + r, j0, scores + r * block, maximum[r / lanes], sum[r / lanes]);
        if (j0 == 0) continue;
        for (index_t l = 0; l < lanes; ++l)
          for (index_t d = 0; d < row; d += lanes)
            simd::store(sums + (r + l) * row + d, simd::load<V>(sums + (r + l) * row + d) * factor[l]);
      }
      multiply_in_place(whole_groups, row, block, scores, block, index_t{1}, values + j0 * row, row, sums,
                        row, j0 > 0);
    }
    for (index_t r = 0; r < rows; ++r) {
      const T total = sum[r / lanes][r % lanes];
      for (index_t d = 0; d < row; d += lanes)
        simd::store(sums + r * row + d, simd::load<V>(sums + r * row + d) / total);
      log_sum[i0 + r] = maximum[r / lanes][r % lanes] + std::log(total);
    }
    unpack_rows(sums, s, out, i0, i0 + rows);
  }
}

/// Weights and cotangents of the scores of one block: P = exp(S scale - log_sum) and dS = P (dP - delta)
/// scale, with zeros where a query does not attend to a key.
template <class T>
void weigh_block(const head_size<T>& s, index_t i0, index_t rows, index_t j0, const T* log_sum,
                 const T* delta, T* scores, T* cotangents) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t block = attention_block, lanes = blocking<T>::lanes;
  for (index_t r = 0; r < rows; ++r) {
    T* p = scores + r * block;
    T* d = cotangents + r * block;
    for (index_t c = 0; c < block; c += lanes) {
      const V w = math::exp(simd::multiply_add(simd::load<V>(p + c), s.scale, -log_sum[i0 + r]));
      simd::store(p + c, w);
      simd::store(d + c, w * (simd::load<V>(d + c) - delta[i0 + r]) * s.scale);
    }
    for (index_t c = std::clamp<index_t>(visible(s, i0 + r) - j0, 0, block); c < block; ++c)
      p[c] = d[c] = T{};
  }
}

template <class T>
void attend_backward(const head_size<T>& s, const head_view<const T>& q,
                     const head_view<const T>& k, const head_view<const T>& v,
                     const head_view<const T>& out, const T* log_sum, const head_view<const T>& g,
                     const head_view<T>& dq, const head_view<T>& dk, const head_view<T>& dv,
                     scratch_memory& scratch) {
  constexpr index_t block = attention_block;
  const index_t row = s.padded_features, size = s.padded_positions * row;
  T* memory = static_cast<T*>(
      scratch.get(static_cast<std::size_t>(8 * size + 2 * block * block + s.padded_positions) * sizeof(T)));
  T *keys_t = memory, *values_t = memory + size, *keys = memory + 2 * size,
    *queries = memory + 3 * size, *cotangent = memory + 4 * size, *sum_q = memory + 5 * size,
    *sum_k = memory + 6 * size, *sum_v = memory + 7 * size, *scores = memory + 8 * size,
    *slopes = scores + block * block, *delta = slopes + block * block;
  pack_columns(k, s, keys_t);
  pack_columns(v, s, values_t);
  pack_rows(k, s, keys);
  pack_rows(q, s, queries);
  pack_rows(g, s, cotangent);
  std::fill(sum_q, sum_q + 3 * size, T{});
  using V = simd::vec<T, blocking<T>::lanes>;
  for (index_t t = 0; t < s.positions; ++t) {
    V dot{};
    for (index_t d = 0; d < s.features; d += blocking<T>::lanes)
      dot =
          simd::multiply_add(row_part<V>(out, t, d, s.features), simd::load<V>(cotangent + t * row + d), dot);
    delta[t] = simd::fold_lanes(dot, [](auto a, auto b) { return a + b; });
  }
  for (index_t j0 = 0; j0 < s.positions; j0 += block)
    for (index_t i0 = s.causal ? j0 : 0; i0 < s.positions; i0 += block) {
      const index_t rows = std::min(block, s.positions - i0);
      const index_t columns = std::min(block, s.positions - j0);
      multiply_in_place(rows, block, s.features, queries + i0 * row, row, index_t{1},
                        keys_t + j0 * s.features, block, scores, block, false);
      multiply_in_place(rows, block, s.features, cotangent + i0 * row, row, index_t{1},
                        values_t + j0 * s.features, block, slopes, block, false);
      weigh_block(s, i0, rows, j0, log_sum, delta, scores, slopes);
      multiply_in_place(columns, row, rows, scores, index_t{1}, block, cotangent + i0 * row, row,
                        sum_v + j0 * row, row, true);
      multiply_in_place(rows, row, columns, slopes, block, index_t{1}, keys + j0 * row, row,
                        sum_q + i0 * row, row, true);
      multiply_in_place(columns, row, rows, slopes, index_t{1}, block, queries + i0 * row, row,
                        sum_k + j0 * row, row, true);
    }
  unpack_rows(sum_q, s, dq, 0, s.positions);
  unpack_rows(sum_k, s, dk, 0, s.positions);
  unpack_rows(sum_v, s, dv, 0, s.positions);
}

}  // namespace detail

/// in: q, k, v [batch, position, head, feature]; out: result like q, log_sum [batch, head, position].
/// Attribute 0: whether causal.
template <class T>
void attention(const native_call& call) {
  using detail::head_view;
  const strided &q = call.in[0], &log_sum = call.out[1];
  const index_t heads = q.extents[2];
  const detail::head_size<T> size(q, call.at[0] != 0);
  call.threads.parallel_for(q.extents[0] * heads, [&](index_t task, scratch_memory& scratch) {
    const index_t b = task / heads, h = task % heads;
    detail::attend<T>(size, head_view<const T>::of(q, b, h), head_view<const T>::of(call.in[1], b, h),
                      head_view<const T>::of(call.in[2], b, h), head_view<T>::of(call.out[0], b, h),
                      log_sum.data<T>() + task * size.positions, scratch);
  });
}

/// in: q, k, v, result, log_sum, cotangent of the result; out: cotangents of q, k and v.
template <class T>
void attention_backward(const native_call& call) {
  using detail::head_view;
  const strided& q = call.in[0];
  const index_t heads = q.extents[2];
  const detail::head_size<T> size(q, call.at[0] != 0);
  const auto in = [&](int i, index_t b, index_t h) {
    return head_view<const T>::of(call.in[static_cast<std::size_t>(i)], b, h);
  };
  const auto out = [&](int i, index_t b, index_t h) {
    return head_view<T>::of(call.out[static_cast<std::size_t>(i)], b, h);
  };
  call.threads.parallel_for(q.extents[0] * heads, [&](index_t task, scratch_memory& scratch) {
    const index_t b = task / heads, h = task % heads;
    detail::attend_backward<T>(size, in(0, b, h), in(1, b, h), in(2, b, h), in(3, b, h),
                               call.in[4].data<const T>() + task * size.positions, in(5, b, h),
                               out(0, b, h), out(1, b, h), out(2, b, h), scratch);
  });
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu
