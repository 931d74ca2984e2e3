// SPDX-License-Identifier: MIT
// Optimizers that compute with whole parameters while ranks hold rows or parts of layers: Muon and a custom
// optimizer, against one rank.
#include <doctest/doctest.h>

#include <atomic>

#include <weft/comm/threads.hpp>
#include <weft/optim/muon.hpp>
#include <weft/optim/parameter_groups.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"
#include "divided_net.hpp"

using namespace weft;
using divided_model::batch;
using divided_model::net;
using test::elements_of;

namespace {

struct one_matrix {
  linear_without_bias<4, 4> w;
  auto operator()(expression auto x) const { return w(x); }
};

struct outcome {
  std::vector<float> parameters, state;
  std::vector<std::string> names;  // of the state
  bool operator==(const outcome&) const = default;
};

/// `bound(model)` binds the model; three steps of `batches` micro-batches on all ranks together.
template <class Bind>
outcome trained(index_t per_rank, index_t batches, Bind bound) {
  net model = net::create(2);
  initialize(model, 3);
  auto run = bound(model);
  for (int step = 0; step < 3; ++step)
    run.step(per_rank, [&](index_t j) {
      const index_t number = run.micro_batch(j, per_rank) + batches * step;
      return cross_entropy(model(batch(number, 0)), batch(number, 1));
    });
  outcome result{elements_of(run.full()), {}, {}};
  const state_dict_t state = run.full_optimizer();
  result.state = elements_of(state);
  for (const auto& [name, t] : state) result.names.push_back(name);
  return result;
}

muon some_muon() {
  return {.lr = 0.02, .uses = [](const std::string& name) { return !name.starts_with("words"); }};
}

/// The gradient minus the mean of its column: for the whole matrix, a row that is the same everywhere
/// cancels.
struct centred {
  double lr = 0.1;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool needs_whole = true;
  static inline std::atomic<int> computations = 0;  // on all ranks

  template <element T>
  void update(const parameter_update<T>& u) const {
    const shape s = u.whole_extents("centred");
    const index_t columns = s.order > 1 ? s[1] : 1;
    context& c = u.run_context();
    const auto g = eval(u.gradient() + u.number(0), c);
    u.with_whole(
        g,
        [&c, columns, rows = s.size() / columns](const auto& all) {
          ++computations;
          const tensor<float, extents<dyn, dyn>> m(detail::viewed_as(all.state(), {2, {rows, columns}}));
          return flat_view<float>(eval(m - mean(m, dims<0>), c).state());
        },
        [u, rate = u.number(lr)](const auto& x) { u.assign(u.value() - x * rate); });
  }
};

struct cut_short : centred {
  template <element T>
  void update(const parameter_update<T>& u) const {
    const auto g = eval(u.gradient() + u.number(0), u.run_context());
    u.with_whole(g, [](const auto&) { return zeros<float>(extents<dyn>(1)); }, [](const auto&) {});
  }
};

/// Momentum on whole tensors, with state that `done` receives from `update`.
struct heavy_ball {
  double lr = 0.1;
  optimizer_state state{};
  std::int64_t steps = 0;
  static constexpr bool needs_whole = true;

  template <element T>
  void update(const parameter_update<T>& u) const {
    const auto v = u.state("v");
    const auto g = eval(u.gradient() + u.number(0), u.run_context());
    u.with_whole(
        g, [](const auto& x) { return x; },
        [u, v](const auto& x) { u.assign(u.results(u.value() - (v * 0.9f + x) * 0.1f, v * 0.9f + x), v); });
  }
};

struct wrong_size : centred {
  template <element T>
  void update(const parameter_update<T>& u) const {
    u.with_whole(zeros<float>(extents<dyn>(1)), [](const auto& x) { return x; }, [](const auto&) {});
  }
};
struct says_nothing {
  optimizer_state state{};
  std::int64_t steps = 0;
  template <element T>
  void update(const parameter_update<T>& u) const {
    u.with_whole(
        eval(u.gradient() + 0.0f, u.run_context()), [](const auto& x) { return x; }, [](const auto&) {});
  }
};

template <class Optimizer>
outcome among(int ranks, const parallel_options& o, index_t batches, const Optimizer& settings) {
  outcome result;
  run_ranks(ranks, [&](communicator& all) {
    Optimizer optimizer = settings;
    outcome own = trained(batches / ranks, batches, [&](net& m) { return bind<>(m, optimizer, all, o); });
    if (all.rank() == 0) result = std::move(own);
  });
  return result;
}

constexpr sharding stages[] = {sharding::optimizer, sharding::gradients, sharding::parameters};

}  // namespace

TEST_CASE("the same bits for any division of rows, also among more ranks than rows") {
  const auto check = [](const auto& optimizer) {
    for (const int n : {2, 3, 7}) {
      CAPTURE(n);
      const index_t batches = n;
      const outcome whole = among(1, {.deterministic = true}, batches, optimizer);
      CHECK(among(n, {.deterministic = true}, batches, optimizer) == whole);
      for (const sharding s : stages)
        CHECK(among(n, {.divide = s, .deterministic = true}, batches, optimizer) == whole);
    }
    const outcome whole = among(1, {.deterministic = true}, 4, optimizer);
    for (const sharding s : stages)
      CHECK(among(4, {.divide = s, .shard_ranks = 2, .deterministic = true}, 4, optimizer) == whole);
  };
  check(some_muon());
  check(centred{});
  check(parameter_groups{some_muon(), [](const std::string& name, muon& of) {
                           if (name.starts_with("h.1")) of.lr = 0.05;
                         }});
}

TEST_CASE("one of the ranks that divide a parameter, or have copies, computes with it") {
  const auto computations = [](int ranks, const parallel_options& o) {
    centred::computations = 0;
    among(ranks, o, 4, centred{});
    return centred::computations.load();
  };
  const int once = computations(1, {});
  for (const sharding s : {sharding::none, sharding::optimizer, sharding::gradients, sharding::parameters})
    CHECK(computations(4, {.divide = s}) == once);
  CHECK(computations(2, {.local_steps = 3}) == 2 * once);
}

TEST_CASE("rows, optimizer state or both kept on another device between steps") {
  const outcome whole = among(1, {.deterministic = true}, 2, some_muon());
  const device home(std::make_shared<cpu::cpu_backend>(1));
  parallel_options o{.divide = sharding::parameters, .deterministic = true};
  o.offload_parameters = home;
  CHECK(among(2, o, 2, some_muon()) == whole);
  o.offload_optimizer = home;
  CHECK(among(2, o, 2, some_muon()) == whole);
}

TEST_CASE("state that done uses, kept on another device between steps") {
  for (const int n : {2, 3})
    for (const sharding s : stages) {
      const outcome here = among(n, {.divide = s, .deterministic = true}, 6, heavy_ball{});
      parallel_options o{.divide = s, .deterministic = true};
      o.offload_optimizer = device(std::make_shared<cpu::cpu_backend>(1));
      CHECK(among(n, o, 6, heavy_ball{}) == here);
    }
}

TEST_CASE("parts of layers, stages of a pipeline, and meshes") {
  const auto on_mesh = []<class Plan>(const mesh_sizes& sizes, Plan) {
    outcome result;
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      muon optimizer = some_muon();
      const index_t data = sizes.dp * sizes.fsdp;
      outcome own = trained(4 / data, 4, [&](net& m) { return bind<Plan>(m, optimizer, ranks, sizes); });
      if (ranks.rank() == 0) result = std::move(own);
    });
    return result;
  };
  const outcome whole = on_mesh({}, policy<strategy::mesh<dp>>{});
  const auto check = [&](const outcome& o) {
    CHECK(test::matches(o.parameters, whole.parameters, {.absolute = 2e-3}));
    CHECK(o.names == whole.names);
    CHECK(test::matches(o.state, whole.state, {.absolute = 2e-3}));
  };
  check(on_mesh({.tp = 2}, policy<strategy::mesh<tp<>>>{}));
  check(on_mesh({.tp = 3}, policy<strategy::mesh<tp<>>>{}));
  check(on_mesh({.fsdp = 2, .tp = 2}, policy<strategy::mesh<fsdp<>, tp<>>>{}));
  check(on_mesh({.pp = 2, .fsdp = 2}, policy<strategy::mesh<pp<>, fsdp<>>>{}));
  check(on_mesh({.pp = 2, .tp = 2}, policy<strategy::mesh<pp<>, tp<>>>{}));
}

TEST_CASE("experts, of which ranks have some and divide the rows") {
  struct experts {
    linear<3, 4> in;
    mixture_of_experts<4, feed_forward<4, 6>> moe;
  };
  using plan = policy<strategy::mesh<dp, fsdp<>, ep>>;
  const auto on_mesh = [](const mesh_sizes& sizes) {
    std::vector<float> result;
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      experts model{{}, decltype(model.moe)::create(4, 5, {}, [] { return feed_forward<4, 6>(); })};
      initialize(model, 3);
      muon optimizer{.lr = 0.02};
      auto run = bind<plan>(model, optimizer, ranks, sizes);
      const index_t each = 4 / ranks.size();
      for (int step = 0; step < 3; ++step)
        run.step(each, [&](index_t j) {
          const auto x =
              randn<float>(extents<dyn, 3>{6, 3},
                           {.seed = static_cast<std::uint64_t>(run.micro_batch(j, each) + 4 * step)});
          auto h = shared(model.in(x));
          return mean(square(h + model.moe(h))) + 0.05f * model.moe.balance_loss(h);
        });
      const std::vector<float> all = elements_of(run.full());
      if (ranks.rank() == 0) result = all;
    });
    return result;
  };
  const std::vector<float> whole = on_mesh({});
  CHECK(test::matches(on_mesh({.ep = 2}), whole, {.absolute = 2e-3}));
  CHECK(test::matches(on_mesh({.fsdp = 2, .ep = 2}), whole, {.absolute = 2e-3}));
  CHECK(test::matches(on_mesh({.dp = 2, .ep = 2}), whole, {.absolute = 2e-3}));
}

TEST_CASE("ranks with different numbers of experts, and matrices of all ranks between the mixtures") {
  using mixture = mixture_of_experts<4, one_matrix>;
  struct net {
    mixture one;
    linear_without_bias<4, 4> a;
    mixture two;
    linear_without_bias<4, 4> b;
  };
  using plan = policy<strategy::mesh<dp, ep>>;
  const auto on_mesh = [](const mesh_sizes& sizes) {
    std::vector<float> result;
    run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
      const auto experts = [] { return mixture::create(4, 3, {}, [] { return one_matrix{}; }); };
      net model{experts(), {}, experts(), {}};
      initialize(model, 3);
      muon optimizer{.lr = 0.02,
                     .uses = [](const std::string& n) { return n.find("router") == std::string::npos; }};
      auto run = bind<plan>(model, optimizer, ranks, sizes);
      const index_t each = 4 / ranks.size();
      for (int step = 0; step < 2; ++step)
        run.step(each, [&](index_t j) {
          const auto x =
              randn<float>(extents<dyn, 4>{6, 4},
                           {.seed = static_cast<std::uint64_t>(run.micro_batch(j, each) + 4 * step)});
          const auto g = shared(model.a(shared(model.one(x))));
          return mean(square(model.b(shared(model.two(g))) - x));
        });
      const std::vector<float> all = elements_of(run.full());
      if (ranks.rank() == 0) result = all;
    });
    return result;
  };
  const std::vector<float> whole = on_mesh({});
  CHECK(test::matches(on_mesh({.ep = 2}), whole, {.absolute = 2e-3}));
  CHECK(test::matches(on_mesh({.dp = 2, .ep = 2}), whole, {.absolute = 2e-3}));
  CHECK(test::matches(on_mesh({.ep = 4}), whole, {.absolute = 2e-3}));
}

TEST_CASE("a result of another size is refused, by the parameter's name") {
  CHECK_THROWS_WITH_AS(among(2, {.divide = sharding::gradients}, 2, cut_short()),
                       doctest::Contains("weight is [1] of f32, not "), value_error);
}

TEST_CASE(
    "a tensor that is not like the parameter, and an optimizer that does not say needs_whole, are refused") {
  for (const int n : {1, 2}) {
    CHECK_THROWS_WITH_AS(
        among(n, {.divide = sharding::optimizer}, 2, wrong_size()),
        doctest::Contains("weight has 1 elements, but this rank's part of the parameter has "), value_error);
    CHECK_THROWS_WITH_AS(among(n, {.divide = sharding::optimizer}, 2, says_nothing()),
                         doctest::Contains("needs_whole = true"), usage_error);
  }
}
