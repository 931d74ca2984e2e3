// SPDX-License-Identifier: MIT
// Tensor parallelism: layers divided among the ranks along axis tp of a mesh.
//
//   using plan = policy<strategy::mesh<dp, tp<>>>;
//   static_assert(placement_of<decltype(hidden(x))>() == divided_along(1));
//   static_assert(sent<decltype(model(x)), plan>(4) == ...);      // bytes of forward and backward
//   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .tp = 2});
//
// The model declares which dims of parameters may be divided (shape/placement.hpp), and the messages between
// ranks follow from that (placement/). A policy without this axis includes and compiles none of this.
#pragma once

#include <weft/parallel/bind.hpp>
#include <weft/placement/divided_graph.hpp>
#include <weft/placement/print.hpp>
#include <weft/run/program.hpp>

namespace weft {

/// How activations between divided layers are distributed.
enum class activations : std::uint8_t {
  whole,        // every rank has them whole
  by_positions  // [batch, positions, ...] divided by positions: sequence parallelism
};

/// Options of programs of which each rank computes its part. `Options`: the options without tensor
/// parallelism.
template <class Options, activations Between>
struct divided_programs : Options {
  static constexpr bool by_positions = Between == activations::by_positions;
  template <class Source>
  using divided = divided_graph<runtime::divided_source<Source, Options>, by_positions>;
};

/// The mesh axis along which layers are divided, as Megatron-LM does (Shoeybi et al., 2019).
template <activations Between = activations::whole>
struct tp {
  static constexpr mesh_axis axis = mesh_axis::tp;
  static constexpr sharding divide = sharding::none;
  template <class Options>
  using programs = divided_programs<Options, Between>;
};

/// The placement of the value of E on ranks that divide layers, as it follows from the parameters that E
/// reads, before any consumer requires the whole value. E must have no boundaries (`repeat`).
template <expression E, class Options = program_options<>>
consteval placement placement_of() {
  const graph::compute_graph g = graph::expanded(runtime::detail::graph_of<E, Options>());
  return graph::place(g, graph::leaf_placements(g)).result;
}

/// The bytes that `ranks` ranks together send to evaluate E and its gradients once, under the policy `Plan`,
/// including what the backward pass gathers again. Operands are assumed to be in the placement in which E
/// reads them: with activations::by_positions the operands of a block are already divided, and the gradient
/// of a whole operand is sent in addition. All extents must be static; E must have no boundaries.
template <expression E, class Plan>
consteval index_t sent(index_t ranks) {
  static_assert(!Plan::strategy_type::has(mesh_axis::cp),
                "weft: sent: what ranks that divide positions send is known only at run time");
  using options = typename Plan::programs;
  const graph::compute_graph joint = runtime::detail::thawed_joint_graph<E, options>();
  const sequence<int> kept = autodiff::saved_values(joint, options::saved == saving::written);
  return graph::bytes_sent(autodiff::forward_part(joint, kept), ranks) +
         graph::bytes_sent(autodiff::backward_part(joint, kept), ranks);
}

/// The graph of an expression and its gradients as one rank computes it under the policy `Plan`, with the
/// placement of each value, in the DOT language of Graphviz; collectives are drawn as ovals. Computed at run
/// time.
template <class Plan, expression E>
std::string to_dot_divided(const E&) {
  using options = typename Plan::programs;
  return graph::to_dot(
      graph::detail::placed_program(runtime::detail::joint_graph_of<E, options>(), options::by_positions));
}

/// A run in which the ranks along axis tp divide layers. See bind.
template <class Optimizer, class Options>
class tensor_parallel_run : public bound_run<Optimizer, Options> {
  using base = bound_run<Optimizer, Options>;

 public:
  /// `ranks`: all ranks. `data`: ranks that process different data. `layers`: ranks that divide layers.
  /// `owners`: ranks that together hold one copy of the model.
  template <class Model>
  tensor_parallel_run(Model& model, Optimizer& optimizer, const parallel_options& o,
                      std::shared_ptr<communicator> ranks, std::shared_ptr<communicator> data,
                      std::shared_ptr<communicator> layers, std::shared_ptr<communicator> owners,
                      parallel::expert_division experts = {})
      : base(typename base::empty{}, parallel::bound_model(model), optimizer, std::move(ranks), o) {
    base::divide_experts(std::move(experts));
    parallel::divide_layers(model, *layers, {.timeout = o.timeout, .control = true});
    base::hold(this->model().parameters(), this->model().buffers(), std::move(data), std::move(owners), {},
               std::move(layers));
  }
};

/// Binds a model to a mesh with the axis tp: its ranks process the same data and divide the parameters whose
/// types declare it; all other parameters are whole on each rank. Parameters are those of rank 0; deferred
/// ones are drawn in parts. `run.full()` returns whole copies. Throws usage_error if the sizes do not
/// multiply to the number of ranks, shape_error if a parameter cannot be divided.
template <class Plan, class Model, class Optimizer>
  requires divides_layers<Plan> && (!Plan::strategy_type::has(mesh_axis::pp)) && (!divides_context<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& options,
          const device_options& where = {}) {
  const mesh_sizes sizes = detail::mesh_of<Plan>(options, ranks.size());
  detail::place_model<Plan>(model, ranks, where);
  const auto along = [&](mesh_axis first, mesh_axis last) {
    return group_along(ranks, sizes, first, last, {.timeout = options.timeout});
  };
  return tensor_parallel_run<Optimizer, typename Plan::programs>(
      model, optimizer, options, {std::shared_ptr<void>(), &ranks}, along(mesh_axis::dp, mesh_axis::ep),
      along(mesh_axis::tp, mesh_axis::tp), along(mesh_axis::fsdp, mesh_axis::tp),
      detail::divided_experts<Plan>(model, ranks, options));
}

}  // namespace weft
