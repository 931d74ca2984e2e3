// SPDX-License-Identifier: MIT
// Parallel strategies as types, and the options they represent.
//
//   using plan = policy<precision::bf16, strategy::fully_sharded<3>>;      // the one line that changes
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/run/policy.hpp>

namespace weft {

/// What ranks divide among themselves: the stages of ZeRO (Rajbhandari et al., 2020), none being stage 0.
enum class sharding : std::uint8_t { none, optimizer, gradients, parameters };

struct gradient_bucket;
/// A gradient hook reduces the gradients of a bucket over ranks in another way than all_reduce; see hook.hpp.
using next_message = std::function<std::optional<work>()>;
using gradient_hook = std::function<next_message(const gradient_bucket&)>;

/// All options of a parallel strategy. A strategy type sets defaults; fields can be changed before `bind`.
struct parallel_options {
  sharding divide = sharding::none;
  int shard_ranks = 0;         // ranks that together hold one copy; 0: all of them. Fewer: hybrid
  bool deterministic = false;  // the same bits for every division of a step among ranks and micro-batches
  bool reshard_after_forward = true;  // free gathered parameters between forward and backward
  bool broadcast_buffers = true;      // at the end of every step all ranks receive the buffers of rank 0
  int prefetch = 1;            // gathers that are started ahead of their use
  index_t bucket_bytes = 25 << 20, first_bucket_bytes = 1 << 20;  // size of the messages of parameters
  dtype param_dtype = dtype::f32;   // in which parameters are gathered: bf16 and f16 round them
  dtype reduce_dtype = dtype::f32;  // of gradients in messages; sums are f32, rounded once
  std::optional<device>
      offload_parameters{};  // where this rank's rows are kept between steps, if parameters are sharded
  std::optional<device> offload_optimizer{};   // where optimizer state is kept between updates
  /// The name of the unit in which a parameter is sent; by default by block, or by size if nothing is
  /// gathered.
  std::function<std::string(const std::string& parameter)> unit{};
  gradient_hook hook{};  // replaces all_reduce, if every rank holds everything
  int local_steps = 1;   // steps that ranks take alone before parameters are averaged
  std::chrono::milliseconds timeout = default_timeout;

  /// Whether `deterministic` can hold for this many ranks and micro-batches of each: whether the sums over
  /// micro-batches and ranks, in either order, form the tree of the sum over all.
  bool keeps_bits(int ranks, index_t micro_batches) const {
    if (ranks > 1 && (param_dtype != dtype::f32 || reduce_dtype != dtype::f32)) return false;
    const auto is_power_of_two = [](index_t n) { return (n & (n - 1)) == 0; };
    const int group = divide == sharding::parameters && shard_ranks ? shard_ranks : ranks;
    if (!reduces_each()) return ranks == 1 || is_power_of_two(micro_batches);
    return (group == ranks || is_power_of_two(group)) && (micro_batches == 1 || is_power_of_two(ranks));
  }

  /// Whether every micro-batch reduces its gradients, rather than the last one of a step their sum.
  bool reduces_each() const { return divide >= sharding::gradients; }
};

namespace strategy {

/// No parallelism: one rank.
struct single {
  static parallel_options options() { return {}; }
};
/// Data parallelism: every rank holds all parameters, and gradients are all-reduced, as torch's
/// DistributedDataParallel.
struct data_parallel {
  static parallel_options options() { return {}; }
};
/// Fully sharded data parallelism: ranks divide optimizer state (stage 1), gradients as well (2), parameters
/// as well (3), as ZeRO and torch's FSDP; stage 0 divides nothing.
template <int Stage = 3>
struct fully_sharded {
  static_assert(Stage >= 0 && Stage <= 3, "weft: fully_sharded: stages are 0, 1, 2 and 3");
  static parallel_options options() { return {.divide = static_cast<sharding>(Stage)}; }
};
/// Hybrid sharding: groups of `ShardRanks` ranks divide parameters, and the groups are replicas of each
/// other, as FSDP's HYBRID_SHARD.
template <int ShardRanks>
struct hybrid {
  static_assert(ShardRanks >= 1, "weft: hybrid: a group has at least one rank");
  static parallel_options options() { return {.divide = sharding::parameters, .shard_ranks = ShardRanks}; }
};

}  // namespace strategy

}  // namespace weft
