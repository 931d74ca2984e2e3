// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/hook.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include <weft/base/config.hpp>
#include <weft/parallel/hook.hpp>

namespace weft {

WEFT_DEFINE gradient_hook bf16_compress() {
  gradient_hook hook = [](const gradient_bucket& b) {
    const auto sent = std::make_shared<std::vector<bfloat16>>(b.gradient.begin(), b.gradient.end());
    return [b, sent, stage = 0]() mutable -> std::optional<work> {
      if (stage++ == 0) return b.ranks->all_reduce(*sent, reduction::sum, b.options);
      std::transform(sent->begin(), sent->end(), b.gradient.begin(),
                     [](bfloat16 x) { return static_cast<float>(x); });
      return {};
    };
  };
  hook.remembers = false;
  return hook;
}

namespace detail {

WEFT_DEFINE void low_rank::multiply_right() const {
  std::fill(p.begin(), p.end(), 0.0f);
  for (index_t i = 0; i < rows; ++i)
    for (index_t j = 0; j < columns; ++j)
      for (int k = 0; k < rank; ++k)
        at(p, i, k) += m[static_cast<std::size_t>(i * columns + j)] * at(q, j, k);
}

WEFT_DEFINE void low_rank::multiply_left() const {
  std::fill(q.begin(), q.end(), 0.0f);
  for (index_t i = 0; i < rows; ++i)
    for (index_t j = 0; j < columns; ++j)
      for (int k = 0; k < rank; ++k)
        at(q, j, k) += m[static_cast<std::size_t>(i * columns + j)] * at(p, i, k);
}

WEFT_DEFINE void low_rank::orthonormalize() const {
  for (int pass = 0; pass < 2; ++pass)
    for (int k = 0; k < rank; ++k) {
      for (int other = 0; other < k; ++other) {
        double along = 0;
        for (index_t i = 0; i < rows; ++i) along += double{at(p, i, k)} * at(p, i, other);
        for (index_t i = 0; i < rows; ++i) at(p, i, k) -= static_cast<float>(along) * at(p, i, other);
      }
      double length = 0;
      for (index_t i = 0; i < rows; ++i) length += double{at(p, i, k)} * at(p, i, k);
      const auto scale = static_cast<float>(length > 0 ? 1 / std::sqrt(length) : 0);
      for (index_t i = 0; i < rows; ++i) at(p, i, k) *= scale;
    }
}

WEFT_DEFINE void low_rank::draw_zero_columns(philox_key key, index_t first) const {
  for (int k = 0; k < rank; ++k) {
    bool is_zero = true;
    for (index_t j = 0; j < columns && is_zero; ++j) is_zero = at(q, j, k) == 0;
    if (!is_zero) continue;
    std::vector<float> drawn(static_cast<std::size_t>(columns));
    cpu::fill_normal(key, first + k * columns, columns, drawn.data());
    for (index_t j = 0; j < columns; ++j) at(q, j, k) = drawn[static_cast<std::size_t>(j)];
  }
}

}  // namespace detail

WEFT_DEFINE gradient_hook power_sgd(power_sgd_options o) {
  if (o.rank < 1) refuse<usage_error>({"weft: power_sgd: the rank must be 1 or more, not ", o.rank});
  gradient_hook hook = [o](const gradient_bucket& b) {
    auto& s = b.remembered<detail::power_sgd_state>();
    if (s.steps++ < o.start_step)
      return next_message([b, begun = false]() mutable -> std::optional<work> {
        if (std::exchange(begun, true)) return {};
        return b.ranks->all_reduce(b.gradient, reduction::sum, b.options);
      });
    std::vector<detail::low_rank> matrices;
    std::vector<std::pair<index_t, index_t>> vectors;  // begin and size of gradients that are sent whole
    index_t p_size = 0, q_size = 0, rest_size = 0;
    for (const gradient_bucket::part& part : b.parts) {
      const index_t size = part.extents.size(), rows = part.extents.order > 1 ? part.extents[0] : 1,
                    columns = rows ? size / rows : 0;
      const int rank = static_cast<int>(std::min<index_t>(o.rank, std::min(rows, columns)));
      if (part.extents.order > 1 && rank * (rows + columns) < size) {
        matrices.push_back(
            {rows,
             columns,
             rank,
             b.gradient.subspan(static_cast<std::size_t>(part.at), static_cast<std::size_t>(size)),
             {},
             {}});
        p_size += rows * rank;
        q_size += columns * rank;
      } else {
        vectors.emplace_back(part.at, size);
        rest_size += size;
      }
    }
    const bool first = s.q.empty();
    s.p.resize(static_cast<std::size_t>(p_size));
    s.q.resize(static_cast<std::size_t>(q_size));
    s.rest.resize(static_cast<std::size_t>(rest_size));
    s.error.resize(b.gradient.size());
    // The same on all ranks, and different in each step, because a fixed Q would never send the components
    // orthogonal to it.
    if (first || !o.warm_start) cpu::fill_normal(key_of(o.seed), s.steps * q_size, q_size, s.q.data());
    std::size_t p_at = 0, q_at = 0, rest_at = 0;
    for (detail::low_rank& m : matrices) {
      m.p = std::span(s.p).subspan(p_at, static_cast<std::size_t>(m.rows * m.rank));
      m.q = std::span(s.q).subspan(q_at, static_cast<std::size_t>(m.columns * m.rank));
      p_at += m.p.size();
      q_at += m.q.size();
      if (o.error_feedback) {
        const float* error = s.error.data() + (m.m.data() - b.gradient.data());
        for (std::size_t i = 0; i < m.m.size(); ++i) m.m[i] += error[i];
      }
      m.multiply_right();
    }
    for (const auto& [begin, size] : vectors) {
      std::copy_n(b.gradient.begin() + begin, size, s.rest.begin() + static_cast<std::ptrdiff_t>(rest_at));
      rest_at += static_cast<std::size_t>(size);
    }
    return next_message([b, &s, matrices, vectors, seed = o.seed,
                         stage = 0]() mutable -> std::optional<work> {
      switch (stage++) {
        case 0: return b.ranks->all_reduce(s.rest, reduction::sum, b.options);
        case 1: return b.ranks->all_reduce(s.p, reduction::sum, b.options);
        case 2:
          for (const detail::low_rank& m : matrices) {
            m.orthonormalize();
            m.multiply_left();
          }
          return b.ranks->all_reduce(s.q, reduction::sum, b.options);
        default: break;
      }
      const auto share = 1.0f / static_cast<float>(b.ranks->size());
      for (const detail::low_rank& m : matrices) {
        float* error = s.error.data() + (m.m.data() - b.gradient.data());
        for (index_t i = 0; i < m.rows; ++i)
          for (index_t j = 0; j < m.columns; ++j) {
            const auto at = static_cast<std::size_t>(i * m.columns + j);
            const float sum = m.product(i, j);
            error[at] = m.m[at] - sum * share;  // the part of this rank's gradient that the mean lacks
            m.m[at] = sum;
          }
        m.draw_zero_columns(key_of(seed),
                            s.steps * static_cast<index_t>(s.q.size()) + (m.q.data() - s.q.data()));
      }
      std::size_t at_rest = 0;
      for (const auto& [begin, size] : vectors) {
        std::copy_n(s.rest.begin() + static_cast<std::ptrdiff_t>(at_rest), size, b.gradient.begin() + begin);
        at_rest += static_cast<std::size_t>(size);
      }
      return {};
    });
  };
  return hook;
}

WEFT_DEFINE gradient_hook top_k(double share) {
  if (!(share > 0 && share <= 1))
    refuse<usage_error>({"weft: top_k: a share of ", share, " is not between 0 and 1"});
  using state = detail::top_k_state;
  return [share](const gradient_bucket& b) {
    auto& s = b.remembered<state>();
    const std::size_t n = b.gradient.size(),
                      k = std::min(n, static_cast<std::size_t>(std::ceil(share * static_cast<double>(n))));
    const auto ranks = static_cast<std::size_t>(b.ranks->size());
    s.error.resize(n);
    for (std::size_t i = 0; i < n; ++i) b.gradient[i] += s.error[i];
    std::vector<std::int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    const auto magnitude = [&](std::int32_t x) {  // as bits, in which NaN is the largest
      return std::bit_cast<std::uint32_t>(b.gradient[static_cast<std::size_t>(x)]) & 0x7fffffffu;
    };
    const auto larger = [&](std::int32_t x, std::int32_t y) {
      return magnitude(x) != magnitude(y) ? magnitude(x) > magnitude(y) : x < y;
    };
    if (k < n)
      std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(), larger);
    s.places.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
    s.values.clear();
    s.error.assign(b.gradient.begin(), b.gradient.end());
    for (std::int32_t p : s.places) {
      s.values.push_back(b.gradient[static_cast<std::size_t>(p)]);
      s.error[static_cast<std::size_t>(p)] = 0;
    }
    s.all_values.resize(k * ranks);
    s.all_places.resize(k * ranks);
    return [b, &s, stage = 0]() mutable -> std::optional<work> {
      switch (stage++) {
        case 0: return b.ranks->all_gather(s.values, s.all_values, {}, b.options);
        case 1: return b.ranks->all_gather(s.places, s.all_places, {}, b.options);
        default: break;
      }
      std::fill(b.gradient.begin(), b.gradient.end(), 0.0f);
      for (std::size_t i = 0; i < s.all_places.size(); ++i)
        b.gradient[static_cast<std::size_t>(s.all_places[i])] += s.all_values[i];
      return {};
    };
  };
}

}  // namespace weft
