// SPDX-License-Identifier: MIT
// Tensor parallelism on ranks that are threads: the same losses, gradients and parameters as on one rank, and
// exactly the predicted messages.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"
#include "divided_net.hpp"

using namespace weft;
using namespace divided_model;

namespace {

using plan = policy<strategy::mesh<dp, tp<>>>;

struct outcome {
  std::vector<double> losses, norms;
  state_dict_t parameters, optimizer;
};

/// Five steps of `batches` micro-batches over all ranks.
template <class Plan = plan>
outcome trained(communicator& ranks, const mesh_sizes& sizes, int batches = 2) {
  net model = net::create(2);
  initialize(model, 3);
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<Plan>(model, optimizer, ranks, sizes);
  outcome o;
  for (int step = 0; step < 5; ++step) {
    const int micro = batches / (sizes.dp * sizes.fsdp);
    const auto r = run.step(micro,
                            [&](index_t j) {
                              const int number = batches * step + static_cast<int>(run.micro_batch(j, micro));
                              return cross_entropy(model(batch(number, 0)), batch(number, 1));
                            },
                            {.clip = 0.5});
    o.losses.push_back(r.loss);
    o.norms.push_back(r.norm);
  }
  o.parameters = run.full();
  return o;
}

/// Seven hidden features: 4 and 3 on two ranks.
struct mlp {
  linear<C, hidden, divided::columns<>> in;
  linear<hidden, C, divided::rows<>> out;
  auto operator()(expression auto x) const { return mean(square(out(relu(in(x))))); }
};

}  // namespace

/// Checks that training on a mesh equals training on one rank.
template <class Plan>
void same_as_one_rank(const outcome& one, const mesh_sizes& sizes) {
  run_ranks(static_cast<int>(sizes.ranks()), [&](communicator& ranks) {
    const outcome o = trained<Plan>(ranks, sizes);
    CHECK(test::largest_difference(o.losses, one.losses) < 1e-5);
    CHECK(test::largest_difference(o.norms, one.norms) < 1e-4);
    CHECK(test::largest_difference(test::elements_of(o.parameters), test::elements_of(one.parameters)) <
          1e-4);
  });
}

TEST_CASE("2 and 3 ranks divide layers: losses, norms and parameters of one rank") {
  outcome one;
  run_ranks(1, [&](communicator& ranks) { one = trained(ranks, {}); });
  CHECK(one.losses[4] < one.losses[0]);
  same_as_one_rank<plan>(one, {.tp = 2});
  same_as_one_rank<plan>(one, {.tp = 3});
  same_as_one_rank<plan>(one, {.dp = 2, .tp = 2});
  same_as_one_rank<policy<strategy::mesh<fsdp<3>, tp<>>>>(one, {.fsdp = 2, .tp = 2});
}

TEST_CASE("one rank of the axis computes the bits of a program that divides nothing") {
  outcome one, plain;
  run_ranks(1, [&](communicator& ranks) {
    one = trained(ranks, {}, 1);
    plain = trained<policy<strategy::mesh<dp>>>(ranks, {}, 1);
  });
  CHECK(one.losses == plain.losses);
  CHECK(test::elements_of(one.parameters) == test::elements_of(plain.parameters));
}

TEST_CASE("columns and rows: what is sent is what was predicted") {
  using E = decltype(std::declval<const mlp&>()(std::declval<variable<float, extents<4, C>>>()));
  static_assert(placement_of<decltype(std::declval<const mlp&>().in(variable<float, extents<4, C>>{}))>() ==
                divided_along(1));
  static_assert(sent<E, plan>(2) == 2 * 4 * C * 4 + 2 * 4 * C * 4, "the result, and the gradient of x");
  run_ranks(2, [](communicator& ranks) {
    mlp model;
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks, {.tp = 2});
    variable<float, extents<4, C>> x(rand<float>(extents<4, C>{}));
    const index_t before = run.groups().sent().total();
    tape steps(run);
    auto loss = steps.eval(model(x));
    steps.backward(loss);
    std::vector<std::int64_t> all(1, run.groups().sent().total() - before);
    ranks.all_reduce(all).wait();
    CHECK(all[0] == sent<E, plan>(2));
    CHECK(model.in.weight.state()->extents == shape{2, {ranks.rank() == 0 ? 4 : 3, C}});
    CHECK_THROWS_AS(model.in.weight.to_vector(), value_error);  // a part is not the whole
    context apart;                                              // all threads share the default context
    CHECK_THROWS_AS(eval(model.in.weight * 2.0f, apart), value_error);
    CHECK(run.full().at(0).second->extents == shape{2, {hidden, C}});
  });
}

TEST_CASE("a parameter that cannot be divided is named") {
  struct layer {
    linear<dyn, dyn, divided::columns<3>> in;
  };
  run_ranks(2, [](communicator& ranks) {
    layer model{decltype(layer::in)::create(4, 8)};
    sgd optimizer;
    try {
      auto run = bind<plan>(model, optimizer, ranks, {.tp = 2});
      CHECK(false);
    } catch (const shape_error& e) {
      CHECK(std::string(e.what()).find("in.weight of shape [8, 4]") != std::string::npos);
      CHECK(std::string(e.what()).find("dim 0 in 3 groups") != std::string::npos);
    }
  });
}

TEST_CASE("one parameter in layers that divide it in different ways is refused by its names") {
  struct net {
    linear<8, 8> plain;
    linear<8, 8, divided::columns<>> in;
    linear<8, 8, divided::rows<>> out;
  };
  run_ranks(2, [](communicator& ranks) {
    for (const bool both_are_divided : {false, true}) {
      net model;
      if (both_are_divided) model.out.weight = model.in.weight;
      else model.in.weight = model.plain.weight;
      sgd optimizer;
      const std::string names = both_are_divided ? "in.weight and out.weight" : "plain.weight and in.weight";
      CHECK_THROWS_WITH_AS(
          bind<plan>(model, optimizer, ranks, {.tp = 2}),
          doctest::Contains(("weft: bind: parameters " + names + " are the same, but their layers").c_str()),
          usage_error);
    }
  });
}

TEST_CASE("heads that do not divide are refused on every rank") {
  struct attention_only {
    causal_self_attention<C> attn;
  };
  run_ranks(2, [](communicator& ranks) {
    attention_only model;
    model.attn.heads = 3;
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks, {.tp = 2});
    CHECK_THROWS_WITH_AS(eval(model.attn(rand<float>(extents<B, T, C>{})), run),
                         doctest::Contains("weft: tensor parallel: 2 ranks cannot divide these layers. Rank"),
                         shape_error);
    model.attn.heads = 4;  // wrong on one rank, too
    CHECK_THROWS_WITH_AS(eval(model.attn(rand<float>(extents<B, T, C>{})), run),
                         doctest::Contains("weft: unflatten: an operand of shape"), shape_error);
  });
}
