// SPDX-License-Identifier: MIT
// Attention on the CPU in memory linear in the number of positions.
//
// Scores are computed blockwise and never stored (Dao et al., "FlashAttention", 2022): the forward pass saves
// the logarithm of each row's sum, from which the backward pass recomputes them. Heads run in parallel;
// within a head the order of all sums is fixed.
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
  head_view from(index_t first) const { return {data + first * position, position, feature}; }

  /// Prefetches the features of position `t`, which are far from those read before, so that no hardware
  /// prefetcher would find them.
  void prefetch(index_t t, index_t features) const {
    constexpr index_t line = 64 / sizeof(T);
    for (index_t d = 0; d < features; d += line) __builtin_prefetch(data + t * position + d * feature);
  }
};

/// `positions` rounded up to whole blocks of scores.
inline index_t whole_blocks(index_t positions) {
  return (positions + attention_block - 1) / attention_block * attention_block;
}

/// Sizes of one head, with features padded to whole tiles.
template <class T>
struct head_size {
  index_t queries, keys, features, padded_features;
  index_t group;  // query heads per key head
  bool causal;
  index_t offset;  // if causal: position of the first query, relative to the first key
  T scale;

  head_size(const strided& q, const strided& k, const attributes& at) : causal(at[0] != 0), offset(at[1]) {
    constexpr index_t lanes = micro_kernels<T>::few ? blocking<T>::tile_columns : blocking<T>::lanes;
    queries = q.extents[1];
    keys = k.extents[1];
    features = q.extents[3];
    padded_features = (features + lanes - 1) / lanes * lanes;
    group = k.extents[2] == 0 ? 1 : q.extents[2] / k.extents[2];
    scale = T(1) / std::sqrt(static_cast<T>(features));
  }
  /// The number of elements of padded rows of `positions`.
  index_t matrix(index_t positions) const { return whole_blocks(positions) * padded_features; }
};

/// The part of a product of blocks that a tile of its rows needs: columns before `columns`, and terms `first`
/// to `last` - 1 of the sums; the other terms are zero. A block whose queries do not attend to all its keys
/// is a triangle.
struct needed_part {
  index_t columns, first, last;
};

/// C = A B, or C += A B, with A read by strides and rows of B contiguous; columns are whole vectors.
/// needed(i, height) is the part that rows i to i + height - 1 need.
template <class T, class Needed>
void multiply_in_place(index_t m, index_t n, const T* a, index_t a_row, index_t a_column, const T* b,
                       index_t b_row, T* c, index_t c_row, bool add, const Needed& needed) {
  using K = micro_kernels<T>;
  constexpr index_t lanes = blocking<T>::lanes, wide = K::wide * lanes;
  for (index_t j = 0; j < n;) {
    const index_t left = n - j, columns = K::few              ? wide
                                          : left == 4 * lanes ? 2 * lanes
                                                              : std::min(left, wide);
    for (index_t i = 0; i < m; i += K::full) {
      const index_t height = std::min<index_t>(K::full, m - i);
      const needed_part part = needed(i, height);
      if (j < part.columns)
        K::run(static_cast<int>(height), static_cast<int>(columns / lanes), part.last - part.first,
               a + i * a_row + part.first * a_column, a_row, a_column, b + j + part.first * b_row, b_row,
               c + i * c_row + j, c_row, add);
    }
    j += columns;
  }
}

/// The features from `d` on of position `t`, followed by zeros.
template <class V, class S>
V row_part(const head_view<const S>& x, index_t t, index_t d, index_t features) {
  const S* const from = x.data + t * x.position + d * x.feature;
  if constexpr (std::is_same_v<S, simd::lane<V>>)
    if (x.feature == 1) return simd::load_some<V>(from, features - d);
  V v{};
  for (index_t i = 0; i < std::min<index_t>(simd::lane_count<V>, features - d); ++i)
    v[i] = from[i * x.feature];
  return v;
}

/// Copies the features of one position, converted.
template <class From, class To>
void copy_features(const From* from, index_t from_step, To* to, index_t to_step, index_t features) {
  if constexpr (std::is_same_v<From, To>)
    if (from_step == 1 && to_step == 1) return static_cast<void>(std::copy_n(from, features, to));
  for (index_t d = 0; d < features; ++d) to[d * to_step] = static_cast<To>(from[d * from_step]);
}

/// How many positions ahead of the copy a position is prefetched.
inline constexpr index_t positions_ahead = 8;

/// Rows of `positions`, padded with zeros: [whole_blocks(positions), padded_features].
template <class S, class T>
void pack_rows(const head_view<const S>& x, const head_size<T>& s, index_t positions, T* to) {
  for (index_t t = 0; t < positions; ++t, to += s.padded_features) {
    x.prefetch(std::min(t + positions_ahead, positions - 1), s.features);
    copy_features(x.data + t * x.position, x.feature, to, 1, s.features);
    std::fill(to + s.features, to + s.padded_features, T{});
  }
  std::fill_n(to, (whole_blocks(positions) - positions) * s.padded_features, T{});
}
/// Rows of keys, transposed blockwise: [blocks, features, attention_block]. With a single block, rows would
/// often be multiples of 4 KiB apart and map to the same cache sets.
template <class S, class T>
void pack_columns(const head_view<const S>& x, const head_size<T>& s, T* to) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t side = blocking<T>::lanes;
  for (index_t t0 = 0; t0 < whole_blocks(s.keys); t0 += side) {
    T* const block = to + t0 / attention_block * attention_block * s.features + t0 % attention_block;
    for (index_t t = t0 + side; t < std::min(t0 + 2 * side, s.keys); ++t) x.prefetch(t, s.features);
    for (index_t d0 = 0; d0 < s.features; d0 += side) {
      V square[std::size_t{side}];
      for (index_t t = 0; t < side; ++t)
        square[t] = t0 + t < s.keys ? row_part<V>(x, t0 + t, d0, s.features) : V{};
      transpose(square);
      for (index_t d = 0; d < std::min(side, s.features - d0); ++d)
        simd::store(block + (d0 + d) * attention_block, square[d]);
    }
  }
}
/// Copies packed rows first to last - 1 to x.
template <class S, class T>
void unpack_rows(const T* from, const head_size<T>& s, const head_view<S>& x, index_t first, index_t last) {
  for (index_t t = first; t < last; ++t, from += s.padded_features)
    copy_features(from, 1, x.data + t * x.position, x.feature, s.features);
}

/// The first key to which query `i` does not attend.
template <class T>
index_t visible(const head_size<T>& s, index_t i) {
  return s.causal ? std::min(i + s.offset + 1, s.keys) : s.keys;
}
/// How many keys of the block that begins at `j0` query `i` attends to: the first ones.
template <class T>
index_t shown(const head_size<T>& s, index_t i, index_t j0) {
  return std::clamp<index_t>(visible(s, i) - j0, 0, attention_block);
}
/// The first of `rows` queries from `i0` on that attends to key `j`; `rows` if none does.
template <class T>
index_t first_to_see(const head_size<T>& s, index_t i0, index_t rows, index_t j) {
  return s.causal ? std::clamp<index_t>(j - s.offset - i0, 0, rows) : 0;
}
inline index_t whole_vectors(index_t columns, index_t lanes) { return (columns + lanes - 1) / lanes * lanes; }

/// Replaces the scores of as many rows as a vector has lanes by weights exp((score - maximum) * scale), where
/// large values cancel before anything is rounded, and updates the running maxima and sums, one row per lane.
/// Returns the factors by which previous sums must be multiplied.
template <class T, class V = simd::vec<T, blocking<T>::lanes>>
V weigh_rows(const head_size<T>& s, index_t i0, index_t j0, T* scores, V& maximum, V& sum) {
  constexpr index_t lanes = blocking<T>::lanes, block = attention_block;
  const index_t end = std::max(whole_vectors(shown(s, i0 + lanes - 1, j0), lanes), lanes);
  V rows[std::size_t{lanes}];
  for (index_t r = 0; r < lanes; ++r) {
    T* const score = scores + r * block;
    for (index_t c = shown(s, i0 + r, j0); c < end; ++c) score[c] = -std::numeric_limits<T>::infinity();
    rows[r] = simd::load<V>(score);
    for (index_t c = lanes; c < end; c += lanes) rows[r] = simd::maximum(rows[r], simd::load<V>(score + c));
  }
  transpose(rows);
  V top = rows[0];
  for (index_t i = 1; i < lanes; ++i) top = simd::maximum(top, rows[i]);
  const V next = simd::maximum(maximum, top);
  for (index_t r = 0; r < lanes; ++r) {
    rows[r] = V{};
    for (index_t c = 0; c < end; c += lanes) {
      const V w = math::exp(simd::multiply(simd::load<V>(scores + r * block + c) - next[r], s.scale));
      simd::store(scores + r * block + c, w);
      rows[r] += w;
    }
    std::fill(scores + r * block + end, scores + (r + 1) * block, T{});
  }
  transpose(rows);
  for (index_t i = 1; i < lanes; ++i) rows[0] += rows[i];
  const V factor = math::exp(simd::multiply(maximum - next, s.scale));
  sum = simd::multiply_add(sum, factor, rows[0]);
  maximum = next;
  return factor;
}

/// The result of one head, and the logarithms of its sums. Without keys: 0 and minus infinity.
template <class S, class T>
void attend(const head_size<T>& s, const head_view<const S>& q, const head_view<const S>& k,
            const head_view<const S>& v, const head_view<S>& out, T* log_sum, scratch_memory& scratch) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t block = attention_block, lanes = blocking<T>::lanes;
  const index_t row = s.padded_features;
  T* keys = static_cast<T*>(
      scratch.get(static_cast<std::size_t>(2 * s.matrix(s.keys) + block * (block + 2 * row)) * sizeof(T)));
  T* values = keys + s.matrix(s.keys);
  T* queries = values + s.matrix(s.keys);
  T* scores = queries + block * row;
  T* sums = scores + block * block;
  pack_columns(k, s, keys);
  pack_rows(v, s, s.keys, values);
  for (index_t i0 = 0; i0 < s.queries; i0 += block) {
    const index_t rows = std::min(block, s.queries - i0), whole_groups = whole_vectors(rows, lanes);
    pack_rows(q.from(i0), s, rows, queries);
    V maximum[std::size_t{block / lanes}], sum[std::size_t{block / lanes}];
    std::fill(maximum, maximum + block / lanes, simd::splat<V>(-std::numeric_limits<T>::max()));
    std::fill(sum, sum + block / lanes, V{});
    const index_t end = visible(s, i0 + rows - 1);
    for (index_t j0 = 0; j0 < end; j0 += block) {
      const auto seen_by = [&](index_t i, index_t height) { return shown(s, i0 + i + height - 1, j0); };
      multiply_in_place(whole_groups, block, queries, row, index_t{1}, keys + j0 * s.features, block, scores,
                        block, false, [&](index_t i, index_t height) {
                          return needed_part{seen_by(i, height), 0, s.features};
                        });
      for (index_t r = 0; r < whole_groups; r += lanes) {
        const V factor = weigh_rows(s, i0 + r, j0, scores + r * block, maximum[r / lanes], sum[r / lanes]);
        if (j0 == 0) continue;
        for (index_t l = 0; l < lanes; ++l)
          for (index_t d = 0; d < row; d += lanes)
            simd::store(sums + (r + l) * row + d, simd::load<V>(sums + (r + l) * row + d) * factor[l]);
      }
      multiply_in_place(whole_groups, row, scores, block, index_t{1}, values + j0 * row, row, sums, row,
                        j0 > 0, [&](index_t i, index_t height) {
                          return needed_part{row, 0, seen_by(i, height)};
                        });
    }
    if (end == 0) std::fill_n(sums, rows * row, T{});
    for (index_t r = 0; r < rows; ++r) {
      const T total = sum[r / lanes][r % lanes], divisor = end == 0 ? T(1) : total;
      for (index_t d = 0; d < row; d += lanes)
        simd::store(sums + r * row + d, simd::load<V>(sums + r * row + d) / divisor);
      log_sum[i0 + r] = simd::multiply(maximum[r / lanes], s.scale)[r % lanes] + std::log(total);
    }
    unpack_rows(sums, s, out, i0, i0 + rows);
  }
}

/// Weights and cotangents of the scores of one block: P = exp(S scale - log_sum) and dS = P (dP - delta)
/// scale, with zeros where a query does not attend to a key.
template <class T>
void weigh_block(const head_size<T>& s, index_t i0, index_t rows, index_t j0, const T* log_sum,
                 index_t log_sum_stride, const T* delta, T* scores, T* cotangents) {
  using V = simd::vec<T, blocking<T>::lanes>;
  constexpr index_t block = attention_block, lanes = blocking<T>::lanes;
  for (index_t r = 0; r < rows; ++r) {
    T* p = scores + r * block;
    T* d = cotangents + r * block;
    const index_t end = shown(s, i0 + r, j0);
    for (index_t c = 0; c < end; c += lanes) {
      const V w =
          math::exp(simd::multiply_add(simd::load<V>(p + c), s.scale, -log_sum[(i0 + r) * log_sum_stride]));
      simd::store(p + c, w);
      simd::store(d + c, w * (simd::load<V>(d + c) - delta[i0 + r]) * s.scale);
    }
    std::fill(p + end, p + block, T{});
    std::fill(d + end, d + block, T{});
  }
}

/// The memory of one backward task: the operands of one key head and of one query head, and their cotangents.
template <class T>
struct backward_memory {
  T *keys_t, *values_t, *keys, *sum_k, *sum_v;               // of the key head
  T *queries, *cotangent, *sum_q, *scores, *slopes, *delta;  // of a query head

  backward_memory(const head_size<T>& s, scratch_memory& scratch) {
    constexpr index_t block = attention_block;
    const index_t k = s.matrix(s.keys), q = s.matrix(s.queries);
    keys_t = static_cast<T*>(scratch.get(
        static_cast<std::size_t>(5 * k + 3 * q + 2 * block * block + whole_blocks(s.queries)) * sizeof(T)));
    values_t = keys_t + k;
    keys = values_t + k;
    queries = keys + k;
    cotangent = queries + q;
    sum_q = cotangent + q;
    sum_k = sum_q + q;
    sum_v = sum_k + k;
    scores = sum_v + k;
    slopes = scores + block * block;
    delta = slopes + block * block;
  }
};

/// Reads the keys and values of a key head, and sets their cotangents to 0.
template <class S, class T>
void begin_backward(const head_size<T>& s, const head_view<const S>& k, const head_view<const S>& v,
                    const backward_memory<T>& m) {
  pack_columns(k, s, m.keys_t);
  pack_columns(v, s, m.values_t);
  pack_rows(k, s, s.keys, m.keys);
  std::fill_n(m.sum_k, s.matrix(s.keys), T{});
  std::fill_n(m.sum_v, s.matrix(s.keys), T{});
}

/// Reads the queries of a query head and the cotangents of their results, and sets the queries' cotangents to
/// 0.
template <class S, class T>
void begin_queries(const head_size<T>& s, const head_view<const S>& q, const head_view<const S>& out,
                   const head_view<const S>& g, const backward_memory<T>& m) {
  using V = simd::vec<T, blocking<T>::lanes>;
  pack_rows(q, s, s.queries, m.queries);
  pack_rows(g, s, s.queries, m.cotangent);
  std::fill_n(m.sum_q, s.matrix(s.queries), T{});
  for (index_t t = 0; t < s.queries; ++t) {
    V dot{};
    for (index_t d = 0; d < s.features; d += blocking<T>::lanes)
      dot = simd::multiply_add(row_part<V>(out, t, d, s.features),
                               simd::load<V>(m.cotangent + t * s.padded_features + d), dot);
    m.delta[t] = simd::fold_lanes(dot, [](auto a, auto b) { return a + b; });
  }
}

/// Adds what one query head contributes to the cotangents of keys and values, and computes that of its
/// queries.
template <class T>
void attend_backward(const head_size<T>& s, const T* log_sum, index_t log_sum_stride,
                     const backward_memory<T>& m) {
  constexpr index_t block = attention_block;
  const index_t row = s.padded_features;
  for (index_t j0 = 0; j0 < s.keys; j0 += block) {
    const index_t first = s.causal ? std::max<index_t>(0, j0 - s.offset) / block * block : 0;
    for (index_t i0 = first; i0 < s.queries; i0 += block) {
      const index_t rows = std::min(block, s.queries - i0);
      const index_t columns = std::min(block, s.keys - j0);
      const auto scores_of = [&](index_t i, index_t height) {
        return needed_part{shown(s, i0 + i + height - 1, j0), 0, s.features};
      };
      const auto along_keys = [&](index_t i, index_t height) {
        return needed_part{row, 0, std::min(columns, shown(s, i0 + i + height - 1, j0))};
      };
      const auto along_queries = [&](index_t j, index_t) {
        return needed_part{row, first_to_see(s, i0, rows, j0 + j), rows};
      };
      multiply_in_place(rows, block, m.queries + i0 * row, row, index_t{1}, m.keys_t + j0 * s.features, block,
                        m.scores, block, false, scores_of);
      multiply_in_place(rows, block, m.cotangent + i0 * row, row, index_t{1}, m.values_t + j0 * s.features,
                        block, m.slopes, block, false, scores_of);
      weigh_block(s, i0, rows, j0, log_sum, log_sum_stride, m.delta, m.scores, m.slopes);
      multiply_in_place(columns, row, m.scores, index_t{1}, block, m.cotangent + i0 * row, row,
                        m.sum_v + j0 * row, row, true, along_queries);
      multiply_in_place(rows, row, m.slopes, block, index_t{1}, m.keys + j0 * row, row, m.sum_q + i0 * row,
                        row, true, along_keys);
      multiply_in_place(columns, row, m.slopes, index_t{1}, block, m.queries + i0 * row, row,
                        m.sum_k + j0 * row, row, true, along_queries);
    }
  }
}

}  // namespace detail

/// in: q [batch, queries, heads, feature], k and v [batch, keys, key heads, feature]; out: result like q,
/// log_sum [batch, head, query]. Attributes: whether it is causal; the position of the first query. All but
/// log_sum are stored as S; bf16 and f16 are computed in f32.
template <class S>
void attention(const native_call& call) {
  using T = std::conditional_t<is_storage_type<S>, float, S>;
  using detail::head_view;
  const strided &q = call.in[0], &k = call.in[1], &v = call.in[2], &log_sum = call.out[1];
  const index_t heads = q.extents[2];
  const detail::head_size<T> size(q, k, call.at);
  call.threads.parallel_for(q.extents[0] * heads, [&](index_t task, scratch_memory& scratch) {
    const index_t b = task / heads, h = task % heads, of = h / size.group;
    detail::attend(size, head_view<const S>::of(q, b, h), head_view<const S>::of(k, b, of),
                   head_view<const S>::of(v, b, of), head_view<S>::of(call.out[0], b, h),
                   log_sum.data<T>() + task * size.queries, scratch);
  });
}

/// in: q, k, v, result, log_sum, cotangent of the result; out: cotangents of q, k and v. Key heads run in
/// parallel, each with its query heads in order.
template <class S>
void attention_backward(const native_call& call) {
  using T = std::conditional_t<is_storage_type<S>, float, S>;
  using detail::head_view;
  const strided &q = call.in[0], &k = call.in[1], &log_sum = call.in[4];
  const index_t heads = k.extents[2];
  const detail::head_size<T> size(q, k, call.at);
  const auto in = [&](int i, index_t b, index_t h) {
    return head_view<const S>::of(call.in[static_cast<std::size_t>(i)], b, h);
  };
  const auto write = [&](int i, index_t b, index_t h, const T* from, index_t positions) {
    const head_view<S> to = head_view<S>::of(call.out[static_cast<std::size_t>(i)], b, h);
    detail::unpack_rows(from, size, to, 0, positions);
  };
  call.threads.parallel_for(k.extents[0] * heads, [&](index_t task, scratch_memory& scratch) {
    const index_t b = task / heads, of = task % heads;
    const detail::backward_memory<T> m(size, scratch);
    detail::begin_backward(size, in(1, b, of), in(2, b, of), m);
    for (index_t h = of * size.group; h < (of + 1) * size.group; ++h) {
      detail::begin_queries(size, in(0, b, h), in(3, b, h), in(5, b, h), m);
      detail::attend_backward(size, log_sum.data<const T>() + b * log_sum.stride[0] + h * log_sum.stride[1],
                              log_sum.stride[2], m);
      write(0, b, h, m.sum_q, size.queries);
    }
    write(1, b, of, m.sum_k, size.keys);
    write(2, b, of, m.sum_v, size.keys);
  });
}

#ifdef WEFT_COMPILED
extern template void attention<float>(const native_call&);
extern template void attention<double>(const native_call&);
extern template void attention<bfloat16>(const native_call&);
extern template void attention<float16>(const native_call&);
extern template void attention_backward<float>(const native_call&);
extern template void attention_backward<double>(const native_call&);
extern template void attention_backward<bfloat16>(const native_call&);
extern template void attention_backward<float16>(const native_call&);
#endif

}  // namespace WEFT_ISA
}  // namespace weft::cpu
