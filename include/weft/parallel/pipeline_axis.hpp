// SPDX-License-Identifier: MIT
// The axis pp of meshes, and the options of a pipeline.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include <weft/parallel/schedule/check.hpp>
#include <weft/parallel/schedule/messages.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>
#include <weft/parallel/strategy.hpp>

namespace weft {

namespace pipeline {
/// Interleaved 1F1B with a fixed number of chunks on each stage, for `pp`.
template <int Chunks>
constexpr schedule interleaved(int stages, int micro_batches) {
  return interleaved_1f1b(stages, micro_batches, Chunks);
}
}  // namespace pipeline

namespace detail {
/// Whether the schedule has steps that compute gradients of parameters only.
constexpr bool divides_backward(const pipeline::schedule& s) {
  for (const auto& list : s.steps)
    for (const pipeline::step& e : list)
      if (e.kind == pipeline::step_kind::backward_weight) return true;
  return false;
}
/// The same for the schedules that `Make` makes; false if it is no constant expression.
template <auto Make>
consteval bool makes_weight_steps() {
  if constexpr (requires { typename std::bool_constant<divides_backward(Make(2, 4))>; })
    return divides_backward(Make(2, 4));
  else return false;
}
}  // namespace detail

/// Pipeline parallelism along an axis of `strategy::mesh`. `Make(stages, micro_batches)` returns the
/// schedule. `DividesBackward`: whether programs for schedules with divided backward steps (zero bubble) are
/// compiled.
template <auto Make = pipeline::one_f_one_b, bool DividesBackward = detail::makes_weight_steps<Make>()>
struct pp {
  static constexpr bool divides_backward = DividesBackward;
  static constexpr mesh_axis axis = mesh_axis::pp;
  static constexpr sharding divide = sharding::none;
  static pipeline::schedule make(int stages, int micro_batches) { return Make(stages, micro_batches); }
};

/// Options of a pipeline that are known at run time.
struct pipeline_options {
  /// Returns the schedule for a number of stages and of micro-batches; replaces the policy's. The stages of
  /// chunks must not depend on the number of micro-batches.
  std::function<pipeline::schedule(int stages, int micro_batches)> schedule{};
  /// The number of blocks of each chunk; empty: such that the largest modelled cost is minimal.
  std::vector<index_t> blocks{};
};

namespace detail {
/// The axis `pp` of a mesh.
template <class Axis, class... Axes>
struct pipeline_axis : pipeline_axis<Axes...> {};
template <auto Make, bool DividesBackward, class... Axes>
struct pipeline_axis<pp<Make, DividesBackward>, Axes...> {
  using type = pp<Make, DividesBackward>;
};
template <class Strategy>
struct pipeline_axis_of;
template <class... Axes>
struct pipeline_axis_of<strategy::mesh<Axes...>> : pipeline_axis<Axes...> {};
}  // namespace detail

namespace parallel {

/// The mesh that these options describe; ranks that divide positions are copies, along dp and fsdp. Throws
/// usage_error if it does not have `ranks` ranks.
[[gnu::cold]] inline mesh_sizes pipeline_mesh(const parallel_options& o, int ranks) {
  mesh_sizes sizes{.pp = o.stages, .tp = o.layer_ranks};
  if (ranks % o.stages)
    weft::refuse<usage_error>({"weft: pipeline: ", o.stages, " stages for ", ranks, " ranks"});
  const int data = std::max(1, ranks / o.stages / o.layer_ranks);
  if (data % o.context_ranks)
    weft::refuse<usage_error>({"weft: pipeline: ", o.context_ranks, " ranks that divide positions for ", data,
                               " ranks of each stage"});
  sizes.fsdp = o.divide == sharding::none ? 1 : o.shard_ranks ? o.shard_ranks : data;
  sizes.dp = std::max(1, data / sizes.fsdp);
  return check_mesh(sizes, ranks);
}

/// `s` with its messages. Throws usage_error if it cannot run, is one for other numbers, or needs programs
/// that were not compiled.
[[gnu::cold]] inline pipeline::schedule usable_schedule(pipeline::schedule s, int stages,
                                                        index_t micro_batches, bool divides_backward) {
  if (!s.has_messages()) s = pipeline::with_messages(s);
  if (const auto mistake = pipeline::check(s))
    weft::refuse<usage_error>({"weft: pipeline: the schedule cannot run: ", pipeline::to_text(*mistake)});
  const auto refuse = [&](const std::string& why) {
    weft::refuse<usage_error>(
        {"weft: pipeline: the schedule for ", stages, " stages and ", micro_batches, " micro-batches ", why});
  };
  if (s.stages() != stages || s.micro_batches != micro_batches)
    refuse("is one for " + std::to_string(s.stages()) + " stages and " + std::to_string(s.micro_batches));
  if (!divides_backward && weft::detail::divides_backward(s))
    refuse("divides backward steps, for which the policy must ask: pp<pipeline::zb_h1>, or pp<make, true>");
  if (!s.flush && s.chunks() != stages)
    refuse("updates parameters after each backward step, which needs one chunk on each stage: it has " +
           std::to_string(s.chunks()));
  return s;
}

/// Throws usage_error, naming the option, for what a schedule that updates parameters after each backward
/// step cannot do, because it needs the gradients of all stages or micro-batches before the update.
[[gnu::cold]] inline void refuse_without_flush(const parallel_options& o, double clip, bool scales_loss) {
  const auto refuse = [](const std::string& what) {
    weft::refuse<usage_error>(
        {"weft: pipeline: the schedule updates parameters after each backward step: ", what});
  };
  if (clip > 0)
    refuse(
        "step_options::clip needs the norm of the gradient over all stages, which do not wait for each "
        "other; set it to 0");
  if (scales_loss)
    refuse(
        "the scale of the loss of precision::f16 follows from the gradients of all stages; use "
        "precision::bf16");
  if (o.divide != sharding::none)
    refuse(
        "fsdp divides parameters or the state of the optimizer among ranks, each stage keeps whole "
        "versions of its parameters; use dp");
  if (o.local_steps > 1)
    refuse("local_steps is " + std::to_string(o.local_steps) + ": ranks would keep different versions");
}

}  // namespace parallel

}  // namespace weft
