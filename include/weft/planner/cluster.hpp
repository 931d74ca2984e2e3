// SPDX-License-Identifier: MIT
// The parameters of a cluster that planner.hpp needs.
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

/// The rates that a rank's device achieves, not its peak rates; measure.hpp measures them.
struct device_rates {
  double products = 0;         // floating-point operations per second of products in f32 and f64
  double narrow_products = 0;  // the same in bf16 and f16; 0: as `products`
  double attention = 0;        // the same for attention; 0: as products of its dtype
  double bytes = 0;            // bytes that kernels read and write per second
  double host = 0;             // bytes per second to and from host memory; 0: copies take no time
  double launch = 0;           // additional seconds for every kernel, product or copy
  bool is_gpu = false;         // it runs the programs of GPUs, and its messages stay in its memory (NCCL)
};

/// A connection: seconds until the first byte of a message arrives; bytes per second that a rank can send
/// while it receives at the same rate.
struct link {
  double latency = 0;
  double bytes = 0;
};

/// Ranks with equal devices. Ranks 0 to ranks_of_node - 1 are on the first machine, and so on.
struct cluster {
  int ranks = 1;
  int ranks_of_node = 0;  // 0: all ranks
  double memory = 0;      // bytes of memory of a rank's device; 0: unlimited
  device_rates device{};
  link within{}, between{};  // links between ranks of one machine, and of different machines
};

/// `c` with the defaults filled in for figures that are 0. Throws value_error, naming the figure, if one is
/// missing, negative or not finite.
cluster checked(cluster c);

/// The machine of a rank.
inline int node_of(const cluster& c, int rank) { return c.ranks_of_node > 0 ? rank / c.ranks_of_node : 0; }
/// Whether ranks, in ascending order, are on one machine.
inline bool is_one_node(const cluster& c, std::span<const int> members) {
  return node_of(c, members.front()) == node_of(c, members.back());
}

/// The time in seconds of an operation of `members` once all have begun it. `bytes`: the total that is
/// reduced, gathered or sent; of an all_to_all, the bytes that one rank sends. Uses the usual formulas, for n
/// ranks, latency a and bandwidth b: all_reduce min(2 (n-1) a + 2 (n-1)/n bytes/b, 2 ceil(log2 n) a + 2
/// bytes/b), a ring or a tree; all_gather and reduce_scatter (n-1) a + (n-1)/n bytes/b; broadcast and reduce
/// ceil(log2 n) a + bytes/b; barrier 2 ceil(log2 n) a; all others a + bytes/b. A group on several machines
/// with q ranks on each of them sends over q network interfaces at once, up to the bandwidth of `within`.
double seconds_of(const cluster& c, collective kind, double bytes, std::span<const int> members);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/cluster.ipp>
#endif
