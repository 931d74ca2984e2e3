// SPDX-License-Identifier: MIT
// Parallel strategies as types, and the options that they stand for.
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

/// What ranks divide among themselves; the stages of ZeRO (Rajbhandari et al., 2020).
enum class sharding : std::uint8_t { none, optimizer, gradients, parameters };

struct gradient_bucket;
/// Adds up the gradients of a bucket over ranks in a way of its own; see hook.hpp.
using next_message = std::function<std::optional<work>()>;
using gradient_hook = std::function<next_message(const gradient_bucket&)>;

struct parallel_options {
  sharding divide = sharding::none;
  int shard_ranks = 0;         // ranks that together hold one copy; 0: all. Fewer: hybrid
  bool deterministic = false;  // the same bits however ranks and micro-batches share a step
  bool reshard_after_forward = true;  // give gathered parameters back between forward and backward
  bool broadcast_buffers = true;      // every step ends with the buffers of rank 0 on all ranks
  int prefetch = 1;            // gathers that are started ahead of their use
  index_t bucket_bytes = 25 << 20, first_bucket_bytes = 1 << 20;  // parameters that travel together
  dtype param_dtype = dtype::f32;   // in which gathered parameters are sent: bf16 and f16 round them
  dtype reduce_dtype = dtype::f32;  // in which gradients are sent; sums are made in f32 and rounded once
  std::optional<device>
      offload_parameters{};  // where the rows of this rank are between steps, where ranks divide parameters
  std::optional<device> offload_optimizer{};   // where the optimiser's state is between updates
  /// The unit a parameter travels with, by name; none: by block, or by size where nothing is gathered.
  std::function<std::string(const std::string& parameter)> unit{};
  gradient_hook hook{};  // instead of all_reduce, where every rank holds everything
  int local_steps = 1;   // ranks go their own ways for so many steps, then take the mean of parameters
  std::chrono::milliseconds timeout = default_timeout;

  /// Whether `deterministic` can hold for so many ranks with so many micro-batches each: whether the
  /// sum over micro-batches and then ranks, or the other way round, is the sum over all in one tree.
  bool keeps_bits(int ranks, index_t micro_batches) const {
    if (ranks > 1 && (param_dtype != dtype::f32 || reduce_dtype != dtype::f32)) return false;
    const auto is_power_of_two = [](index_t n) { return (n & (n - 1)) == 0; };
    const int group = divide == sharding::parameters && shard_ranks ? shard_ranks : ranks;
    if (!reduces_each()) return ranks == 1 || is_power_of_two(micro_batches);
    return (group == ranks || is_power_of_two(group)) && (micro_batches == 1 || is_power_of_two(ranks));
  }

  /// Whether every micro-batch reduces its gradients, or the last one of a step those of all.
  bool reduces_each() const { return divide >= sharding::gradients; }
};

namespace strategy {

/// One rank.
struct single {
  static parallel_options options() { return {}; }
};
/// Every rank holds everything; gradients are summed.
struct data_parallel {
  static parallel_options options() { return {}; }
};
/// Ranks divide optimiser state (stage 1), gradients too (2), parameters too (3).
template <int Stage = 3>
struct fully_sharded {
  static_assert(Stage >= 0 && Stage <= 3, "weft: fully_sharded: stages are 0, 1, 2 and 3");
  static parallel_options options() { return {.divide = static_cast<sharding>(Stage)}; }
};
/// Groups of `ShardRanks` ranks divide parameters; the groups are copies of each other.
template <int ShardRanks>
struct hybrid {
  static_assert(ShardRanks >= 1, "weft: hybrid: a group has at least one rank");
  static parallel_options options() { return {.divide = sharding::parameters, .shard_ranks = ShardRanks}; }
};

}  // namespace strategy

}  // namespace weft
