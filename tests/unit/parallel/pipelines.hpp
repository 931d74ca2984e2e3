// SPDX-License-Identifier: MIT
// Trains a model on the stages of a pipeline and, for comparison, on one rank without one.
#pragma once

#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>

#include "training.hpp"

namespace pipelines {

using namespace training;

struct setting {
  mesh_sizes sizes{.pp = 2};
  std::string schedule = "1f1b";
  std::vector<index_t> per_rank = {4, 4, 4};  // micro-batches by step
  bool deterministic = true;
  std::vector<index_t> blocks{};
  int recompute = 0;
  double clip = 0.5;
  double scale = 65536;  // of the loss, at the beginning
};

inline std::string to_string(const setting& s) {
  std::string text = weft::to_string(s.sizes) + ", " + s.schedule + ", micro-batches";
  for (const index_t m : s.per_rank) text += " " + std::to_string(m);
  return text + (s.deterministic ? ", deterministic" : "") + ", recompute " + std::to_string(s.recompute);
}

/// The options of `Plan` on these ranks.
template <class Plan>
parallel_options mesh_options(const setting& s) {
  parallel_options o = Plan::strategy_type::options(s.sizes);
  o.deterministic = s.deterministic;
  o.timeout = std::chrono::seconds(60);
  return o;
}
inline pipeline_options stages_of(const setting& s) {
  return {.schedule = [name = s.schedule](int p, int m) { return pipeline::schedule_named(name, p, m); },
          .blocks = s.blocks};
}

/// Trains `model` with `run`; `loss(number)` is the statement of a micro-batch, numbered over all steps.
template <class Run, class Loss>
outcome train_by(Run& run, const setting& s, Loss loss) {
  run.seed = 3;
  run.recompute_programs = s.recompute;
  loss_scaler scaler = run.scaler();
  scaler.scale = s.scale;
  run.set_scaler(scaler);
  outcome result;
  index_t before = 0;
  for (const index_t m : s.per_rank) {
    index_t called = 0;
    const step_result r = run.step(m,
                                   [&](index_t j) {
                                     CHECK(j == called++);
                                     return loss(before + run.micro_batch(j, m));
                                   },
                                   {.clip = s.clip});
    CHECK(called == m);
    before += m * run.groups().data().size();
    result.losses.push_back(r.loss);
    result.norms.push_back(std::isfinite(r.norm) ? r.norm : -1);  // a skipped step
  }
  result.parameters = elements_of(run.full());
  result.optimizer = elements_of(run.full_optimizer());
  result.scale = run.loss_scale;
  return result;
}

/// On one rank, without a pipeline.
template <class Precision, class Make, class Loss>
outcome train_alone(setting s, Make make, Loss loss) {
  for (index_t& m : s.per_rank) m *= s.sizes.dp * s.sizes.fsdp;
  const device where = one_thread();
  auto model = make(where);
  adamw optimizer{.lr = 1e-2};
  self_communicator alone;
  auto run = bind<Precision>(model, optimizer, alone, {.deterministic = s.deterministic});
  return train_by(run, s, [&](index_t number) { return loss(model, where, number); });
}

/// On ranks that are threads: the outcome that all ranks agree on.
template <class Plan, class Make, class Loss>
outcome train_staged(const setting& s, Make make, Loss loss) {
  std::vector<outcome> of(static_cast<std::size_t>(s.sizes.ranks()));
  run_ranks(static_cast<int>(s.sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    auto model = make(where);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<Plan>(model, optimizer, ranks, mesh_options<Plan>(s), stages_of(s));
    run.prepare(loss(model, where, 0), s.per_rank[0]);  // before the loss scale is set
    of[static_cast<std::size_t>(ranks.rank())] =
        train_by(run, s, [&](index_t number) { return loss(model, where, number); });
  });
  for (const outcome& r : of) {
    CHECK(r.losses == of[0].losses);
    CHECK(r.norms == of[0].norms);
    CHECK(r.parameters == of[0].parameters);
    CHECK(r.optimizer == of[0].optimizer);
    CHECK(r.scale == of[0].scale);
  }
  return of[0];
}

/// Compares the two: bitwise in deterministic mode, within 1e-5 otherwise.
template <class Plan, class Precision, class Make, class Loss>
void compare_plan(const setting& s, Make make, Loss loss) {
  INFO(to_string(s));
  const outcome one = train_alone<Precision>(s, make, loss);
  const outcome staged = train_staged<Plan>(s, make, loss);
  CHECK(staged.scale == one.scale);
  if (s.deterministic) {
    CHECK(staged.losses == one.losses);
    CHECK(staged.norms == one.norms);
    CHECK(staged.parameters == one.parameters);
    CHECK(staged.optimizer == one.optimizer);
  } else {
    CHECK(largest_relative_difference(staged.losses, one.losses) < 1e-5);
    CHECK(largest_relative_difference(staged.norms, one.norms) < 1e-5);
  }
}

template <class Precision, class... Axes, class Make, class Loss>
void compare(const setting& s, Make make, Loss loss) {
  compare_plan<policy<Precision, strategy::mesh<pp<>, Axes...>>, Precision>(s, make, loss);
}

/// `rows` tokens, different for each number.
inline tokens tokens_of(index_t number, const device& where, int shift, index_t rows) {
  tokens t(shape{1, {rows}}, where);
  std::vector<std::int32_t> v;
  for (index_t i = 0; i < rows; ++i)
    v.push_back(static_cast<std::int32_t>((number * 7 + i * 3 + shift) % 11));
  t.copy_from(v);
  return t;
}

}  // namespace pipelines
