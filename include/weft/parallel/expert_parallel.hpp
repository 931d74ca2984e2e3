// SPDX-License-Identifier: MIT
// Expert parallelism: the experts of mixtures divided among the ranks along axis ep of a mesh.
//
//   using plan = policy<strategy::mesh<dp, ep>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .ep = 4});
//
// Each rank processes its own data and has a run of the experts of every mixture (run/experts.hpp). Rows are
// sent to the ranks that have their experts, and the results back, in forward and backward. All other
// parameters are trained as with data parallelism among all ranks; gradients of experts are complete where
// they are, and summed over the ranks of axis dp that have the same.
#pragma once

#include <algorithm>
#include <optional>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/parallel/stage_messages.hpp>

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

 public:
  /// `among`: the ranks that divide experts; `replicas`: those that have the same experts.
  template <class Model>
  expert_parallel_run(Model& model, Optimizer& optimizer, const parallel_options& o,
                      std::shared_ptr<communicator> ranks, std::shared_ptr<communicator> among,
                      std::shared_ptr<communicator> replicas)
      : base(base::device_of(named_parameters(model)), optimizer, std::move(ranks), o),
        parameters_(detail::once_each(model)),
        among_(among) {
    const state_dict_t buffers = named_buffers(model);
    state_dict_t all = parameters_;
    all.insert(all.end(), buffers.begin(), buffers.end());
    parallel::begin_as_first(base::ranks(), control("first values"), this->where(), all);
    parallel::expert_finder finder;
    detail::walk<detail::tensors_of::parameters>(model, detail::no_path{}, finder);
    state_dict_t shared;
    parallel::expert_parameters own{{}, among, std::move(replicas)};
    for (const auto& [name, p] : parameters_) {
      const parallel::expert_place* const of = finder.find(*p);
      owner_.push_back(of ? owner_of(*of) : everyone);
      if (!of) shared.emplace_back(name, p);
      else if (owner_.back() == among->rank()) own.parameters.emplace_back(name, p);
      else free(name, *p);
    }
    base::hold(shared, buffers, base::ranks(), among, {}, nullptr, own);
    if (among->size() == 1) return;
    group_.emplace(std::move(among), this->where(), o.timeout);
    base::experts_ = &*group_;
  }

  /// Complete copies of all parameters, then of all buffers, by name. Collective.
  state_dict_t full() {
    const state_dict_t own = base::full();
    const auto copy_of = [&](const std::string& name) {
      const auto found = std::find_if(own.begin(), own.end(), [&](const auto& o) { return o.first == name; });
      return found == own.end() ? nullptr : found->second;
    };
    state_dict_t all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [name, p] = parameters_[i];
      parallel::state_ptr whole = copy_of(name);
      if (!whole) whole = make_state(this->where(), p->whole(), p->type);
      if (owner_[i] != everyone) parallel::share_elements(*among_, whole, owner_[i], control(name));
      all.emplace_back(name, std::move(whole));
    }
    all.insert(all.end(), own.begin() + static_cast<std::ptrdiff_t>(base::local().size()), own.end());
    return all;
  }

  /// What this rank holds of the whole model: nothing of experts that other ranks have.
  std::vector<held_tensor> held_tensors() const override {
    std::vector<held_tensor> own = base::held_tensors(), all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [name, p] = parameters_[i];
      const auto here =
          std::find_if(own.begin(), own.end(), [&, n = &name](const held_tensor& h) { return h.name == *n; });
      all.push_back(here != own.end() ? std::move(*here)
                                      : held_tensor{name, {p->type, p->whole()}, {}, nullptr, false, false});
      if (owner_[i] != everyone) all.back().saves = here != own.end() && base::groups().is_first_copy();
    }
    for (held_tensor& h : own)
      if (h.is_buffer) all.push_back(std::move(h));
    return all;
  }

 private:
  static constexpr int everyone = -1;

  comm_options control(const std::string& label) const {
    return {.label = label, .timeout = base::options().timeout, .control = true};
  }
  int owner_of(const parallel::expert_place& p) const {
    int r = 0;
    while (p.expert >=
           first_of_part(p.experts, among_->size(), r) + count_of_part(p.experts, among_->size(), r))
      ++r;
    return r;
  }
  static void free(const std::string& name, tensor_state& t) {
    t.memory = buffer();
    t.divided = std::make_shared<division>(division{name, t.whole(), {}});
  }
  /// Parameters that all ranks have are counted by the first.
  bool counts(const tensor_state& p) const override {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].second.get() == &p) return owner_[i] != everyone || among_->rank() == 0;
    return true;
  }

  state_dict_t parameters_;  // of the whole model
  std::vector<int> owner_;   // by parameter: the rank that has it
  std::shared_ptr<communicator> among_;
  std::optional<parallel::expert_group> group_;
};

/// Binds a model to a mesh with the axis ep: its ranks process different data and divide the experts of every
/// mixture_of_experts, as evenly as their numbers allow; a rank may have none. Parameters are those of rank
/// 0. Reading the elements of an expert that another rank has throws value_error; `run.full()` gives whole
/// copies. Throws usage_error if the sizes do not multiply to the number of ranks.
template <class Plan, class Model, class Optimizer>
  requires divides_experts<Plan>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          const device_options& where = {}) {
  check_axes(o, Plan::strategy_type::has);
  if (o.divide != sharding::none || o.local_steps > 1)
    throw usage_error(
        "weft: bind: ranks that divide experts have the same values of all other parameters in every step: "
        "divide and local_steps do not go with the axis ep");
  const mesh_sizes sizes{.dp = std::max(1, ranks.size() / o.expert_ranks), .ep = o.expert_ranks};
  check_mesh(sizes, ranks.size());
  detail::place_model<Plan>(model, ranks, where);
  return expert_parallel_run<Optimizer, typename Plan::programs>(
      model, optimizer, o, {std::shared_ptr<void>(), &ranks},
      group_along(ranks, sizes, mesh_axis::ep, mesh_axis::ep, {}, true),
      group_along(ranks, sizes, mesh_axis::dp, mesh_axis::cp, {}, true));
}
template <class Plan, class Model, class Optimizer>
  requires divides_experts<Plan>
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::options(check_mesh(sizes, ranks.size())),
                    where);
}

}  // namespace weft
