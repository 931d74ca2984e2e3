// SPDX-License-Identifier: MIT
// A cluster by its figures: what planner.hpp has to know of the machines.
//
//   const planner::cluster c{.ranks = 64, .ranks_of_node = 8, .memory = 80e9,
//                            .device = {.products = 60e12, .narrow_products = 500e12, .bytes = 2.4e12,
//                                       .launch = 4e-6, .is_gpu = true},
//                            .within = {.latency = 4e-6, .bytes = 350e9},
//                            .between = {.latency = 8e-6, .bytes = 40e9}};
#pragma once

#include <span>

#include <weft/comm/operation.hpp>

namespace weft::planner {

/// What the device of a rank achieves, not its peak: measure.hpp measures it.
struct device_rates {
  double products = 0;         // floating-point operations per second of products in f32 and f64
  double narrow_products = 0;  // the same in bf16 and f16; 0: as `products`
  double attention = 0;        // the same of attention; 0: as products of its type
  double bytes = 0;            // bytes that kernels read and write per second
  double host = 0;             // bytes per second to and from memory of the host; 0: copies take no time
  double launch = 0;           // seconds that every kernel, product or copy takes besides
  bool is_gpu = false;         // its programs are those of GPUs, and its messages stay in its memory (NCCL)
};

/// A connection: seconds until the first byte of a message arrives; bytes per second that a rank can send
/// while it receives as many.
struct link {
  double latency = 0;
  double bytes = 0;
};

/// Ranks of one kind. Ranks 0 to ranks_of_node - 1 are on the first machine, and so on.
struct cluster {
  int ranks = 1;
  int ranks_of_node = 0;  // 0: all of them
  double memory = 0;      // bytes of a rank's device; 0: without limit
  device_rates device{};
  link within{}, between{};  // ranks of one machine, and of several
};

/// `c`, with figures that are 0 filled in where they have a meaning. Throws value_error that names a figure
/// which is missing, negative or no number.
cluster checked(cluster c);

/// The machine of a rank.
inline int node_of(const cluster& c, int rank) { return c.ranks_of_node > 0 ? rank / c.ranks_of_node : 0; }
/// Whether ranks, in ascending order, are on one machine.
inline bool is_one_node(const cluster& c, std::span<const int> members) {
  return node_of(c, members.front()) == node_of(c, members.back());
}

/// Seconds of an operation of `members` once all have begun it, `bytes` being what is reduced, gathered or
/// sent in all, of an all_to_all what one rank sends. The usual formulas, for n ranks, latency a and
/// bandwidth b: all_reduce min(2 (n-1) a + 2 (n-1)/n bytes/b, 2 ceil(log2 n) a + 2 bytes/b), a ring or a
/// tree; all_gather and reduce_scatter (n-1) a + (n-1)/n bytes/b; broadcast and reduce ceil(log2 n) a +
/// bytes/b; barrier 2 ceil(log2 n) a; all others a + bytes/b. A group of several machines that has q ranks on
/// each of them sends over q network interfaces at once, as far as `within` carries that.
double seconds_of(const cluster& c, collective kind, double bytes, std::span<const int> members);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/cluster.ipp>
#endif
