// SPDX-License-Identifier: MIT
// Traffic: payload bytes that operations send, by kind, the same for every backend.
//
// Counted by the definition of the operation, not by a backend's routing: an all_reduce is an exchange of
// parts and a gathering of sums. Summed over ranks, these are the textbook volumes (S elements on n ranks:
// all_reduce 2S(n-1), all_gather and reduce_scatter S(n-1)).
//
//   static_assert(sent_by_all(collective::all_reduce, 1'000, 4) == 6'000);
#pragma once

#include <algorithm>

#include <weft/comm/operation.hpp>

namespace weft {

/// Elements that all ranks together send in an all_reduce, all_gather, reduce_scatter, broadcast or reduce of
/// `count` elements in total; 0 for other kinds, for which this number does not determine them.
constexpr index_t sent_by_all(collective kind, index_t count, int ranks) {
  switch (kind) {
    case collective::all_reduce: return 2 * count * (ranks - 1);
    case collective::all_gather:
    case collective::reduce_scatter:
    case collective::broadcast: return count * (ranks - 1);
    case collective::reduce: return count * (ranks - 1);
    default: return 0;
  }
}

/// Size of the part of `rank` when `count` elements are divided as evenly as possible: the first ranks
/// receive one more.
constexpr index_t even_part(index_t count, int ranks, int rank) {
  return count / ranks + (rank < count % ranks ? 1 : 0);
}

/// The index at which that part begins.
constexpr index_t even_begin(index_t count, int ranks, int rank) {
  return rank * (count / ranks) + std::min<index_t>(rank, count % ranks);
}

/// These sizes for all ranks.
rank_counts even_parts(index_t count, int ranks);

/// Elements that `rank` sends in `o`.
index_t sent_by(const operation& o, int rank, int ranks);

/// Bytes that one rank has sent, by kind. `control`: bytes of operations that coordinate ranks, such as
/// norms, losses and signals.
struct traffic {
  index_t bytes[collective_count] = {};
  index_t control = 0;

  index_t of(collective kind) const { return bytes[static_cast<int>(kind)]; }
  index_t total() const {
    index_t t = control;
    for (index_t b : bytes) t += b;
    return t;
  }
  traffic& operator+=(const traffic& other);
  traffic operator-(const traffic& before) const;
};

/// Bytes without those of control traffic.
inline index_t payload(const traffic& t) { return t.total() - t.control; }

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/traffic.ipp>
#endif
