// SPDX-License-Identifier: MIT
// Expert parallelism: the experts of mixtures divided among the ranks along axis ep of a mesh.
//
//   using plan = policy<strategy::mesh<dp, ep>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .ep = 4});
//
// Each rank processes its own data and has a contiguous range of the experts of every mixture
// (run/experts.hpp). Rows are sent to the ranks that have their experts, and the results back, in forward and
// backward. All other parameters are trained as with data parallelism among all ranks; gradients of experts
// are complete on the ranks that have them, and summed over the ranks along dp and fsdp that have the same
// experts.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/parallel/bind.hpp>

namespace weft {

namespace parallel {

/// Messages between ranks that divide experts.
class expert_group final : public runtime::expert_ranks {
 public:
  expert_group(std::shared_ptr<communicator> ranks, const device& where, std::chrono::milliseconds timeout)
      : ranks_(std::move(ranks)), messages_(message_device(where, ranks_.get())), timeout_(timeout) {}

  int size() const override { return ranks_->size(); }
  int rank() const override { return ranks_->rank(); }
  counts gather(const counts& mine) override {
    counts all;  // if nothing is sent, all ranks are assumed to have this rank's counts
    for (int r = 0; r < size(); ++r) all.append(mine.begin(), mine.end());
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

/// Finds the parameters of experts in a walk over a model. Throws usage_error for one that is also read
/// elsewhere: in an expert of another rank or outside of experts.
class expert_finder {
 public:
  explicit expert_finder(int ranks) : ranks_(ranks) {}

  template <index_t C, class Expert, bool Renormalise>
  void enter(const mixture_of_experts<C, Expert, Renormalise>& m) {
    if (next_ < owners_.size()) return;  // inside an expert
    owners_.assign(parameters_of(m.router).size(), every_rank);
    next_ = 0;
    const auto experts = static_cast<index_t>(m.experts.size());
    for (int r = 0; r < ranks_; ++r) {
      const index_t first = first_of_part(experts, ranks_, r), count = count_of_part(experts, ranks_, r);
      for (index_t e = first; e < first + count; ++e)
        owners_.resize(owners_.size() + parameters_of(m.experts[static_cast<std::size_t>(e)]).size(), r);
    }
  }
  template <class Tensor>
  void operator()(const weft::detail::named_path& path, const Tensor& t) {
    add(path.text, t.state(), next_ < owners_.size() ? owners_[next_++] : every_rank);
  }

  /// The parameters of all experts, and the rank that has each.
  const std::vector<expert_division::place>& found() const { return found_; }

 private:
  struct reader {
    std::string path;
    int rank;
    std::string text() const {
      return path + (rank == every_rank ? " (on every rank)" : " (on rank " + std::to_string(rank) + ")");
    }
  };
  void add(const std::string& path, const state_ptr& p, int rank) {
    const auto [first, is_new] = readers_.try_emplace(p.get(), reader{path, rank});
    if (is_new && rank != every_rank) found_.push_back({p, rank});
    if (ranks_ > 1 && first->second.rank != rank)
      refuse<usage_error>({"weft: bind: ", first->second.text(), " and ", reader{path, rank}.text(),
                           " are the same parameter: with the axis ep, an expert can share parameters only "
                           "with experts of its own rank; give one of them a separate parameter"});
  }

  int ranks_;
  std::vector<int> owners_;  // of the parameters of the mixture that the walk is in, in walk order
  std::size_t next_ = 0;
  std::map<const tensor_state*, reader> readers_;  // the first reader of each parameter
  std::vector<expert_division::place> found_;
};

}  // namespace parallel

/// The mesh axis along which experts are divided.
struct ep {
  static constexpr mesh_axis axis = mesh_axis::ep;
  static constexpr sharding divide = sharding::none;

  /// How the experts of `model` are divided among ranks that form the mesh `sizes`. Collective.
  template <class Model>
  static parallel::expert_division divided(const Model& model, communicator& ranks, const mesh_sizes& sizes,
                                           std::chrono::milliseconds timeout) {
    const auto along = [&](mesh_axis a) {
      return group_along(ranks, sizes, a, a, {.timeout = timeout}, true);
    };
    parallel::expert_finder finder(sizes.ep);
    detail::walk<detail::tensors_of::parameters>(model, detail::named_path{}, finder);
    parallel::expert_division all{finder.found(), along(mesh_axis::ep), along(mesh_axis::fsdp),
                                  along(mesh_axis::dp)};
    if (sizes.ep > 1)
      all.exchange = std::make_shared<parallel::expert_group>(
          all.among, named_parameters(model).front().second->where, timeout);
    return all;
  }
};

/// Binds a model to a mesh with the axis ep: its ranks process different data and divide the experts of every
/// mixture_of_experts, as evenly as possible; a rank may have none. With the axis fsdp, ranks that have the
/// same experts divide their rows along it, and all other parameters are divided among the ranks of fsdp and
/// ep together. Parameters are those of rank 0. Reading the elements of an expert that another rank has
/// throws value_error; `run.full()` returns whole copies. Throws usage_error if the sizes do not multiply to
/// the number of ranks, or an expert shares a parameter with an expert of another rank or with another
/// module.
template <class Plan, class Model, class Optimizer>
  requires(divides_experts<Plan> && !divides_layers<Plan> && !divides_context<Plan> &&
           !Plan::strategy_type::has(mesh_axis::pp))
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          const device_options& where = {}) {
  detail::mesh_of<Plan>(o, ranks.size());
  detail::place_model<Plan>(model, ranks, where);
  return bound_run<Optimizer, typename Plan::programs>(
      parallel::bound_model(model), optimizer, std::shared_ptr<communicator>(std::shared_ptr<void>(), &ranks),
      o, detail::divided_experts<Plan>(model, ranks, o));
}

}  // namespace weft
