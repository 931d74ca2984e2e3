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
/// The same for the schedules that `Make` makes; false if the call is not a constant expression.
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
  /// Returns the schedule for these numbers; replaces the policy's. The assignment of chunks to stages must
  /// not depend on the number of micro-batches.
  std::function<pipeline::schedule(int stages, int micro_batches)> schedule{};
  /// The number of blocks of each chunk; if empty, chosen to minimise the largest modelled cost of a chunk.
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

/// `s` with its messages. Throws usage_error if it cannot run, is for other numbers of stages or
/// micro-batches, or needs programs that were not compiled.
[[gnu::cold]] pipeline::schedule usable_schedule(pipeline::schedule s, int stages, index_t micro_batches,
                                                 bool divides_backward);

/// Throws usage_error, naming the option, for options that need the gradients of all stages or micro-batches
/// before the update, which a schedule that updates parameters after each backward step does not have.
[[gnu::cold]] void refuse_without_flush(const parallel_options& o, double clip, bool scales_loss);

}  // namespace parallel

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/pipeline_axis.ipp>
#endif
