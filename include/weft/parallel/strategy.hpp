// SPDX-License-Identifier: MIT
// Parallel strategies as types, and the options they represent.
//
//   using plan = policy<precision::bf16, strategy::fully_sharded<3>>;      // the one line that changes
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/parallel/mesh.hpp>
#include <weft/run/policy.hpp>

namespace weft {

/// What ranks divide among themselves: the stages of ZeRO (Rajbhandari et al., 2020), none being stage 0.
enum class sharding : std::uint8_t { none, optimizer, gradients, parameters };

struct gradient_bucket;
/// The next message of a hook for a bucket; none when the bucket holds the sum.
using next_message = std::function<std::optional<work>()>;
/// A gradient hook reduces the gradients of a bucket over ranks in another way than all_reduce; see hook.hpp.
struct gradient_hook : std::function<next_message(const gradient_bucket&)> {
  using function::function;
  /// Whether a step depends on what the hook has kept from steps before. Checkpoints do not have that; a hook
  /// that keeps nothing may be set to false.
  bool remembers = true;
};

/// All options of a parallel strategy. A strategy type sets defaults; fields can be changed before `bind`.
struct parallel_options {
  sharding divide = sharding::none;
  int shard_ranks = 0;         // ranks that together hold one copy; 0: all of them. Fewer: hybrid
  int stages = 1;              // of a pipeline, each with an equal share of the ranks
  int layer_ranks = 1;         // ranks that divide layers
  int context_ranks = 1;       // ranks that divide the positions of sequences
  int expert_ranks = 1;        // ranks that divide experts
  bool deterministic = false;  // the same bits for every division of a step among ranks and micro-batches
  bool reshard_after_forward = true;  // free gathered parameters between forward and backward
  bool broadcast_buffers = true;      // at the end of every step all ranks receive the buffers of rank 0,
                                      // which are those that checkpoints have
  int prefetch = 1;                   // gathers that are started ahead of their use
  index_t bucket_bytes = 25 << 20, first_bucket_bytes = 1 << 20;  // size of the messages of parameters
  dtype param_dtype = dtype::f32;   // in which parameters are gathered: bf16 and f16 round them
  dtype reduce_dtype = dtype::f32;  // of gradients in messages; sums are f32, rounded once
  std::optional<device>
      offload_parameters{};  // where this rank's rows are kept between steps, if parameters are sharded
  std::optional<device> offload_optimizer{};  // where optimizer state is kept between updates
  /// The name of the unit in which a parameter is sent; by default by block, or by size if nothing is
  /// gathered.
  std::function<std::string(const std::string& parameter)> unit{};
  gradient_hook hook{};  // replaces all_reduce, if every rank holds everything
  int local_steps = 1;   // steps that ranks take alone before parameters are averaged
  std::chrono::milliseconds timeout = default_timeout;

  /// Whether checkpoints have all on which later steps depend, of runs of several ranks.
  bool is_saved_whole() const { return local_steps == 1 && !(hook && hook.remembers); }
  /// Whether `deterministic` can hold with `ranks` ranks that have different samples (along dp, fsdp and ep)
  /// and `micro_batches` on each: whether the sums over micro-batches, ranks of a group and groups, in the
  /// order in which they are added, form the tree of the sum over all. False if ranks shard layers, positions
  /// or experts, where sums are computed in another order than on one rank.
  bool keeps_bits(int ranks, index_t micro_batches) const {
    if (param_dtype != dtype::f32 || reduce_dtype != dtype::f32) return false;
    if (layer_ranks > 1 || context_ranks > 1 || expert_ranks > 1) return false;
    if (ranks == 1) return true;
    if (hook || local_steps > 1) return false;
    const auto is_power_of_two = [](index_t n) { return (n & (n - 1)) == 0; };
    const int group = divide != sharding::none && shard_ranks ? shard_ranks : ranks;
    if (group != ranks && !is_power_of_two(group)) return false;
    return reduces_each() ? micro_batches == 1 || is_power_of_two(ranks) : is_power_of_two(micro_batches);
  }

  /// Whether every micro-batch reduces its gradients, rather than the last one of a step their sum: where
  /// ranks divide them.
  bool reduces_each() const { return divide >= sharding::gradients && shard_ranks != 1; }
};

/// Throws usage_error if a number of ranks is not positive, or several are to divide what the strategy, or a
/// policy with the axes `has`, does not.
inline void check_axes(const parallel_options& o, bool (*has)(mesh_axis)) {
  const struct {
    mesh_axis axis;
    int ranks;
    const char *field, *what;
  } asked[] = {{mesh_axis::pp, o.stages, "stages", " stages need"},
               {mesh_axis::cp, o.context_ranks, "context_ranks", " ranks that divide positions need"},
               {mesh_axis::ep, o.expert_ranks, "expert_ranks", " ranks that divide experts need"},
               {mesh_axis::tp, o.layer_ranks, "layer_ranks", " ranks that divide layers need"}};
  if (o.shard_ranks < 0) refuse<usage_error>({"weft: bind: shard_ranks is ", o.shard_ranks});
  for (const auto& a : asked) {
    if (a.ranks < 1) refuse<usage_error>({"weft: bind: ", a.field, " is ", a.ranks});
    if (a.ranks > 1 && !has(a.axis))
      refuse<usage_error>({"weft: bind: ", a.ranks, a.what, " a policy with the axis ", name_of(a.axis)});
  }
  if (o.divide == sharding::none && o.shard_ranks > o.expert_ranks)
    refuse<usage_error>(
        {"weft: bind: shard_ranks is ", o.shard_ranks,
         ", but the strategy divides neither parameters, nor gradients, nor optimizer state"});
}

// Axes of `strategy::mesh`.

/// Data parallelism along an axis: its ranks hold copies, and gradients are all-reduced, as torch's
/// DistributedDataParallel.
struct dp {
  static constexpr mesh_axis axis = mesh_axis::dp;
  static constexpr sharding divide = sharding::none;
};
/// Fully sharded data parallelism along an axis: its ranks divide optimizer state (stage 1), gradients as
/// well (2), parameters as well (3), as ZeRO and torch's FSDP; stage 0 divides nothing.
template <int Stage = 3>
struct fsdp {
  static_assert(Stage >= 0 && Stage <= 3, "weft: fully_sharded: stages are 0, 1, 2 and 3");
  static constexpr mesh_axis axis = mesh_axis::fsdp;
  static constexpr sharding divide = static_cast<sharding>(Stage);
};

namespace detail {
template <class Options, class... Axes>
struct programs_along {
  using type = Options;
};
template <class Options, class First, class... Rest>
struct programs_along<Options, First, Rest...> {
  using type = typename programs_under<First, typename programs_along<Options, Rest...>::type>::type;
};
}  // namespace detail

namespace strategy {

/// No parallelism: one rank.
struct single {
  static parallel_options options() { return {}; }
};

/// Ranks along several axes, each with a kind of parallelism. Kinds are types, sizes are given when a model
/// is bound, so that one program serves all sizes:
///   using plan = policy<strategy::mesh<dp, fsdp<3>>>;
///   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .fsdp = 4});      // 8 ranks
template <class... Axes>
struct mesh {
  static constexpr int axes = sizeof...(Axes);
  static constexpr bool has(mesh_axis a) { return ((Axes::axis == a) || ...); }
  static_assert((int{has(mesh_axis::pp)} + int{has(mesh_axis::dp)} + int{has(mesh_axis::fsdp)} +
                 int{has(mesh_axis::cp)} + int{has(mesh_axis::ep)} + int{has(mesh_axis::tp)}) ==
                    int{sizeof...(Axes)},
                "weft: mesh: an axis is given once");
  /// The options of programs: those of the axes that change them (parallel/tensor_parallel.hpp,
  /// parallel/context_parallel.hpp).
  template <class Options>
  using programs = typename detail::programs_along<Options, Axes...>::type;

  /// The sizes of a mesh of one axis, along which all ranks are.
  static mesh_sizes sizes(int ranks) {
    require_one_axis();
    mesh_sizes s;
    ((s.of(Axes::axis) = ranks), ...);
    return s;
  }
  /// Of a mesh of one axis, along which all ranks are.
  static parallel_options options() {
    require_one_axis();
    return {.divide = std::max({Axes::divide...})};
  }
  /// Throws usage_error if options with these sizes are not those of the mesh: if they divide something else,
  /// or an axis has several ranks and is not part of it.
  static void check(const parallel_options& o, const mesh_sizes& sizes) {
    if (o.divide != options(sizes).divide)
      refuse<usage_error>(
          {"weft: bind: the options shard something else than the policy: make them from the sizes "
           "of its mesh, auto o = plan::strategy_type::options({.dp = 2, .fsdp = 2})"});
  }
  /// Throws usage_error if an axis has several ranks and is not part of the mesh.
  static parallel_options options(const mesh_sizes& sizes) {
    for (const mesh_axis a : mesh_axes)
      if (sizes.of(a) > 1 && !has(a))
        refuse<usage_error>({"weft: bind: the mesh ", to_string(sizes), " has the axis ", name_of(a),
                             ", which the policy has not"});
    const sharding divide = std::max({Axes::divide...});
    return {.divide = divide,
            .shard_ranks = divide == sharding::none ? 0 : sizes.fsdp * sizes.ep,
            .stages = sizes.pp,
            .layer_ranks = sizes.tp,
            .context_ranks = sizes.cp,
            .expert_ranks = sizes.ep};
  }

 private:
  static void require_one_axis() {
    static_assert(sizeof...(Axes) == 1,
                  "weft: bind: a mesh of several axes needs their sizes: bind<plan>(model, optimizer, ranks, "
                  "{.dp = 2, .fsdp = 2})");
  }
};

/// Every rank holds all parameters: `mesh<dp>`.
using data_parallel = mesh<dp>;
/// All ranks divide what the stage says: `mesh<fsdp<Stage>>`.
template <int Stage = 3>
using fully_sharded = mesh<fsdp<Stage>>;
/// Hybrid sharding: groups of `ShardRanks` ranks divide parameters, and the groups are replicas of each
/// other, as FSDP's HYBRID_SHARD: `mesh<dp, fsdp<3>>` with the size of one axis in its type.
template <int ShardRanks>
struct hybrid {
  static_assert(ShardRanks >= 1, "weft: hybrid: a group has at least one rank");
  static parallel_options options() { return {.divide = sharding::parameters, .shard_ranks = ShardRanks}; }
};

}  // namespace strategy

}  // namespace weft
