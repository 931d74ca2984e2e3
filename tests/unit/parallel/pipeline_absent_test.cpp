// SPDX-License-Identifier: MIT
// What some stages or ranks of a pipeline do not have: gradients of frozen parameters, and batches.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>

#include "training.hpp"

using namespace training;

namespace {

struct layer {
  linear<6, 6> w;
  auto operator()(expression auto x) const { return tanh(w(x)); }
};
/// Learns from its own results only.
struct local_layer {
  linear<6, 6> w;
  auto operator()(expression auto x) const { return tanh(w(detach(x))); }
};

/// The first layers and the table, which is also the head, can be frozen.
struct layers {
  embedding_table<6, 6> table;
  repeat<layer> body{{layer(), layer(), layer()}}, top{{layer(), layer(), layer()}};

  auto operator()(expression auto x) const {
    return matmul(top(body(matmul(x, table.weight))), transpose(table.weight));
  }
  auto fine_tuned(expression auto x) const {
    return matmul(top(detach(body(matmul(x, table.weight)))), transpose(detach(table.weight)));
  }
  static bool is_frozen(const std::string& name) { return name.find("top") != 0; }
};

using floats = std::vector<std::pair<std::string, std::vector<float>>>;
floats floats_of(const state_dict_t& all) {
  floats f;
  for (const auto& [name, t] : all) f.emplace_back(name, elements_of({{name, t}}));
  return f;
}

struct setting {
  mesh_sizes sizes{};
  std::string schedule = "1f1b";
  std::vector<index_t> blocks{};
  bool deterministic = true;
  std::vector<index_t> per_rank = {4, 4, 4};
};

auto input(index_t number, const device& where) {
  return randn<float>(extents<5, 6>{}, {.seed = static_cast<std::uint64_t>(number)}, where);
}

/// A step of the whole model, then those of the fine-tuned one. What they leave, and how often a gradient of
/// a frozen parameter was computed in the last ones.
struct trained {
  floats begin, end, optimizer;
  std::vector<double> losses;
  int gradients = 0;
};
template <class Run>
trained train_by(Run& run, const layers& model, const device& where, const setting& s) {
  trained t;
  index_t number = 0;
  for (std::size_t i = 0; i < s.per_rank.size(); ++i) {
    const index_t m = s.per_rank[i];
    const auto x = [&](index_t j) { return input(number + run.micro_batch(j, m), where); };
    if (i == 0) {
      t.losses = {run.step(m, [&](index_t j) { return mean(square(model(x(j)) - 1.0f)); }).loss};
      t.begin = floats_of(run.full());
      for (const auto& [name, p] : named_parameters(model))
        if (layers::is_frozen(name))
          p->gradient_hooks.push_back(std::make_shared<backward_hook::element_type>(
              [&](const std::shared_ptr<tensor_state>&) { ++t.gradients; }));
    } else {
      t.losses.push_back(
          run.step(m, [&](index_t j) { return mean(square(model.fine_tuned(x(j)) - 1.0f)); }).loss);
    }
    number += m * run.groups().data().size();
  }
  t.end = floats_of(run.full());
  t.optimizer = floats_of(run.full_optimizer());
  for (const auto& [name, p] : named_parameters(model)) p->gradient_hooks.clear();
  return t;
}
trained train_alone(setting s) {
  for (index_t& m : s.per_rank) m *= s.sizes.dp * s.sizes.fsdp;
  const device where = one_thread();
  layers model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 0.1, .weight_decay = 0.1};
  self_communicator alone;
  auto run = bind(model, optimizer, alone, {.deterministic = s.deterministic});
  return train_by(run, model, where, s);
}
template <class Plan, class Change = void (*)(parallel_options&)>
trained train_staged(const setting& s, Change change = [](parallel_options&) {}) {
  std::vector<trained> of(static_cast<std::size_t>(s.sizes.ranks()));
  run_ranks(static_cast<int>(s.sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    layers model;
    to(model, where);
    initialize(model, 1);
    adamw optimizer{.lr = 0.1, .weight_decay = 0.1};
    parallel_options o = Plan::strategy_type::options(s.sizes);
    o.deterministic = s.deterministic;
    o.timeout = std::chrono::seconds(60);
    change(o);
    auto run = bind<Plan>(
        model, optimizer, ranks, o,
        {.schedule = [&](int p, int m) { return pipeline::schedule_named(s.schedule, p, m); },
         .blocks = s.blocks});
    of[static_cast<std::size_t>(ranks.rank())] = train_by(run, model, where, s);
  });
  for (const trained& t : of) {
    CHECK(t.end == of[0].end);
    CHECK(t.losses == of[0].losses);
    CHECK(t.gradients == 0);
  }
  return of[0];
}

using flat_plan = policy<strategy::mesh<pp<>, dp>>;
using sharded_plan = policy<strategy::mesh<pp<pipeline::one_f_one_b, true>, fsdp<3>>>;

void check_frozen(const trained& t) {
  for (std::size_t i = 0; i < t.end.size(); ++i) {
    INFO(t.end[i].first);
    CHECK((t.end[i].second == t.begin[i].second) == layers::is_frozen(t.end[i].first));
  }
}
template <class Plan>
void compare(const setting& s) {
  INFO(to_string(s.sizes) << ", " << s.schedule << ", " << s.deterministic);
  const trained one = train_alone(s), staged = train_staged<Plan>(s);
  check_frozen(one);
  check_frozen(staged);
  if (s.deterministic) {
    CHECK(staged.losses == one.losses);
    CHECK(staged.end == one.end);
    CHECK(staged.optimizer == one.optimizer);
  } else {
    CHECK(largest_relative_difference(staged.losses, one.losses) < 1e-5);
  }
}

}  // namespace

TEST_CASE("what is frozen stays as it is on every stage, wherever the model is cut") {
  for (const std::vector<index_t>& blocks : std::vector<std::vector<index_t>>{{1, 5}, {3, 3}, {4, 2}})
    compare<flat_plan>({.sizes = {.pp = 2}, .blocks = blocks});
  for (const char* name : {"1f1b", "gpipe", "layer-wise"})
    compare<flat_plan>({.sizes = {.pp = 3},
                        .schedule = name,
                        .blocks = {1, 1, 4},
                        .per_rank = name[0] == 'l' ? std::vector<index_t>{1, 1, 1}
                                                   : std::vector<index_t>{4, 4, 4}});
  for (const char* name : {"interleaved:2", "breadth-first:2"})
    compare<flat_plan>({.sizes = {.pp = 2}, .schedule = name, .blocks = {1, 1, 2, 2}});
  compare<flat_plan>({.sizes = {.pp = 2, .dp = 2}, .blocks = {1, 5}});
  compare<flat_plan>({.sizes = {.pp = 3}, .blocks = {1, 1, 4}, .deterministic = false});
}
