// SPDX-License-Identifier: MIT
// Context parallelism: the positions of each sequence divided among the ranks along axis cp of a mesh.
//
//   using plan = policy<strategy::mesh<dp, cp<>>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .cp = 4});
//   auto own = run.part_of_context(tokens.extents()[1]);
//   auto loss = steps.eval(model.loss(own.of(tokens), own.of(labels), own.positions()));
//
// Each rank computes its positions as if there were no others; only attention and look-ups by position
// differ. Gradients are averaged over the ranks along dp, fsdp and cp together; the loss of each is weighted
// by its number of positions.
#pragma once

#include <weft/parallel/bind.hpp>
#include <weft/parallel/head_exchange.hpp>
#include <weft/parallel/ring_attention.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/placement/context_graph.hpp>
#include <weft/placement/positions.hpp>

namespace weft {

/// Ring attention: blocks of keys and values travel around a ring while each rank attends to the block that
/// it has.
struct ring {
  static constexpr auto pass = &graph::with_context_attention;
  using service = parallel::ring_attention;
};
/// DeepSpeed Ulysses: ranks exchange positions for heads before attention, and exchange back after it.
struct ulysses {
  static constexpr auto pass = &graph::with_exchanged_heads;
  using service = parallel::head_exchange;
};

/// The compile-time error for positions that are counted from the first one of a rank.
template <bool Holds>
struct counted_positions_law {
  static_assert(Holds,
                "weft: rotary: ranks divide positions (axis cp), but these count from 0 on every rank: pass "
                "the positions of this rank, as in rotary(q, own.positions())");
};

/// The compile-time error for attention with a mask where ranks divide positions.
template <bool Holds>
struct masked_positions_law {
  static_assert(Holds,
                "weft: attention: a mask is not supported where ranks divide positions (axis cp): each rank "
                "would see only its own keys");
};

/// Options of programs in which attention is over the positions of several ranks. `Options`: the options
/// without context parallelism.
template <class Options, class Kind>
struct context_programs : Options {
  using positions_service = typename Kind::service;
  /// Compile-time errors: E counts positions from 0; attention with a mask.
  template <class E>
  static constexpr void check_positions() {
    (void)sizeof(counted_positions_law<!detail::contains_op<op::rotary, E>>);
    (void)sizeof(masked_positions_law<!detail::contains_op<op::masked_attention, E>>);
  }
  template <class Source>
  using positions = graph::position_graph<Source>;
  template <class Source>
  using divided = context_graph<runtime::divided_source<Source, Options>, Kind::pass>;
};

/// The axis of a mesh along which the positions of sequences are divided; `Kind`: ring or ulysses.
template <class Kind = ring>
struct cp {
  static constexpr mesh_axis axis = mesh_axis::cp;
  static constexpr sharding divide = sharding::none;
  template <class Options>
  using programs = context_programs<Options, Kind>;
};

/// The positions of a sequence that this rank has.
class context_part {
 public:
  /// `copies`: the context in which positions are copied.
  context_part(const parallel::context_division& d, int rank, std::shared_ptr<context> copies)
      : division_(d), rank_(rank), copies_(std::move(copies)) {}

  /// The number of positions.
  index_t count() const { return division_.count(rank_); }
  /// The factor of this rank's mean over its positions in the mean over ranks.
  double weight() const {
    return static_cast<double>(count() * division_.ranks()) / static_cast<double>(division_.length());
  }
  /// The index in the sequence of each of this rank's positions, [count()], for look-ups; on the device of
  /// the run.
  tensor<std::int32_t, extents<dyn>> positions() const {
    return marked(from(extents<dyn>{count()}, division_.positions(rank_), copies_->where()), 0);
  }
  /// A copy of this rank's positions of x [batch, positions, ...]; every rank passes the whole x. Throws
  /// shape_error if x has another number of positions.
  template <element T, class E>
    requires(E::order >= 2)
  auto of(const tensor<T, E>& x) const {
    if (x.extents()[1] != division_.length())
      refuse<shape_error>({"weft: context: a tensor of shape ", x.state()->extents, " does not have the ",
                           division_.length(), " positions of the sequence"});
    const parallel::position_range a = division_.early(rank_), b = division_.late(rank_);
    return marked(
        eval(concat<1>(slice<1>(x, a.first, a.first + a.count), slice<1>(x, b.first, b.first + b.count)),
             *copies_),
        1);
  }

 private:
  template <class T>
  T marked(T x, int dim) const {
    if (division_.ranks() > 1) x.state()->positions = positions_along(dim);
    return x;
  }

  parallel::context_division division_;
  int rank_;
  std::shared_ptr<context> copies_;
};

/// A run, made by `Base`, in which the ranks along axis cp divide the positions of sequences. See bind.
template <class Base>
class context_parallel_run : public Base {
 public:
  /// `positions`: the ranks that divide the positions of one sequence. The other arguments: see Base.
  template <class... Arguments>
  explicit context_parallel_run(std::shared_ptr<communicator> positions, Arguments&&... arguments)
      : Base(std::forward<Arguments>(arguments)...),
        positions_(std::make_shared<typename Base::programs::positions_service>(std::move(positions))),
        copies_(std::make_shared<context>(this->where())) {
    if (this->options().local_steps > 1)
      throw usage_error(
          "weft: bind: local_steps: ranks that divide positions read each other's keys and values, so they "
          "must take every step together");
    Base::divide_context(positions_);
  }

  /// The positions of this rank of sequences of `length` positions. Until the next call, programs and
  /// backward passes are executed for sequences of this length; the backward pass of a program with attention
  /// must be executed before a call with another length. Losses evaluated from here on are weighted by this
  /// rank's number of positions. Must be called with the same length on all ranks. Throws usage_error if
  /// `length` is less than the number of ranks.
  context_part part_of_context(index_t length) {
    const communicator& ranks = positions_->ranks();
    positions_->divide({length, ranks.size()});
    this->layer_rank_.divides_positions(ranks.size(), ranks.rank(), length);
    const context_part own(positions_->division(), ranks.rank(), copies_);
    this->weigh_positions(own.weight());
    return own;
  }

 private:
  std::shared_ptr<parallel::divided_positions> positions_;
  std::shared_ptr<context> copies_;  // separate, so that copies do not draw the run's random numbers
};

/// Binds a model to a mesh with the axis cp: its ranks process the same sequences, each some of the
/// positions, and hold the same parameters. Throws usage_error if the sizes do not multiply to the number of
/// ranks. With the axis pp: parallel/context_pipeline.hpp.
template <class Plan, class Model, class Optimizer>
  requires divides_context<Plan> && (!Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          const device_options& where = {}) {
  using options = typename Plan::programs;
  const mesh_sizes sizes = detail::mesh_of<Plan>(o, ranks.size());
  // For parameters and their gradients, cp is one more axis of copies.
  const mesh_sizes copies = parallel::parameter_mesh(o, ranks.size());
  const comm_options waits{.timeout = o.timeout};
  detail::place_model<Plan>(model, ranks, where);
  std::shared_ptr<communicator> context =
      group_along(ranks, sizes, mesh_axis::cp, mesh_axis::cp, waits, true);
  const auto along = [&](mesh_axis first, mesh_axis last) {
    return group_along(ranks, copies, first, last, waits);
  };
  if constexpr (divides_layers<Plan>) {
    static_assert(!options::by_positions, "weft: bind: positions are divided by cp or by tp, not by both");
    return context_parallel_run<tensor_parallel_run<Optimizer, options>>(
        std::move(context), model, optimizer, o,
        std::shared_ptr<communicator>(std::shared_ptr<void>(), &ranks), along(mesh_axis::dp, mesh_axis::ep),
        along(mesh_axis::tp, mesh_axis::tp), along(mesh_axis::fsdp, mesh_axis::tp),
        detail::divided_experts<Plan>(model, ranks, o));
  } else {
    return context_parallel_run<bound_run<Optimizer, options>>(
        std::move(context), parallel::bound_model(model), optimizer,
        std::shared_ptr<communicator>(std::shared_ptr<void>(), &ranks), o,
        detail::divided_experts<Plan>(model, ranks, o));
  }
}

}  // namespace weft
