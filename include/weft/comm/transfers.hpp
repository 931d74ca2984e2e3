// SPDX-License-Identifier: MIT
// Operations as lists of transfers between two ranks; a reduction is an exchange of parts, which each rank
// adds, and a gathering of sums.
#pragma once

#include <cstring>
#include <vector>

#include <weft/comm/operation.hpp>

namespace weft::detail {

/// Bytes sent to or received from another rank.
struct transfer {
  int peer;
  bool sends;
  void* data;
  std::size_t bytes;
};

inline void add_transfer(std::vector<transfer>& to, int peer, bool sends, void* data, std::size_t bytes) {
  if (bytes > 0) to.push_back({peer, sends, data, bytes});
}
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes && to != from) std::memmove(to, from, bytes);
}

/// The transfers of an operation without a reduction. Data that stays on this rank is copied immediately, by
/// copy(to, from, bytes).
template <class Copy = decltype(&copy_bytes)>
std::vector<transfer> moves(const operation& o, int rank, int ranks, Copy copy = &copy_bytes) {
  std::vector<transfer> all;
  const auto size = static_cast<std::size_t>(size_of(o.type()));
  const auto bytes = [&](index_t count) { return static_cast<std::size_t>(count) * size; };
  char* const in = const_cast<char*>(static_cast<const char*>(o.in.data));
  char* const out = static_cast<char*>(o.out.data);
  const auto count = [](const rank_counts& c, int r) { return c[static_cast<std::size_t>(r)]; };
  index_t sent = 0, received = 0;
  for (int r = 0; r < ranks; ++r) {
    const bool self = r == rank;
    switch (o.kind) {
      case collective::broadcast:
        if (self) break;
        if (rank == o.root) add_transfer(all, r, true, in, bytes(o.in.count));
        else if (r == o.root) add_transfer(all, r, false, out, bytes(o.out.count));
        break;
      case collective::all_gather: case collective::gather: {
        const bool all_want = o.kind == collective::all_gather;
        if (!self && (all_want || r == o.root)) add_transfer(all, r, true, in, bytes(o.in.count));
        if (all_want || rank == o.root) {
          if (self) copy(out + bytes(received), in, bytes(o.in.count));
          else add_transfer(all, r, false, out + bytes(received), bytes(count(o.out_counts, r)));
        }
        received += count(o.out_counts, r);
        break;
      }
      case collective::scatter:
        if (rank == o.root) {
          if (self) copy(out, in + bytes(sent), bytes(count(o.in_counts, r)));
          else add_transfer(all, r, true, in + bytes(sent), bytes(count(o.in_counts, r)));
        } else if (r == o.root) {
          add_transfer(all, r, false, out, bytes(o.out.count));
        }
        sent += count(o.in_counts, r);
        break;
      case collective::all_to_all:
        if (self) {
          copy(out + bytes(received), in + bytes(sent), bytes(count(o.in_counts, r)));
        } else {
          add_transfer(all, r, true, in + bytes(sent), bytes(count(o.in_counts, r)));
          add_transfer(all, r, false, out + bytes(received), bytes(count(o.out_counts, r)));
        }
        sent += count(o.in_counts, r);
        received += count(o.out_counts, r);
        break;
      default: break;  // barrier and split: the agreement is all they need
    }
  }
  return all;
}

/// The exchange of a reduction, after which rank r has part r of every rank's operand, shares[r] elements
/// each, in `received`, in rank order.
inline operation exchange_of_parts(const operation& o, const rank_counts& shares, int rank, void* received) {
  const index_t mine = shares[static_cast<std::size_t>(rank)];
  operation parts{.kind = collective::all_to_all, .in = o.in, .in_counts = shares};
  parts.out = {received, mine * static_cast<index_t>(shares.size()), o.type(), o.space()};
  parts.out_counts = rank_counts(shares.size(), mine);
  return parts;
}
/// The gathering of a reduction other than reduce_scatter; this rank has the `sums` of its part.
inline operation gathering_of_sums(const operation& o, const rank_counts& shares, int rank, void* sums) {
  return {.kind = o.kind == collective::reduce ? collective::gather : collective::all_gather,
          .in = {sums, shares[static_cast<std::size_t>(rank)], o.type(), o.space()},
          .out = o.out,
          .out_counts = shares,
          .root = o.root};
}

}  // namespace weft::detail
