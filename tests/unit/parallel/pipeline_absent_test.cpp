// SPDX-License-Identifier: MIT
// Things that some stages or ranks of a pipeline lack: gradients of frozen parameters, and batches.
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>

#include "training.hpp"

using namespace training;

namespace {

struct layer {
  linear<6, 6> w;
  auto operator()(expression auto x) const { return tanh(w(x)); }
};
/// The first layers and the table, to which the head is tied, can be frozen.
struct layers {
  embedding_table<6, 6> table;
  repeat<layer> body{{layer(), layer(), layer()}}, top{{layer(), layer(), layer()}};

  auto operator()(expression auto x) const {
    return matmul(top(body(matmul(x, table.weight))), transpose(table.weight));
  }
  auto fine_tuned(expression auto x) const {
    return matmul(top(detach(body(matmul(x, table.weight)))), transpose(detach(table.weight)));
  }
  /// The table learns only as the head.
  auto by_head(expression auto x) const {
    return matmul(top(body(matmul(x, detach(table.weight)))), transpose(table.weight));
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
  std::vector<index_t> per_rank = {4, 4, 4, 4};
};

auto input(index_t number, const device& where) {
  return randn<float>(extents<5, 6>{}, {.seed = static_cast<std::uint64_t>(number)}, where);
}

/// One step of the whole model, two of the fine-tuned model, and one of the head only: the result, and how
/// often gradients of frozen parameters and of the head were complete.
struct trained {
  floats begin, fine_tuned, end, optimizer;
  std::vector<double> losses;
  int of_frozen = 0, of_head = 0;
};
void count(const std::shared_ptr<tensor_state>& p, int& number) {
  p->gradient_hooks.push_back(std::make_shared<backward_hook::element_type>(
      [&number](const std::shared_ptr<tensor_state>&) { ++number; }));
}
template <class Run>
trained train_by(Run& run, const layers& model, const device& where, const setting& s) {
  trained t;
  index_t number = 0;
  for (std::size_t i = 0; i < s.per_rank.size(); ++i) {
    const index_t m = s.per_rank[i];
    const auto step = [&](auto apply) {
      t.losses.push_back(run.step(m,
                                  [&](index_t j) {
                                    const auto x = input(number + run.micro_batch(j, m), where);
                                    return mean(square(apply(x) - 1.0f));
                                  })
                             .loss);
    };
    if (i == 0) step([&](auto x) { return model(x); });
    else if (i < 3) step([&](auto x) { return model.fine_tuned(x); });
    else step([&](auto x) { return model.by_head(x); });
    if (i == 0) {
      t.begin = floats_of(run.full());
      for (const auto& [name, p] : named_parameters(model))
        if (layers::is_frozen(name)) count(p, t.of_frozen);
    } else if (i == 2) {
      t.fine_tuned = floats_of(run.full());
      for (const auto& [name, p] : named_parameters(model)) p->gradient_hooks.clear();
      count(model.table.weight.state(), t.of_head);
    }
    number += m * run.groups().data().size();
  }
  model.table.weight.state()->gradient_hooks.clear();
  t.end = floats_of(run.full());
  t.optimizer = floats_of(run.full_optimizer());
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
template <class Plan, class Change>
trained train_staged(const setting& s, Change change) {
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
    auto run =
        bind<Plan>(model, optimizer, ranks, o,
                   {.schedule = [&](int p, int m) { return pipeline::schedule_named(s.schedule, p, m); },
                    .blocks = s.blocks});
    of[static_cast<std::size_t>(ranks.rank())] = train_by(run, model, where, s);
  });
  for (trained& t : of) {
    CHECK(t.end == of[0].end);
    CHECK(t.losses == of[0].losses);
    CHECK(t.of_frozen == 0);
    if (&t != &of[0]) of[0].of_head += t.of_head;
  }
  return of[0];
}

using flat_plan = policy<strategy::mesh<pp<>, dp>>;
using sharded_plan = policy<strategy::mesh<pp<pipeline::one_f_one_b, true>, fsdp<3>>>;

void check_frozen(const trained& t) {
  for (std::size_t i = 0; i < t.begin.size(); ++i) {
    const auto& [name, before] = t.begin[i];
    INFO(name);
    CHECK((t.fine_tuned[i].second == before) == layers::is_frozen(name));
    CHECK(t.end[i].second != t.fine_tuned[i].second);
  }
}
template <class Plan, class Change = decltype([](parallel_options&) {})>
void compare(const setting& s, Change change = {}) {
  INFO(to_string(s.sizes) << ", " << s.schedule << ", " << s.deterministic);
  const trained one = train_alone(s), staged = train_staged<Plan>(s, change);
  check_frozen(one);
  check_frozen(staged);
  if (s.deterministic) {
    CHECK(staged.losses == one.losses);
    CHECK(staged.end == one.end);
    CHECK(staged.optimizer == one.optimizer);
    CHECK(staged.of_head == one.of_head);
  } else {
    CHECK(largest_relative_difference(staged.losses, one.losses) < 1e-5);
  }
}

}  // namespace

TEST_CASE("what is frozen stays as it is on every stage, wherever the model is cut") {
  for (const std::vector<index_t>& blocks : std::vector<std::vector<index_t>>{{1, 5}, {3, 3}, {4, 2}})
    compare<flat_plan>({.sizes = {.pp = 2}, .blocks = blocks});
  for (const char* name : {"1f1b", "gpipe", "layer-wise"})
    compare<flat_plan>(
        {.sizes = {.pp = 3},
         .schedule = name,
         .blocks = {1, 1, 4},
         .per_rank = name[0] == 'l' ? std::vector<index_t>{1, 1, 1, 1} : std::vector<index_t>{4, 4, 4, 4}});
  for (const char* name : {"interleaved:2", "breadth-first:2"})
    compare<flat_plan>({.sizes = {.pp = 2}, .schedule = name, .blocks = {1, 1, 2, 2}});
  compare<flat_plan>({.sizes = {.pp = 2, .dp = 2}, .blocks = {1, 5}});
  compare<flat_plan>({.sizes = {.pp = 3}, .blocks = {1, 1, 4}, .deterministic = false});
}

TEST_CASE("what is frozen stays as it is under schedules with divided backward steps, and beside ZeRO") {
  for (const char* name : {"zb-h1", "1f1b"})
    compare<sharded_plan>({.sizes = {.pp = 3}, .schedule = name, .blocks = {1, 1, 4}});
  for (const char* name : {"zb-v", "dual-pipe-v"})
    compare<sharded_plan>({.sizes = {.pp = 2}, .schedule = name, .blocks = {1, 1, 2, 2}});
  for (const bool deterministic : {true, false})
    compare<sharded_plan>({.sizes = {.pp = 2, .fsdp = 2},
                           .schedule = "zb-h1",
                           .blocks = {1, 5},
                           .deterministic = deterministic});
}

TEST_CASE("PipeDream: what is frozen stays as it is") {
  for (const bool deterministic : {true, false})
    for (const int stages : {1, 2, 3}) {
      setting s{.sizes = {.pp = stages}, .schedule = "pipedream", .deterministic = deterministic};
      s.blocks = stages == 1   ? std::vector<index_t>{6}
                 : stages == 2 ? std::vector<index_t>{1, 5}
                               : std::vector<index_t>{1, 1, 4};
      INFO(stages << " stages");
      check_frozen(train_staged<flat_plan>(s, [](parallel_options&) {}));
      s.per_rank = {1, 1, 1, 1};  // one micro-batch: no update is delayed
      compare<flat_plan>(s);
    }
}

TEST_CASE("a tied parameter whose rows are elsewhere between steps trains") {
  for (const bool deterministic : {true, false})
    compare<sharded_plan>({.sizes = {.pp = 2, .fsdp = 2}, .blocks = {1, 5}, .deterministic = deterministic},
                          [](parallel_options& o) { o.offload_parameters = one_thread(); });
}

namespace {
/// Whether data rank `rank` has batch j of a step.
bool has_batch(int rank, index_t j) { return rank == 0 || j != 1; }

/// Two steps of `m` micro-batches, some of which rank 1 lacks, and one without join(). On one rank, one step
/// of all existing micro-batches or, with `each`, one step for each j.
struct joined {
  std::vector<double> losses;
  floats end;
};
joined join_alone(index_t m, bool each) {
  const device where = one_thread();
  layers model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 0.1};
  self_communicator alone;
  auto run = bind(model, optimizer, alone, {.deterministic = true});
  joined result;
  for (index_t s = 0; s < 3; ++s) {
    double sum = 0;
    index_t all = 0;
    std::vector<index_t> batches;
    const auto step = [&] {
      const auto count = static_cast<index_t>(batches.size());
      sum += static_cast<double>(count) *
             run.step(count,
                      [&](index_t i) {
                        return mean(square(model(input(batches[static_cast<std::size_t>(i)], where)) - 1.0f));
                      })
                 .loss;
      all += count;
      batches.clear();
    };
    for (index_t j = 0; j < m; ++j) {
      for (int rank = 0; rank < 2; ++rank)
        if (s == 2 || has_batch(rank, j)) batches.push_back(s * 100 + j * 10 + rank);
      if (each) step();
    }
    if (!each) step();
    result.losses.push_back(sum / static_cast<double>(all));
  }
  result.end = floats_of(run.full());
  return result;
}
joined join_staged(int stages, const std::string& schedule, index_t m, bool in_loss) {
  const mesh_sizes sizes{.pp = stages, .dp = 2};
  std::vector<joined> of(static_cast<std::size_t>(sizes.ranks()));
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    const device where = one_thread();
    layers model;
    to(model, where);
    initialize(model, 1);
    adamw optimizer{.lr = 0.1};
    parallel_options o = flat_plan::strategy_type::options(sizes);
    o.timeout = std::chrono::seconds(60);
    auto run =
        bind<flat_plan>(model, optimizer, ranks, o,
                        {.schedule = [&](int p, int n) { return pipeline::schedule_named(schedule, p, n); }});
    const int rank = ranks.rank() % 2;
    joined& result = of[static_cast<std::size_t>(ranks.rank())];
    for (index_t s = 0; s < 3; ++s) {
      if (s < 2 && !in_loss)
        for (index_t j = 0; j < m; ++j) CHECK(run.join(has_batch(rank, j)) == (j == 1 ? 1 : 2));
      result.losses.push_back(run.step(m,
                                       [&](index_t j) {
                                         if (s < 2 && in_loss) run.join(has_batch(rank, j));
                                         return mean(
                                             square(model(input(s * 100 + j * 10 + rank, where)) - 1.0f));
                                       })
                                  .loss);
    }
    result.end = floats_of(run.full());
  });
  for (const joined& j : of) {
    CHECK(j.losses == of[0].losses);
    CHECK(j.end == of[0].end);
  }
  return of[0];
}
layers layers_on(const device& where) {
  layers model;
  to(model, where);
  initialize(model, 1);
  return model;
}
}  // namespace

TEST_CASE("stages of which some ranks have no batch average over those that have one") {
  for (const bool in_loss : {false, true})
    for (const auto& [stages, schedule, m] : {std::tuple(1, "pipedream", 3), std::tuple(2, "pipedream", 1),
                                              std::tuple(2, "1f1b", 3), std::tuple(2, "interleaved:2", 4)}) {
      INFO(schedule << ", " << stages << " stages, " << in_loss);
      const joined one = join_alone(m, std::string(schedule) == "pipedream");
      const joined staged = join_staged(stages, schedule, m, in_loss);
      CHECK(largest_relative_difference(staged.losses, one.losses) < 1e-5);
      for (std::size_t i = 0; i < one.end.size(); ++i)
        CHECK(test::largest_difference(staged.end[i].second, one.end[i].second) < 1e-4);
    }
}

TEST_CASE("another number of calls of join() than micro-batches is refused on every stage") {
  for (const char* schedule : {"1f1b", "pipedream"})
    for (const bool on_all : {true, false})
      run_ranks(4, [&](communicator& ranks) {
        const device where = one_thread();
        layers model = layers_on(where);
        sgd optimizer{.lr = 0.1};
        parallel_options o = flat_plan::strategy_type::options({.pp = 2, .dp = 2});
        o.timeout = std::chrono::seconds(60);
        auto run = bind<flat_plan>(model, optimizer, ranks, o, {.schedule = [&](int p, int n) {
                                     return pipeline::schedule_named(schedule, p, n);
                                   }});
        const auto step = [&] {
          return run.step(2, [&](index_t j) { return mean(square(model(input(j, where)) - 1.0f)); }).loss;
        };
        const double first = step();
        const bool joins = on_all || run.stage() == 0;
        if (joins) run.join(true);
        if (!on_all) {
          CHECK_THROWS_WITH_AS(step(), doctest::Contains("losses after 1 calls of join()"), comm_error);
          return;
        }
        const floats before = floats_of(run.full());
        CHECK_THROWS_WITH_AS(step(), "weft: step: join() was called 1 times for 2 micro-batches",
                             usage_error);
        if (schedule[0] == '1') CHECK(floats_of(run.full()) == before);
        CHECK(step() < first);  // begins anew
      });
}

TEST_CASE("the norm may be read before an update: gradients of tied parameters are summed once") {
  for (const bool deterministic : {true, false}) {
    floats end[2];
    for (const bool reads : {false, true})
      run_ranks(2, [&](communicator& ranks) {
        const device where = one_thread();
        layers model = layers_on(where);
        sgd optimizer{.lr = 0.1};
        parallel_options o = flat_plan::strategy_type::options({.pp = 2});
        o.deterministic = deterministic;
        auto run = bind<flat_plan>(model, optimizer, ranks, o);
        double norm = -1;
        if (reads) run.before_update([&] { norm = run.gradient_norm(); });
        const step_result r =
            run.step(2, [&](index_t j) { return mean(square(model(input(j, where)) - 1.0f)); });
        if (reads) CHECK(norm == doctest::Approx(2 * r.norm));  // of the sum, not the mean
        const floats all = floats_of(run.full());
        if (ranks.rank() == 0) end[reads] = all;
      });
    CHECK(end[0] == end[1]);
  }
}
