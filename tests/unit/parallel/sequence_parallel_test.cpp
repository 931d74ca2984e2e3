// SPDX-License-Identifier: MIT
// Sequence parallelism on ranks that are threads: training equals that of one rank, and values between
// programs record that they are sharded.
#include <weft/nn/mixture_of_experts.hpp>
#include <weft/parallel/redistribute.hpp>
#include <weft/parallel/tensor_parallel.hpp>

#include "divided_training.hpp"

using namespace training;

namespace {
using by_positions = tp<activations::by_positions>;
using plan = policy<strategy::mesh<dp, by_positions>>;
}  // namespace

TEST_CASE("2 and 3 ranks divide layers and positions: losses, norms and parameters of one rank") {
  const outcome one = train_layers<policy<strategy::mesh<dp>>>({});
  for (const mesh_sizes& sizes : {mesh_sizes{.tp = 2}, mesh_sizes{.tp = 3}, mesh_sizes{.dp = 2, .tp = 2}}) {
    INFO(to_string(sizes));
    check_same_training(train_layers<plan>(sizes), one);
  }
  check_same_training(train_layers<policy<strategy::mesh<fsdp<3>, by_positions>>>({.fsdp = 2, .tp = 2}), one);
}

// Not bitwise identical: the gradient of a table that is read twice is summed in another order.
TEST_CASE("one rank of the axis computes what a program does that divides nothing") {
  const outcome one = train_layers<plan>({}), plain = train_layers<policy<strategy::mesh<dp>>>({});
  CHECK(one.losses[0] == plain.losses[0]);
  CHECK(largest_difference(one.losses, plain.losses) < 1e-6);
  CHECK(largest_difference(one.parameters, plain.parameters) < 1e-6);
}

namespace {
using divided_model::B, divided_model::C, divided_model::T;

/// Looks positions up in their table, which is not sharded, for all sequences at once or for each one.
template <bool Each>
struct positions_looked_up {
  divided_model::net all;
  static positions_looked_up create(std::size_t blocks) { return {divided_model::net::create(blocks)}; }
  auto operator()(expression auto tokens) const {
    using places = std::conditional_t<Each, extents<B, T>, extents<T>>;
    const auto at = generate<std::int32_t>(places{}, [](index_t i) { return (i + i / T) % T; });
    const auto x = all.words(tokens) + tanh(all.positions(at));
    return matmul(all.last(all.h(x)), transpose(all.words.weight));
  }
};
}  // namespace

TEST_CASE("rows of a whole table are cut into the positions of a rank, and their gradients summed") {
  const auto check = [](auto model) {
    using net = decltype(model);
    const outcome one = train_layers<policy<strategy::mesh<dp>>, net>({});
    for (const mesh_sizes& sizes : {mesh_sizes{.tp = 2}, mesh_sizes{.tp = 3}, mesh_sizes{.dp = 2, .tp = 2}}) {
      INFO(to_string(sizes));
      check_same_training(train_layers<plan, net>(sizes), one);
    }
  };
  check(positions_looked_up<false>{});
  check(positions_looked_up<true>{});
}

namespace {

/// The values of a tape of two programs, and the gradients of their operand and of the value between them.
struct between {
  std::vector<float> value, gradient, middle;
};
between trained_between(communicator& ranks) {
  divided_model::block first, second;
  for (auto* b : {&first, &second}) b->attn.heads = 6;
  struct {
    divided_model::block a, b;
  } model{first, second};
  initialize(model, 3);
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.tp = ranks.size()});
  variable<float, extents<B, T, C>> x(randn<float>(extents<B, T, C>{}, {.seed = 5}));  // whole on each rank
  run.begin_micro_batch(0, 0);
  tape steps(run);
  auto y = steps.eval(model.a(x));
  CHECK(y.extents() == shape{3, {B, T, C}});
  const index_t own = count_of_part(T, ranks.size(), ranks.rank());
  CHECK(y.state()->extents == shape{3, {B, own, C}});
  if (ranks.size() > 1)
    CHECK_THROWS_WITH_AS(y.to_vector(), doctest::Contains("[2, 5, 6] is divided among ranks along dim 1"),
                         value_error);
  shape seen;
  y.on_gradient([&](const auto& g) { seen = g.extents(); });
  auto z = steps.eval(model.b(y));
  between found;
  found.value = gather(z, run.layer_ranks()).to_vector();
  const auto seed = randn<float>(extents<B, T, C>{}, {.seed = 6});
  steps.backward(z, seed);
  CHECK(seen == shape{3, {B, T, C}});
  found.gradient = x.grad().to_vector();  // whole, for a whole operand
  found.middle = gather(eval(y * y, run), run.layer_ranks()).to_vector();
  return found;
}
}  // namespace

TEST_CASE(
    "values between programs are parts that say so; whole operands are cut, and their gradients whole") {
  between one;
  run_ranks(1, [&](communicator& ranks) { one = trained_between(ranks); });
  for (const int n : {2, 3})
    run_ranks(n, [&](communicator& ranks) {
      const between o = trained_between(ranks);
      CHECK(largest_difference(o.value, one.value) < 1e-5);
      CHECK(largest_difference(o.gradient, one.gradient) < 1e-4);
      CHECK(largest_difference(o.middle, one.middle) < 1e-5);
    });
}

namespace {
/// Reads two sequences of different lengths: the second one is gathered.
struct crossing {
  layer_normalization<C> norm;
  linear<C, C, divided::columns<>> q;
  linear<C, C, divided::rows<>> out;
  auto operator()(expression auto x, expression auto memory) const {
    return x + out(q(norm(x)) * unsqueeze<1>(sum(q(memory), dims<1>)));
  }
};
std::vector<float> crossed(communicator& ranks) {
  crossing model;
  initialize(model, 4);
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.tp = ranks.size()});
  variable<float, extents<B, T, C>> x(randn<float>(extents<B, T, C>{}, {.seed = 5}));
  variable<float, extents<B, 3, C>> other(randn<float>(extents<B, 3, C>{}, {.seed = 6}));
  tape steps(run);
  auto memory = steps.eval(other + model.out(relu(model.q(other))));
  auto loss = steps.eval(mean(square(model(x, memory))));
  steps.backward(loss);
  std::vector<float> all = other.grad().to_vector();
  for (const float g : x.grad().to_vector()) all.push_back(g);
  all.push_back(loss.item());
  return all;
}
}  // namespace

TEST_CASE("a second sequence in a program is gathered, and its gradient divided") {
  std::vector<float> one;
  run_ranks(1, [&](communicator& ranks) { one = crossed(ranks); });
  run_ranks(2, [&](communicator& ranks) { CHECK(largest_difference(crossed(ranks), one) < 1e-4); });
}

namespace {
/// Adds a loss of its weight inside.
struct with_own_loss {
  linear<C, C, divided::columns<>> up;
  linear<C, C, divided::rows<>> down;
  auto operator()(expression auto x) const {
    return with_loss(x + down(relu(up(x))), sum(square(down.bias)));
  }
};
std::vector<float> with_loss_between(communicator& ranks) {
  with_own_loss model;
  initialize(model, 4);
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.tp = ranks.size()});
  variable<float, extents<B, T, C>> x(randn<float>(extents<B, T, C>{}, {.seed = 5}));
  tape steps(run);
  const auto y = steps.eval(model(x));
  CHECK(y.extents() == shape{3, {B, T, C}});
  if (ranks.size() > 1) CHECK(y.state()->extents[1] < T);
  steps.backward(steps.eval(mean(square(y))));
  return x.grad().to_vector();
}
}  // namespace

TEST_CASE("with_loss of a value that is divided by positions keeps its parts") {
  std::vector<float> one;
  run_ranks(1, [&](communicator& ranks) { one = with_loss_between(ranks); });
  for (const int n : {2, 3})
    run_ranks(n,
              [&](communicator& ranks) { CHECK(largest_difference(with_loss_between(ranks), one) < 1e-5); });
}
