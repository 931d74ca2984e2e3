// SPDX-License-Identifier: MIT
// Sequence parallelism for programs without activations as operands: a whole model is one expression, or
// begins with images, in training and evaluation.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

constexpr index_t C = 12, B = 2, T = 16, V = 20;
using whole_plan = policy<strategy::mesh<tp<>>>;
using plan = policy<strategy::mesh<tp<activations::by_positions>>>;

struct block {
  layer_normalization<C> norm;
  linear<C, 4 * C, divided::columns<>> in;
  linear<4 * C, C, divided::rows<>> out;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + out(gelu(in(norm(h)))); });
  }
};
struct in_blocks {
  embedding_table<V, C, divided::vocabulary> words;
  repeat<block> h;
  layer_normalization<C> last;
  auto operator()(expression auto t) const { return mean(square(last(h(words(t))) + 1.0f)); }
};
struct in_one {
  embedding_table<V, C, divided::vocabulary> words;
  block a, b;
  layer_normalization<C> last;
  auto operator()(expression auto t) const { return mean(square(last(b(a(words(t)))) + 1.0f)); }
};

struct attending {
  layer_normalization<C> norm;
  linear<C, 3 * C, divided::columns<3, C / 6>> qkv;
  linear<C, C, divided::rows<C / 6>> out;
  block after;
  auto operator()(expression auto x) const {
    return after(let(x, [this](auto h) {
      return h + out(let(qkv(norm(h)), [](auto a) {
               const auto heads = [](auto e) { return unflatten<-1, 6>(e); };
               return flatten<2, 3>(attention<!causal>(heads(chunk<-1, 3, 0>(a)), heads(chunk<-1, 3, 1>(a)),
                                                       heads(chunk<-1, 3, 2>(a))));
             }));
    }));
  }
};
template <class Blocks>
struct vision {
  convolution2d<3, C, 2, conv_options{.stride = 2}> stem;
  parameter<extents<1, T, C>> places = make_parameter(extents<1, T, C>{}, init::normal(1));
  Blocks h;
  layer_normalization<C> last;
  linear<C, 5> head;
  auto operator()(expression auto images) const {
    return head(mean(last(h(transpose(flatten<2, 3>(stem(images))) + places)), dims<1>));
  }
};
using several = vision<repeat<attending>>;
using single = vision<attending>;

struct found {
  std::size_t kept = 0;  // by forward for backward, on this rank
  index_t sent = 0;      // by this rank
  std::vector<double> losses, values;
};
/// Takes steps of a model with loss(operand), then evaluates it.
template <class Plan, class Model, class Operand, class Loss>
found train(int ranks, Model (*make)(), const Operand& operand, Loss loss) {
  found f;
  run_ranks(ranks, [&](communicator& all) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    Model model = make();
    to(model, where);
    initialize(model, 1);
    sgd optimizer{.lr = 0.1};
    auto run = bind<Plan>(model, optimizer, all, mesh_sizes{.tp = all.size()});
    const Operand x = operand.to(where);
    found mine;
    const std::size_t before = where.memory().figures().in_use;
    {
      tape steps(run);
      auto y = steps.eval(loss(model(x)));
      mine.kept = where.memory().figures().in_use - before;
      steps.backward(y);
    }
    mine.sent = run.sent_by_axis()[static_cast<std::size_t>(mesh_axis::tp)];
    run.zero_grad();
    for (int s = 0; s < 3; ++s)
      mine.losses.push_back(run.step(1, [&](index_t) { return loss(model(x)); }).loss);
    auto value = eval(model(x), run);
    for (const float v : value.to_vector()) mine.values.push_back(v);
    if (all.rank() == 0) f = mine;
  });
  return f;
}
bool near(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-5 * (1 + std::abs(b[i])))) return false;
  return true;
}
template <class Model>
Model made() {
  Model m;
  if constexpr (requires { m.h.blocks; }) m.h.blocks.resize(2);
  return m;
}

}  // namespace

TEST_CASE("a model as one expression: the sequence is that of the tokens, as between its blocks") {
  const auto tokens =
      generate<std::int32_t>(extents<B, T>{}, [](index_t i) { return static_cast<std::int32_t>(i * i % V); });
  const auto loss = [](auto y) { return y; };
  const found one = train<plan>(1, &made<in_one>, tokens, loss);
  const found whole = train<whole_plan>(2, &made<in_one>, tokens, loss);
  const found blocks = train<plan>(2, &made<in_blocks>, tokens, loss);
  const found parts = train<plan>(2, &made<in_one>, tokens, loss);
  CHECK(parts.sent == blocks.sent);
  CHECK(parts.sent > whole.sent);
  CHECK(parts.kept < whole.kept);
  CHECK(near(parts.losses, one.losses));
  CHECK(near(parts.values, one.values));
}

TEST_CASE("images are no sequences: their channels are whole, and what is computed of them is cut") {
  const auto images = randn<float>(extents<dyn, 3, 8, 8>{B}, {.seed = 5});
  const auto loss = [](auto y) { return mean(square(y)); };
  const auto check = [&]<class Model>(Model (*make)()) {
    const found one = train<plan>(1, make, images, loss);
    for (const int n : {2, 3}) {
      const found parts = train<plan>(n, make, images, loss);
      CHECK(near(parts.losses, one.losses));
      CHECK(near(parts.values, one.values));
    }
    return train<plan>(2, make, images, loss);
  };
  check(&made<several>);
  const found parts = check(&made<single>);
  CHECK(parts.kept < train<whole_plan>(2, &made<single>, images, loss).kept);
}
