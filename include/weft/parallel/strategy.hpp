// SPDX-License-Identifier: MIT
// Parallel strategies as types, and the options they represent.
//
//   using plan = policy<precision::bf16, strategy::fully_sharded<3>>;      // the one line that changes
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <functional>
#include <optional>
#include <string>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/parallel/mesh.hpp>
#include <weft/run/policy.hpp>

namespace weft {

/// What ranks shard: the stages of ZeRO (Rajbhandari et al., 2020), where `none` is stage 0.
enum class sharding : std::uint8_t { none, optimizer, gradients, parameters };

struct gradient_bucket;
/// Starts a hook's next message for a bucket; returns nullopt when the bucket holds the sum.
using next_message = std::function<std::optional<work>()>;
/// A gradient hook replaces all_reduce for the gradients of a bucket; see hook.hpp.
struct gradient_hook : std::function<next_message(const gradient_bucket&)> {
  using function::function;
  /// Whether a step depends on state that the hook keeps from earlier steps, which checkpoints do not
  /// contain. Set it to false for a hook without state.
  bool remembers = true;
};

/// All options of a parallel strategy. A strategy type sets defaults; fields can be changed before `bind`.
struct parallel_options {
  sharding divide = sharding::none;
  int shard_ranks = 0;         // ranks that together hold one copy; 0: all ranks. Fewer: hybrid sharding
  int stages = 1;              // stages of a pipeline, each with an equal share of the ranks
  int layer_ranks = 1;         // ranks that divide layers
  int context_ranks = 1;       // ranks that divide the positions of sequences
  int expert_ranks = 1;        // ranks that divide experts
  bool deterministic = false;  // bitwise the same for every division of a step among ranks and micro-batches
  bool reshard_after_forward = true;  // free gathered parameters between forward and backward
  bool broadcast_buffers = true;      // at the end of every step all ranks receive the buffers of rank 0,
                                      // which are those saved in checkpoints
  int prefetch = 1;                   // number of gathers started ahead of their use
  index_t bucket_bytes = 25 << 20, first_bucket_bytes = 1 << 20;  // size of the messages of parameters
  dtype param_dtype = dtype::f32;   // dtype in which parameters are gathered; bf16 and f16 round them
  dtype reduce_dtype = dtype::f32;  // dtype of gradients in messages; sums are f32, rounded once, or among
                                    // several groups of shard_ranks twice
  std::optional<device>
      offload_parameters{};  // where this rank's rows are kept between steps, if parameters are sharded
  std::optional<device> offload_optimizer{};  // where optimizer state is kept between updates
  /// The name of the unit in which a parameter is sent. By default units are blocks, or are formed by size if
  /// neither parameters nor gradients are sharded.
  std::function<std::string(const std::string& parameter)> unit{};
  gradient_hook hook{};  // replaces all_reduce; only without sharding
  int local_steps = 1;   // steps that ranks take independently before parameters are averaged
  std::chrono::milliseconds timeout = default_timeout;

  /// Whether checkpoints of runs on several ranks contain everything that later steps depend on.
  bool is_saved_whole() const { return local_steps == 1 && !(hook && hook.remembers); }
  /// Whether `deterministic` can be satisfied with `ranks` ranks that have different samples (along dp, fsdp
  /// and ep) and `micro_batches` on each: whether the sums over micro-batches, over the ranks of a group and
  /// over groups, in this order, form the same tree as the sum over all micro-batches. False if ranks shard
  /// layers, positions or experts: they compute sums in another order than one rank.
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

  /// Whether every micro-batch reduces its gradients, because ranks shard them, instead of the last
  /// micro-batch of a step reducing their sum.
  bool reduces_each() const { return divide >= sharding::gradients && shard_ranks != 1; }
};

/// Throws usage_error if the time-out or a number of ranks is not positive, if there are several ranks along
/// an axis that a policy with the axes `has` lacks, or ranks that shard while nothing is sharded.
inline void check_options(const parallel_options& o, bool (*has)(mesh_axis)) {
  if (o.timeout.count() <= 0)
    refuse<usage_error>(
        {"weft: bind: timeout must be positive, not ", static_cast<index_t>(o.timeout.count()), " ms"});
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
/// As the stage of `fsdp`: parallel_options::divide decides when a model is bound, for programs that let
/// their users choose. Without options it is 3.
inline constexpr int stage_in_options = -1;
/// Fully sharded data parallelism along an axis: its ranks shard optimizer state (stage 1), also gradients
/// (2), also parameters (3), as ZeRO and torch's FSDP; stage 0 shards nothing.
template <int Stage = 3>
struct fsdp {
  static_assert(Stage >= stage_in_options && Stage <= 3,
                "weft: fsdp: the stage must be 0, 1, 2, 3 or stage_in_options");
  static constexpr mesh_axis axis = mesh_axis::fsdp;
  static constexpr sharding divide =
      Stage == stage_in_options ? sharding::parameters : static_cast<sharding>(Stage);
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
  static constexpr bool shards(sharding divide) { return divide == sharding::none; }
};

/// Ranks along several axes, each with a kind of parallelism. The kinds are types and the sizes are given
/// when a model is bound, so that one program works for all sizes:
///   using plan = policy<strategy::mesh<dp, fsdp<3>>>;
///   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .fsdp = 4});      // 8 ranks
template <class... Axes>
struct mesh {
  static constexpr int axes = sizeof...(Axes);
  static constexpr bool has(mesh_axis a) { return ((Axes::axis == a) || ...); }
  static_assert((int{has(mesh_axis::pp)} + int{has(mesh_axis::dp)} + int{has(mesh_axis::fsdp)} +
                 int{has(mesh_axis::cp)} + int{has(mesh_axis::ep)} + int{has(mesh_axis::tp)}) ==
                    int{sizeof...(Axes)},
                "weft: mesh: each axis can be given only once");
  /// The options of programs, with the changes of the axes that have some (parallel/tensor_parallel.hpp,
  /// parallel/context_parallel.hpp).
  template <class Options>
  using programs = typename detail::programs_along<Options, Axes...>::type;

  /// The sizes of a mesh with one axis, along which all ranks are.
  static mesh_sizes sizes(int ranks) {
    require_one_axis();
    mesh_sizes s;
    ((s.of(Axes::axis) = ranks), ...);
    return s;
  }
  /// The options of a mesh with one axis, along which all ranks are.
  static parallel_options options() {
    require_one_axis();
    return {.divide = std::max({Axes::divide...})};
  }
  /// Whether `divide` can be what this strategy shards.
  static constexpr bool shards(sharding divide) {
    return (std::same_as<Axes, fsdp<stage_in_options>> || ...) || divide == std::max({Axes::divide...});
  }
  /// Throws usage_error if the options do not match the mesh with these sizes: if they shard something else,
  /// or an axis with several ranks is not part of the mesh.
  static void check(const parallel_options& o, const mesh_sizes& sizes) {
    (void)options(sizes);  // checks the axes
    if (!shards(o.divide))
      refuse<usage_error>(
          {"weft: bind: the options do not shard what the policy shards: make them from the sizes of its "
           "mesh, auto o = plan::strategy_type::options({.dp = 2, .fsdp = 2})"});
  }
  /// The options for these sizes. Throws usage_error if an axis with several ranks is not part of the mesh.
  static parallel_options options(const mesh_sizes& sizes) {
    for (const mesh_axis a : mesh_axes)
      if (sizes.of(a) > 1 && !has(a))
        refuse<usage_error>({"weft: bind: the mesh ", to_string(sizes), " has the axis ", name_of(a),
                             ", which the policy does not have"});
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
/// All ranks shard what the stage specifies: `mesh<fsdp<Stage>>`.
template <int Stage = 3>
using fully_sharded = mesh<fsdp<Stage>>;
/// Hybrid sharding: groups of `ShardRanks` ranks shard parameters, and the groups are replicas of each other,
/// as FSDP's HYBRID_SHARD: `mesh<dp, fsdp<3>>` with the size of axis fsdp in its type.
template <int ShardRanks>
struct hybrid {
  static_assert(ShardRanks >= 1, "weft: hybrid: a group must have at least one rank");
  static parallel_options options() { return {.divide = sharding::parameters, .shard_ranks = ShardRanks}; }
};

}  // namespace strategy

}  // namespace weft
