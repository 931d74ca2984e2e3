// SPDX-License-Identifier: MIT
// A stage that leaves, hangs, throws, or has different data, at any micro-batch: every other rank gets,
// within the time-out, an error that names rank, chunk and micro-batch. Also mistakes that are refused
// beforehand.
#include <weft/parallel/schedule/csv.hpp>

#include "pipelines.hpp"

using namespace pipelines;
using namespace std::chrono_literals;

namespace {

enum class fault { leaves, hangs, throws, other_shape, fewer, more };
constexpr const char* names[] = {"leaves", "hangs", "throws", "other shape", "fewer", "more"};
struct rank_leaves {};

struct fault_at {
  fault what;
  int victim;
  index_t micro_batch;  // of the second step
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// Two steps of four micro-batches, the second one with a fault; the error on each rank.
std::vector<std::string> errors_of(const setting& s, const fault_at& f) {
  using plan = policy<strategy::mesh<pp<>, dp>>;
  std::vector<std::string> errors(static_cast<std::size_t>(s.sizes.ranks()), "nothing");
  const auto train = [&](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    model.h.blocks.push_back(net::create(where).h.blocks[0]);  // four chunks need four
    sgd optimizer;
    parallel_options o = mesh_options<plan>(s);
    o.timeout = 500ms;
    auto run = bind<plan>(model, optimizer, ranks, o, stages_of(s));
    const bool victim = ranks.rank() == f.victim;
    for (int step = 0; step < 2; ++step) {
      const bool now = victim && step == 1;
      const index_t m = 4 + (now && f.what == fault::more ? 2 : now && f.what == fault::fewer ? -2 : 0);
      run.step(m, [&](index_t j) {
        const bool here = now && j == f.micro_batch;
        if (here && f.what == fault::leaves) throw rank_leaves{};
        if (here && f.what == fault::throws) throw io_error("the disk is full");
        if (here && f.what == fault::hangs) std::this_thread::sleep_for(1500ms);
        const index_t rows = here && f.what == fault::other_shape ? 4 : 5;
        return cross_entropy(model(tokens_of(j, where, 0, rows)), tokens_of(j, where, 1, rows));
      });
    }
  };
  run_ranks(static_cast<int>(s.sizes.ranks()), [&](communicator& ranks) {
    std::string& told = errors[static_cast<std::size_t>(ranks.rank())];
    try {
      train(ranks);
    } catch (const error& e) {
      told = e.what();
    } catch (const rank_leaves&) {
      told = "leaves";
    }
  });
  return errors;
}

void check(const setting& s, const fault_at& f) {
  INFO(to_string(s) << ": rank " << f.victim << " " << std::string(names[static_cast<int>(f.what)])
                    << " at micro-batch " << f.micro_batch);
  const std::vector<std::string> errors = errors_of(s, f);
  for (int r = 0; r < static_cast<int>(errors.size()); ++r) {
    const std::string& told = errors[static_cast<std::size_t>(r)];
    if (r == f.victim && f.what != fault::fewer && f.what != fault::more) continue;
    INFO("rank " << r << ": " << told);
    CHECK(has(told, "rank " + std::to_string(f.victim)));
    if (f.what == fault::fewer || f.what == fault::more) {  // detected before anything is computed
      CHECK(has(told, f.what == fault::more ? "a step of 6 micro-batches" : "a step of 2 micro-batches"));
      CHECK(has(told, "a step of 4 micro-batches"));
      continue;
    }
    if (f.what == fault::hangs && s.sizes.dp > 1) continue;  // another copy may wait for the losses first
    CHECK(has(told, "chunk "));
    CHECK(has(told, "micro-batch "));
    if (f.what == fault::throws) CHECK(has(told, "the disk is full"));
  }
}

}  // namespace

TEST_CASE("a fault of one stage at any micro-batch is told to all ranks") {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved:2"})
    for (const int victim : {0, 1})
      for (const index_t j : {0, 1, 3})
        for (const fault what : {fault::leaves, fault::throws, fault::other_shape})
          check({.schedule = schedule}, {what, victim, j});
  for (const int victim : {0, 1, 2})
    for (const fault what : {fault::leaves, fault::hangs, fault::throws, fault::other_shape, fault::fewer,
                             fault::more})
      check({.sizes = {.pp = 3}}, {what, victim, 2});
  for (const fault what : {fault::leaves, fault::hangs, fault::throws, fault::fewer, fault::more})
    check({.sizes = {.pp = 2, .dp = 2}}, {what, 2, 1});
}

namespace {

/// Binds `model` on ranks and calls f(run); the error that each rank throws must contain `why`.
template <class Error, class Make, class F>
void refused(const setting& s, const char* why, Make make, F f) {
  using plan = policy<strategy::mesh<pp<>>>;
  run_ranks(s.sizes.pp, [&](communicator& ranks) {
    const device where = one_thread();
    auto model = make(where);
    sgd optimizer;
    CHECK_THROWS_WITH_AS(
        [&] {
          auto run = bind<plan>(model, optimizer, ranks, mesh_options<plan>(s), stages_of(s));
          f(run, model, where);
        }(),
        doctest::Contains(why), Error);
  });
}

struct two_branches {
  linear<4, 4> start;
  repeat<linear<4, 4>> first, second;
  static two_branches create(const device& where) {
    two_branches b;
    for (int i = 0; i < 2; ++i) b.first.blocks.emplace_back(), b.second.blocks.emplace_back();
    to(b, where);
    return b;
  }
  auto operator()(expression auto x) const { return first(start(x)) + second(start(x)); }
};

struct without_blocks {
  linear<4, 4> only;
  static without_blocks create(const device& where) {
    without_blocks m;
    to(m, where);
    return m;
  }
};

struct with_f64 {
  linear<4, 4> first;
  parameter<extents<4>, double> last;
  repeat<linear<4, 4>> h;
  static with_f64 create(const device& where) {
    with_f64 m{{}, make_parameter<double>(extents<4>{}, init::constant(1), where), {}};
    for (int i = 0; i < 2; ++i) m.h.blocks.emplace_back();
    to(m, where);
    return m;
  }
};

auto rows(const device& where) { return full<float>(extents<dyn, 4>{3, 4}, 0.5f, where); }
const auto step_of_net = [](auto& run, net& model, const device& where) {
  run.step(4, [&](index_t j) { return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1)); });
};
net small_net(const device& where) { return net::create(where); }

}  // namespace

TEST_CASE("what does not fit is refused on every rank, and says why") {
  refused<usage_error>({.schedule = "interleaved:2"}, "4 chunks for the 3 blocks of the model", small_net,
                       step_of_net);
  refused<usage_error>({.blocks = {1, 1}},
                       "blocks by chunk 1,1 do not divide the 3 blocks of the model among 2 chunks",
                       small_net, step_of_net);
  refused<usage_error>({.blocks = {1, 0, 2}}, "blocks by chunk 1,0,2 do not divide", small_net, step_of_net);
  refused<usage_error>({}, "2 chunks for the 0 blocks of the model", without_blocks::create,
                       [](auto& run, auto& model, const device& where) {
                         run.step(2, [&](index_t) { return sum(model.only(rows(where))); });
                       });
  refused<value_error>({}, "weft: bind: parameter last is f64, not f32", with_f64::create,
                       [](auto&, auto&, const device&) {});
  refused<error>({}, "that another stage computes: values pass from one block to the next only",
                 two_branches::create, [](auto& run, auto& model, const device& where) {
                   run.step(2, [&](index_t) { return sum(model(rows(where))); });
                 });
  // Statements with a number of blocks other than the one by which the model was split.
  refused<error>({}, "a statement with 0 blocks (of repeats), but the model was divided by one with 3",
                 small_net, [](auto& run, net& model, const device& where) {
                   run.prepare(cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1)), 2);
                   run.step(2, [&](index_t) { return sum(model.table(batch_of(0, where, 0))); });
                 });
  refused<usage_error>({}, "a statement with 6 blocks (of repeats), but the model was divided by one with 3",
                       small_net, [](auto& run, net& model, const device& where) {
                         step_of_net(run, model, where);
                         run.eval(model.h(model.h(model.table(batch_of(0, where, 0)))));
                       });
  const auto too_early = [](auto what) {
    refused<usage_error>({}, "is not known before the first step of a pipeline", small_net,
                         [=](auto& run, net&, const device&) { what(run); });
  };
  too_early([](auto& run) { run.groups(); });
  too_early([](auto& run) { run.no_sync(); });
  too_early([](auto& run) { run.reload(); });
  too_early([](auto& run) { run.full(); });
  too_early([](auto& run) { run.gradient_norm(); });
  too_early([](auto& run) { run.gradient_inf_norm(); });
  too_early([](auto& run) { run.full_optimizer(); });
}

TEST_CASE("a stage without chunks, options that do not match the policy, and settings out of range") {
  run_ranks(2, [](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    sgd optimizer{.lr = -1};
    using plan = policy<strategy::mesh<pp<>, fsdp<3>>>;
    CHECK_THROWS_WITH_AS(bind<plan>(model, optimizer, ranks, parallel_options{.stages = 2}),
                         doctest::Contains("do not shard what the policy shards"), usage_error);
    int losses = 0;
    const auto loss = [&](index_t) {
      ++losses;
      return cross_entropy(model(batch_of(0, where, 0)), batch_of(0, where, 1));
    };
    {
      const auto all_on_first = [](int stages, int micro_batches) {
        pipeline::schedule s = pipeline::gpipe(1, micro_batches);
        s.steps.resize(static_cast<std::size_t>(stages));
        return s;
      };
      auto run = bind<plan>(model, optimizer, ranks, {.pp = 2}, {.schedule = all_on_first});
      CHECK_THROWS_WITH_AS(run.step(2, loss), doctest::Contains("lr is -1"), value_error);
      optimizer.lr = 0.1;
      CHECK_THROWS_WITH_AS(run.step(2, loss), doctest::Contains("or has a stage without chunks"),
                           usage_error);
    }
    CHECK(losses == 0);
    auto run = bind<plan>(model, optimizer, ranks, {.pp = 2});
    CHECK(std::isfinite(run.step(2, loss).loss));
    optimizer.lr = -1;
    losses = 0;
    CHECK_THROWS_WITH_AS(run.step(2, loss), doctest::Contains("lr is -1"), value_error);
    CHECK(losses == 0);
    optimizer.lr = 0.1;
    CHECK(std::isfinite(run.step(2, loss).loss));
  });
}

TEST_CASE("a schedule for other sizes is refused, and the step after it is as if nothing had been") {
  using plan = policy<strategy::mesh<pp<>>>;
  run_ranks(2, [](communicator& ranks) {
    const device where = one_thread();
    net model = net::create(where);
    sgd optimizer;
    const char* name = "1f1b";
    int stages = 2;
    const auto schedule = [&](int, int m) { return pipeline::schedule_named(name, stages, m); };
    auto run = bind<plan>(model, optimizer, ranks, mesh_sizes{.pp = 2}, {.schedule = schedule});
    const auto step = [&](index_t m) {
      return run.step(
          m, [&](index_t j) { return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1)); });
    };
    CHECK(std::isfinite(step(4).loss));
    stages = 3;
    CHECK_THROWS_WITH_AS(step(5), doctest::Contains("the schedule for 2 stages and 5 micro-batches is for 3"),
                         usage_error);
    stages = 2;
    name = "interleaved:1";
    CHECK_THROWS_AS(step(3), error);  // no multiple of the stages
    CHECK_THROWS_WITH_AS(step(0), "weft: step: 0 micro-batches", value_error);
    name = "gpipe";
    CHECK(std::isfinite(step(2).loss));
  });
}

TEST_CASE(
    "a table under which a tied parameter would wait in a cycle is refused where gradients are handed over") {
  // Stage 0 completes the gradients of 0 before its forward pass of 1, which stage 1 needs before it
  // completes its own gradients.
  const auto table = [](int, int) {
    return pipeline::schedule_from_csv("0F0,0I0,0W0,0F1,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
  };
  using plan = policy<strategy::mesh<pp<pipeline::zb_h1>>>;
  for (const bool deterministic : {true, false})
    run_ranks(2, [&](communicator& ranks) {
      const device where = one_thread();
      net model = net::create(where);  // its table is also the head
      sgd optimizer;
      parallel_options o = plan::strategy_type::options({.pp = 2});
      o.deterministic = deterministic;
      o.timeout = std::chrono::seconds(60);
      auto run = bind<plan>(model, optimizer, ranks, o, {.schedule = table});
      const auto step = [&] {
        return run.step(
            2, [&](index_t j) { return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1)); });
      };
      for (int repeat = 0; repeat < 2; ++repeat)
        if (deterministic)
          CHECK_THROWS_WITH_AS(step(),
                               doctest::Contains("the schedule cannot run where several chunks read "
                                                 "table.weight: stage 0, step 4 (chunk 0, "
                                                 "micro-batch 0), peer 1: stages wait"),
                               usage_error);
        else CHECK(std::isfinite(step().loss));
    });
}

TEST_CASE("what a schedule without a flush cannot do is refused on every rank, by name") {
  const auto refused_by = [](auto plan, mesh_sizes sizes, double clip, int local_steps, const char* why) {
    using plan_type = decltype(plan);
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      INFO(std::string(why));
      const device where = one_thread();
      net model = net::create(where);
      sgd optimizer;
      parallel_options o = plan_type::strategy_type::options(sizes);
      o.local_steps = local_steps;
      auto run = bind<plan_type>(model, optimizer, ranks, o);
      const auto step = [&] {
        run.step(
            2, [&](index_t j) { return cross_entropy(model(batch_of(j, where, 0)), batch_of(j, where, 1)); },
            {.clip = clip});
      };
      CHECK_THROWS_WITH_AS(step(), doctest::Contains(why), usage_error);
    });
  };
  using stashing = pp<pipeline::pipedream>;
  refused_by(policy<strategy::mesh<stashing>>{}, {.pp = 2}, 1, 1, "step_options::clip needs the norm");
  refused_by(policy<precision::f16, strategy::mesh<stashing>>{}, {.pp = 2}, 0, 1,
             "the loss scale of precision::f16");
  refused_by(policy<strategy::mesh<stashing, fsdp<1>>>{}, {.pp = 2, .fsdp = 2}, 0, 1, "fsdp shards");
  refused_by(policy<strategy::mesh<stashing, dp>>{}, {.pp = 2, .dp = 2}, 0, 3, "local_steps is 3");
  constexpr auto two_chunks = [](int p, int m) {
    pipeline::schedule s = pipeline::interleaved_1f1b(p, m, 2);
    s.flush = false;
    return s;
  };
  refused_by(policy<strategy::mesh<pp<two_chunks>>>{}, {.pp = 2}, 0, 1,
             "needs one chunk on each stage: it has 4");
}
