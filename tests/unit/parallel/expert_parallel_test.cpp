// SPDX-License-Identifier: MIT
// Expert parallelism on ranks that are threads: the same losses, gradients and parameters as on one rank, and
// exactly the messages that follow from the placement of experts.
#include <doctest/doctest.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>
#include <weft/weft.hpp>

#include "../../elements.hpp"

using namespace weft;

namespace {

using plan = policy<strategy::mesh<dp, ep>>;
using sharded_plan = policy<strategy::mesh<dp, fsdp<stage_in_options>, ep>>;
constexpr index_t C = 4;

struct net {
  linear<3, C> in;
  mixture_of_experts<C, feed_forward<C, 6>> moe;
  linear<C, 1> out;

  auto loss(expression auto x, expression auto y) const {
    auto h = shared(in(x));
    return mean(square(out(dropout(h + moe(h), 0.25f)) - y)) + 0.05f * moe.balance_loss(h) +
           0.01f * moe.z_loss(h);
  }
};

struct setting {
  index_t experts = 5;
  expert_choice choice{};
  bool skewed = false;  // all rows choose the first experts
};

net made(const setting& s) {
  net model{{}, decltype(net::moe)::create(C, s.experts, s.choice, [] { return feed_forward<C, 6>(); }), {}};
  initialize(model, 3);
  if (s.skewed) {
    auto w = model.moe.router.weight.to_vector();
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0;
    model.moe.router.weight.copy_from(w);  // equal probabilities: the first experts
  }
  return model;
}

using rows = tensor<float, extents<dyn, 3>>;
/// Micro-batch `number` has 3 to 6 rows.
rows batch(index_t number) {
  return randn<float>(extents<dyn, 3>{3 + number % 4, 3}, {.seed = static_cast<std::uint64_t>(number) + 7});
}
/// The sums of squares of rows.
tensor<float, extents<dyn, 1>> target(const rows& x) {
  const std::vector<float> v = x.to_vector();
  std::vector<float> sums;
  for (std::size_t i = 0; i < v.size(); i += 3)
    sums.push_back(v[i] * v[i] + v[i + 1] * v[i + 1] + v[i + 2] * v[i + 2]);
  return from(extents<dyn, 1>{x.extent(0)}, sums);
}

struct outcome {
  std::vector<double> losses, norms;
  state_dict_t parameters, optimizer;
  index_t elements = 0;  // that this rank updates
};

/// The ranks, and whether parameters other than experts are sharded, along fsdp and ep.
struct ranks_and_stage {
  mesh_sizes sizes{};
  sharding divide = sharding::none;
  parallel_options options() const {
    parallel_options o = sharded_plan::strategy_type::options(sizes);
    o.divide = divide;
    return o;
  }
  std::string text() const {
    return to_string(sizes) + ", stage " + std::to_string(static_cast<int>(divide));
  }
};

constexpr int batches = 12;

/// Takes steps up to step `last`, with the same `batches` micro-batches over all ranks. With a folder,
/// resumes from the checkpoint there, and saves the last step.
template <class Model>
outcome train(Model model, communicator& ranks, const parallel_options& options, std::int64_t last = 3,
              const std::string& folder = "") {
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<sharded_plan>(model, optimizer, ranks, options);
  outcome o;
  std::optional<checkpointer<decltype(run)>> saves;
  if (!folder.empty()) saves.emplace(folder, run, checkpoint_options{});
  run_position at = saves ? saves->load().value_or(run_position{}) : run_position{};
  for (; at.step < last; ++at.step) {
    const index_t micro = batches / ranks.size();
    const auto r = run.step(micro,
                            [&](index_t j) {
                              const rows x = batch(run.micro_batch(j, micro));
                              return model.loss(x, target(x));
                            },
                            {.clip = 0.5});
    o.losses.push_back(r.loss);
    o.norms.push_back(r.norm);
  }
  if (saves) {
    saves->save(at);
    saves->finish();
  }
  o.parameters = run.full();
  o.optimizer = run.full_optimizer();
  for (const auto& [name, p] : run.local()) o.elements += p->extents.size();
  return o;
}

outcome trained(communicator& ranks, const ranks_and_stage& mesh, const setting& s, std::int64_t last = 3,
                const std::string& folder = "") {
  return train(made(s), ranks, mesh.options(), last, folder);
}

struct deep_block {
  layer_normalization<C> norm;
  mixture_of_experts<C, feed_forward<C, 6>> moe;
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + moe.with_losses(norm(y), 0.1f, 0.01f);
  }
};
struct deep_net {
  linear<3, C> in;
  repeat<deep_block> h;
  linear<C, 1> out;

  static deep_net create(index_t experts) {
    deep_net n;
    for (int i = 0; i < 3; ++i)
      n.h.blocks.push_back(
          {{}, decltype(deep_block::moe)::create(C, experts, {}, [] { return feed_forward<C, 6>(); })});
    initialize(n, 4);
    return n;
  }
  auto loss(expression auto x, expression auto y) const { return mean(square(out(h(in(x))) - y)); }
};

void check_near(const std::vector<double>& a, const std::vector<double>& b, double within) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= within * (1 + std::abs(b[i])));
}
void check_near_tensors(const state_dict_t& a, const state_dict_t& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].first == b[i].first);
    CAPTURE(a[i].first);
    const std::vector<float> v = test::elements_of(*a[i].second), w = test::elements_of(*b[i].second);
    check_near({v.begin(), v.end()}, {w.begin(), w.end()}, 1e-5);
  }
}
void check_same(const outcome& a, const outcome& b) {
  check_near(a.losses, b.losses, 1e-5);
  check_near(a.norms, b.norms, 1e-5);
  check_near_tensors(a.parameters, b.parameters);
  check_near_tensors(a.optimizer, b.optimizer);
}

/// The rank of `ranks` that has expert `e`: the first ranks have one more.
int owner(index_t e, index_t experts, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    e -= experts / ranks + (r < experts % ranks);
    if (e < 0) return r;
  }
  return -1;
}

}  // namespace

TEST_CASE("1, 2, 3 and 4 ranks: losses, norms and parameters of one rank without experts elsewhere") {
  const setting settings[] = {{},
                              {.experts = 3},  // 4 ranks: one without experts
                              {.choice = {.per_row = 2, .capacity_factor = 0.7}},
                              {.choice = {.per_row = 1}, .skewed = true}};  // ranks that receive no rows
  for (const setting& s : settings) {
    CAPTURE(s.experts);
    outcome one;
    run_ranks(1, [&](communicator& ranks) { one = trained(ranks, {}, s); });
    CHECK(one.losses[2] < one.losses[0]);
    for (const mesh_sizes& sizes : {mesh_sizes{.ep = 2}, mesh_sizes{.ep = 3}, mesh_sizes{.ep = 4},
                                    mesh_sizes{.dp = 2, .ep = 2}, mesh_sizes{.dp = 3}}) {
      CAPTURE(to_string(sizes));
      run_ranks(static_cast<int>(sizes.ranks()),
                [&](communicator& ranks) { check_same(trained(ranks, {sizes}, s), one); });
    }
  }
}

TEST_CASE("ranks with the same experts divide them, and all ranks of a copy the rest, in every stage") {
  const setting settings[] = {{}, {.experts = 3, .choice = {.per_row = 2, .capacity_factor = 0.7}}};
  for (const setting& s : settings) {
    CAPTURE(s.experts);
    outcome one;
    run_ranks(1, [&](communicator& ranks) { one = trained(ranks, {}, s); });
    for (const mesh_sizes& sizes : {mesh_sizes{.fsdp = 2, .ep = 2}, mesh_sizes{.dp = 2, .ep = 2},
                                    mesh_sizes{.dp = 2, .fsdp = 3, .ep = 2}, mesh_sizes{.fsdp = 2, .ep = 3},
                                    mesh_sizes{.fsdp = 3, .ep = 4}, mesh_sizes{.dp = 3, .fsdp = 2}})
      for (const sharding divide : {sharding::optimizer, sharding::gradients, sharding::parameters}) {
        const ranks_and_stage mesh{sizes, divide};
        CAPTURE(mesh.text());
        std::atomic<index_t> elements = 0;
        run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
          const outcome o = trained(ranks, mesh, s);
          check_same(o, one);
          elements += o.elements;
        });
        CHECK(elements == one.elements * sizes.dp);
      }
  }
}

TEST_CASE("gathered in advance: each group of ranks has one order, whatever the experts that others have") {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = train(deep_net::create(3), ranks, {}); });
  for (const mesh_sizes& sizes : {mesh_sizes{.fsdp = 2, .ep = 2}, mesh_sizes{.fsdp = 3, .ep = 4}})
    for (const int prefetch : {0, 1, 2, 5})
      for (const bool reshard : {false, true}) {
        parallel_options o = ranks_and_stage{sizes, sharding::parameters}.options();
        o.prefetch = prefetch;
        o.reshard_after_forward = reshard;
        CAPTURE(to_string(sizes));
        CAPTURE(prefetch);
        run_ranks(static_cast<int>(sizes.ranks()),
                  [&](communicator& ranks) { check_same(train(deep_net::create(3), ranks, o), one); });
      }
}

TEST_CASE(
    "four rows of features for each choice of an expert on another rank, forward and backward together") {
  for (const int n : {2, 3, 4}) {
    std::atomic<index_t> sent = 0, pairs = 0, counts = 0;
    const setting s{.choice = {.per_row = 2}};
    run_ranks(n, [&](communicator& ranks) {
      net model = made(s);
      const rows x = batch(ranks.rank());
      context alone;
      const auto chosen = eval(topk<-1, 2>(softmax(model.moe.router(model.in(x)))).indices, alone)
                              .to_vector();  // before it is divided
      for (const std::int64_t e : chosen) pairs += owner(e, s.experts, n) != ranks.rank();
      sgd optimizer;
      auto run = bind<plan>(model, optimizer, ranks, {.ep = n});
      const auto r = run.step(1, [&](index_t) { return model.loss(x, target(x)); });
      sent += r.sent_by_axis[static_cast<std::size_t>(mesh_axis::ep)];
      counts += r.sent.of(collective::all_to_all);
    });
    CHECK(pairs > 0);
    CHECK(sent == 4 * C * pairs * static_cast<index_t>(sizeof(float)));
    CHECK(counts == sent);
  }
}

TEST_CASE("a rank without rows takes part, and receives those of others") {
  const rows all = batch(3);
  const auto norm_of = [&](communicator& ranks, const mesh_sizes& sizes, const rows& x) {
    net model = made({});
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks, sizes);
    tape steps(run);
    steps.backward(steps.eval(sum(model.out(model.moe(model.in(x))))));
    return run.gradient_norm();
  };
  double expected = 0;
  run_ranks(1, [&](communicator& ranks) { expected = norm_of(ranks, {}, all); });
  for (const int n : {2, 3})
    run_ranks(n, [&](communicator& ranks) {
      const rows none(shape{2, {0, 3}});
      CHECK(norm_of(ranks, {.ep = n}, ranks.rank() == 1 ? all : none) ==
            doctest::Approx(expected).epsilon(1e-5));
    });
}

TEST_CASE("gradients of experts are where the experts are; what other ranks have cannot be read") {
  run_ranks(2, [](communicator& ranks) {
    net model = made({});
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks, {.ep = 2});
    const rows x = batch(ranks.rank());
    tape steps(run);
    steps.backward(steps.eval(model.loss(x, target(x))));
    const double norm = run.gradient_norm();
    for (const auto& [name, p] : named_parameters(model)) {
      CAPTURE(name);
      const bool is_expert = name.starts_with("moe.experts.");
      const bool here = !is_expert || owner(name[12] - '0', 5, 2) == ranks.rank();
      CHECK((p->grad != nullptr) == here);
      CHECK(static_cast<bool>(p->memory) == here);
      if (!here)
        CHECK_THROWS_WITH_AS(test::elements_of(*p),
                             doctest::Contains(("parameter " + name + " of shape").c_str()), value_error);
    }
    CHECK(run.local().size() == 3 + 2 + 4 * (ranks.rank() == 0 ? 3 : 2));
    CHECK(run.step() == doctest::Approx(norm / 2));
  });
}

TEST_CASE("a checkpoint of one number of ranks is continued by another") {
  const std::string folder = "/tmp/weft_experts_" + std::to_string(::getpid());
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained(ranks, {}, {}, 7); });
  int step = 1;
  for (const ranks_and_stage& mesh : {ranks_and_stage{{.ep = 2}},
                                      {{.fsdp = 2, .ep = 2}, sharding::parameters},
                                      {{.dp = 2, .ep = 2}},
                                      {{.dp = 2, .ep = 3}, sharding::gradients},
                                      {},
                                      {{.fsdp = 3, .ep = 2}, sharding::optimizer},
                                      {{.ep = 3}}}) {
    CAPTURE(step);
    run_ranks(static_cast<int>(mesh.sizes.ranks()), [&](communicator& ranks) {
      const outcome o = trained(ranks, mesh, {}, step, folder);
      check_near(o.losses, {one.losses[static_cast<std::size_t>(step - 1)]}, 1e-5);
      if (step == 7) check_same({one.losses, one.norms, o.parameters, o.optimizer}, one);
    });
    ++step;
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("weights of one number of ranks, in one file, are read by another") {
  const std::string path = "/tmp/weft_experts_" + std::to_string(::getpid()) + ".safetensors";
  const net whole = made({});
  const auto bound = [](communicator& ranks, const mesh_sizes& sizes, std::uint64_t seed, auto f) {
    net model = made({});
    initialize(model, seed);
    sgd optimizer;
    auto run = bind<sharded_plan>(model, optimizer, ranks, sizes);
    f(run);
  };
  run_ranks(8, [&](communicator& ranks) {
    bound(ranks, {.dp = 2, .fsdp = 2, .ep = 2}, 3, [&](auto& run) { save_weights(path, run); });
  });
  run_ranks(3, [&](communicator& ranks) {
    bound(ranks, {.ep = 3}, 9, [&](auto& run) {
      load_weights(path, run);
      check_near_tensors(run.full(), named_parameters(whole));
    });
  });
  std::filesystem::remove(path);
}

TEST_CASE("options that do not go with the axis are refused") {
  run_ranks(2, [](communicator& ranks) {
    net model = made({});
    sgd optimizer;
    const auto refused = [&](const parallel_options& o, const char* why) {
      CHECK_THROWS_WITH_AS(bind<plan>(model, optimizer, ranks, o), doctest::Contains(why), usage_error);
    };
    refused({.expert_ranks = 2, .local_steps = 2}, "local_steps cannot be combined with the axis ep");
    refused({.expert_ranks = 4}, "ep 4 needs 4 ranks, but there are 2");
    refused({.expert_ranks = 0}, "weft: bind: expert_ranks is 0");
    refused({.divide = sharding::gradients, .shard_ranks = -1}, "weft: bind: shard_ranks is -1");
    refused({.divide = sharding::optimizer, .expert_ranks = 4}, "ep 4 needs 4 ranks, but there are 2");
    refused({.divide = sharding::optimizer, .shard_ranks = 1, .expert_ranks = 2},
            "dp 2 x ep 2 needs 4 ranks, but there are 2");
    refused({.divide = sharding::parameters, .expert_ranks = 2}, "do not shard what the policy shards");
    CHECK_THROWS_WITH_AS((bind<policy<strategy::mesh<fsdp<3>, ep>>>(model, optimizer, ranks,
                                                                    parallel_options{.expert_ranks = 2})),
                         doctest::Contains("do not shard what the policy shards"), usage_error);
    refused({.context_ranks = 2}, "2 ranks that divide positions need a policy with the axis cp");
  });
}

namespace {

using tied_expert = feed_forward<C, 6>;
struct tied_net {
  linear<3, C> in;
  mixture_of_experts<C, tied_expert> first, second;
  tied_expert dense;

  static tied_net create() {
    const auto mixture = [] {
      return mixture_of_experts<C, tied_expert>::create(C, 4, {}, [] { return tied_expert(); });
    };
    return {{}, mixture(), mixture(), {}};
  }
  auto loss(expression auto x) const { return mean(square(dense(second(first(in(x)))))); }
};
/// The losses of steps, or the message of bind's error.
template <class Plan>
std::pair<std::vector<double>, std::string> trained_with(void (*tie)(tied_net&), int ranks) {
  std::pair<std::vector<double>, std::string> o;
  run_ranks(ranks, [&](communicator& all) {
    tied_net model = tied_net::create();
    initialize(model, 3);
    tie(model);
    sgd optimizer{.lr = 0.1};
    const auto steps = [&](auto run) {
      std::vector<double> losses;
      for (int s = 0; s < 3; ++s)
        losses.push_back(run.step(4 / all.size(), [&](index_t j) {
                              return model.loss(batch(run.micro_batch(j, 4 / all.size())));
                            }).loss);
      return losses;
    };
    std::string refused;
    std::vector<double> losses;
    try {
      losses = steps(bind<Plan>(model, optimizer, all, mesh_sizes{.ep = all.size()}));
    } catch (const usage_error& e) {
      refused = e.what();
    }
    if (all.rank() == all.size() - 1) o = {losses, refused};
  });
  return o;
}

}  // namespace

TEST_CASE("an expert may share parameters with experts of its rank, and with nothing else") {
  for (void (*tie)(tied_net&) : {+[](tied_net& n) { n.second = n.first; },
                                 +[](tied_net& n) { n.first.experts[0].in = n.first.experts[1].in; },
                                 +[](tied_net& n) { n.second.experts[3].in = n.first.experts[2].in; }}) {
    const auto one = trained_with<plan>(tie, 1), two = trained_with<sharded_plan>(tie, 2);
    CHECK(two.second == "");
    check_near(two.first, one.first, 1e-5);
  }
  const auto refused = [](void (*tie)(tied_net&), const char* why) {
    CHECK(trained_with<plan>(tie, 1).second == "");
    const std::string error = trained_with<plan>(tie, 2).second;
    CAPTURE(error);
    CHECK(error.find(std::string("weft: bind: ") + why + " are the same parameter") != std::string::npos);
  };
  refused([](tied_net& n) { n.first.experts[3] = n.first.experts[0]; },
          "first.experts.0.in.weight (on rank 0) and first.experts.3.in.weight (on rank 1)");
  refused([](tied_net& n) { n.second.experts[0].out = n.first.experts[3].out; },
          "first.experts.3.out.weight (on rank 1) and second.experts.0.out.weight (on rank 0)");
  refused([](tied_net& n) { n.dense = n.first.experts[0]; },
          "first.experts.0.in.weight (on rank 0) and dense.in.weight (on every rank)");
  refused([](tied_net& n) { n.dense.out = n.second.experts[3].out; },
          "second.experts.3.out.weight (on rank 1) and dense.out.weight (on every rank)");
}

TEST_CASE("one rank of the axis computes the bits of a program that divides nothing") {
  std::vector<std::vector<float>> of[2];
  run_ranks(1, [&](communicator& ranks) {
    const outcome divided = trained(ranks, {}, {});
    net model = made({});
    sgd optimizer{.lr = 0.1, .momentum = 0.9};
    auto run = bind<policy<strategy::mesh<dp>>>(model, optimizer, ranks);
    for (int step = 0; step < 3; ++step)
      run.step(batches,
               [&](index_t j) {
                 const rows x = batch(j);
                 return model.loss(x, target(x));
               },
               {.clip = 0.5});
    for (const auto& [name, p] : divided.parameters) of[0].push_back(test::elements_of(*p));
    for (const auto& [name, p] : run.full()) of[1].push_back(test::elements_of(*p));
  });
  CHECK(of[0] == of[1]);
}
