// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/traffic.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/traffic.hpp>

namespace weft {

WEFT_DEFINE rank_counts even_parts(index_t count, int ranks) {
  rank_counts parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(even_part(count, ranks, r));
  return parts;
}

WEFT_DEFINE index_t sent_by(const operation& o, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank);
  switch (o.kind) {
    case collective::all_reduce: {
      const index_t mine = even_part(o.out.count, ranks, rank);
      return o.out.count - mine + mine * (ranks - 1);
    }
    case collective::reduce_scatter: return o.in.count - o.in_counts[own];
    case collective::all_gather: return o.in.count * (ranks - 1);
    case collective::broadcast: return rank == o.root ? o.in.count * (ranks - 1) : 0;
    case collective::reduce:
    case collective::gather: return rank == o.root ? 0 : o.in.count;
    case collective::scatter: return rank == o.root ? o.in.count - o.in_counts[own] : 0;
    case collective::all_to_all: return o.in.count - o.in_counts[own];
    case collective::send: return o.in.count;
    default: return 0;
  }
}

WEFT_DEFINE traffic& traffic::operator+=(const traffic& other) {
  for (int k = 0; k < collective_count; ++k) bytes[k] += other.bytes[k];
  control += other.control;
  return *this;
}

WEFT_DEFINE traffic traffic::operator-(const traffic& before) const {
  traffic t = *this;
  for (int k = 0; k < collective_count; ++k) t.bytes[k] -= before.bytes[k];
  t.control -= before.control;
  return t;
}

}  // namespace weft
