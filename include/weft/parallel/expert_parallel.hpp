// SPDX-License-Identifier: MIT
// Expert parallelism: the experts of mixtures divided among the ranks along axis ep of a mesh.
//
//   using plan = policy<strategy::mesh<dp, ep>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .ep = 4});
//
// Each rank processes its own data and has a run of the experts of every mixture (run/experts.hpp). Rows are
// sent to the ranks that have their experts, and the results back, in forward and backward. All other
// parameters are trained as with data parallelism among all ranks; gradients of experts are complete where
// they are, and summed over the ranks of the axes dp and fsdp that have the same.
#pragma once

#include <algorithm>
#include <optional>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/parallel/bind.hpp>

namespace weft {

/// The axis of a mesh along which experts are divided.
struct ep {
  static constexpr mesh_axis axis = mesh_axis::ep;
  static constexpr sharding divide = sharding::none;
};

namespace parallel {

/// Messages between ranks that divide experts.
class expert_group final : public runtime::expert_ranks {
 public:
  expert_group(std::shared_ptr<communicator> ranks, const device& where, std::chrono::milliseconds timeout)
      : ranks_(std::move(ranks)), messages_(message_device(where, ranks_.get())), timeout_(timeout) {}

  int size() const override { return ranks_->size(); }
  int rank() const override { return ranks_->rank(); }
  counts gather(const counts& mine) override {
    counts all;  // where nothing is sent, every rank is taken to have what this one has
    for (int r = 0; r < size(); ++r) all.insert(all.end(), mine.begin(), mine.end());
    const auto n = static_cast<index_t>(mine.size());
    const_elements own(mine.data(), n, dtype::i64);
    ranks_->all_gather(own, {all.data(), n * size(), dtype::i64}, {}, options("experts chosen", true)).wait();
    return all;
  }
  void exchange(const state_ptr& in, const state_ptr& out, const counts& sent,
                const counts& received) override {
    const state_ptr from = reachable(messages_, in),
                    to = out->where == messages_ || out->where->holds_messages()
                             ? out
                             : flat(messages_, out->extents.size(), out->type);
    ranks_
        ->all_to_all(elements_of(*from), elements_of(*to), sent, received, options("rows of experts", false))
        .wait();
    if (to != out) copy_rows(out, 0, to, 0, out->extents.size());
  }

 private:
  comm_options options(const char* label, bool control) const { return {label, timeout_, control}; }

  std::shared_ptr<communicator> ranks_;
  device messages_;
  std::chrono::milliseconds timeout_;
};

/// A parameter of an expert, which is number `expert` of `experts`.
struct expert_place {
  const tensor_state* parameter;
  index_t expert, experts;
};

/// Finds the parameters of experts in a walk over a model.
class expert_finder {
 public:
  template <index_t C, class Expert, bool Renormalise>
  void enter(const mixture_of_experts<C, Expert, Renormalise>& m) {
    for (std::size_t e = 0; e < m.experts.size(); ++e)
      for (const state_ptr& p : parameters_of(m.experts[e]))
        found_.push_back({p.get(), static_cast<index_t>(e), static_cast<index_t>(m.experts.size())});
  }
  template <class Path, class Tensor>
  void operator()(const Path&, const Tensor&) {}
  /// The expert that `t` belongs to; null if it is shared by all tokens.
  const expert_place* find(const tensor_state& t) const {
    for (const expert_place& p : found_)
      if (p.parameter == &t) return &p;
    return nullptr;
  }

 private:
  std::vector<expert_place> found_;
};

}  // namespace parallel

/// A run in which the ranks along axis ep divide experts. See bind.
template <class Optimizer, class Options>
class expert_parallel_run : public bound_run<Optimizer, Options> {
  using base = bound_run<Optimizer, Options>;
  using model_tensor = typename base::model_tensor;

 public:
  /// `experts`: the groups of this rank, without parameters.
  template <class Model>
  expert_parallel_run(Model& model, Optimizer& optimizer, const parallel_options& o,
                      std::shared_ptr<communicator> ranks, parallel::expert_parameters experts)
      : base(base::device_of(named_parameters(model)), optimizer, std::move(ranks), o) {
    const state_dict_t parameters = detail::once_each(model), buffers = named_buffers(model);
    state_dict_t all = parameters;
    all.insert(all.end(), buffers.begin(), buffers.end());
    const comm_options control{.label = "first values", .timeout = o.timeout, .control = true};
    parallel::begin_as_first(base::ranks(), control, this->where(), all);
    parallel::expert_finder finder;
    detail::walk<detail::tensors_of::parameters>(model, detail::no_path{}, finder);
    const std::shared_ptr<communicator> among = experts.among;
    std::vector<model_tensor> tensors;
    state_dict_t shared;
    for (const auto& [name, p] : parameters) {
      const parallel::expert_place* const of = finder.find(*p);
      const int owner = of ? owner_of(*of, among->size()) : model_tensor::everyone;
      tensors.push_back({name, p, owner, false});
      if (!of) shared.emplace_back(name, p);
      else if (owner == among->rank()) experts.parameters.emplace_back(name, p), own_.push_back(p);
      else base::free_elements(name, *p);
    }
    for (const auto& [name, b] : buffers) tensors.push_back({name, b, model_tensor::everyone, true});
    // Where parameters are not sharded, each of these ranks has the shared ones and experts of its own.
    base::hold(shared, buffers, nullptr, o.divide == sharding::none ? among : nullptr, {}, nullptr, experts);
    base::hold_some(std::move(tensors), among);
    if (among->size() == 1) return;
    group_.emplace(among, this->where(), o.timeout);
    base::experts_ = &*group_;
  }

 private:
  static int owner_of(const parallel::expert_place& p, int ranks) {
    int r = 0;
    while (p.expert >= first_of_part(p.experts, ranks, r) + count_of_part(p.experts, ranks, r)) ++r;
    return r;
  }
  /// Parameters that all ranks have are counted by the first.
  bool counts(const tensor_state& p) const override {
    return base::groups().parts() > 1 || base::groups().experts()->rank() == 0 ||
           std::any_of(own_.begin(), own_.end(), [&](const auto& own) { return own.get() == &p; });
  }

  tensor_list own_;  // parameters of the experts of this rank
  std::optional<parallel::expert_group> group_;
};

/// Binds a model to a mesh with the axis ep: its ranks process different data and divide the experts of every
/// mixture_of_experts, as evenly as their numbers allow; a rank may have none. With the axis fsdp, ranks that
/// have the same experts divide their rows along it, and all other parameters are divided among the ranks of
/// fsdp and ep together. Parameters are those of rank 0. Reading the elements of an expert that another rank
/// has throws value_error; `run.full()` gives whole copies. Throws usage_error if the sizes do not multiply
/// to the number of ranks.
template <class Plan, class Model, class Optimizer>
  requires divides_experts<Plan>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          const device_options& where = {}) {
  check_axes(o, Plan::strategy_type::has);
  if (o.local_steps > 1)
    throw usage_error(
        "weft: bind: ranks that divide experts have the same values of all other parameters in every step: "
        "local_steps do not go with the axis ep");
  const int n = ranks.size(), of_copy = o.divide == sharding::none ? o.expert_ranks
                                        : o.shard_ranks            ? o.shard_ranks
                                                                   : n;
  const mesh_sizes sizes{
      .dp = std::max(1, n / of_copy), .fsdp = std::max(1, of_copy / o.expert_ranks), .ep = o.expert_ranks};
  check_mesh(sizes, n);
  detail::place_model<Plan>(model, ranks, where);
  const auto along = [&](mesh_axis a) { return group_along(ranks, sizes, a, a, {}, true); };
  return expert_parallel_run<Optimizer, typename Plan::programs>(
      model, optimizer, o, {std::shared_ptr<void>(), &ranks},
      {{}, along(mesh_axis::ep), along(mesh_axis::fsdp), along(mesh_axis::dp)});
}
template <class Plan, class Model, class Optimizer>
  requires divides_experts<Plan>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::options(check_mesh(sizes, ranks.size())),
                    where);
}

}  // namespace weft
