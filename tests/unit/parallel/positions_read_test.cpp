// SPDX-License-Identifier: MIT
// Context parallelism: programs that read across positions other than by attention are refused, and all
// others train as on one rank.
#include <doctest/doctest.h>

#include <weft/parallel/context_pipeline.hpp>

#include "divided_positions.hpp"

using namespace divided_positions;

namespace {

using plan = policy<strategy::mesh<cp<>>>;
constexpr index_t words = small.vocabulary, width = 4;

template <class F>
struct block_of {  // applies F to the stream
  linear<width, width> layer;
  auto operator()(expression auto x) const { return x + F()(layer(x)); }
};

struct net {
  embedding_table<words, width> table, places;  // of words, and of positions
  layer_normalization<width> norm;
  linear<width, width> query, key, value;
  linear<width, words> head;
  parameter<extents<width, 1, 3>> windows = make_parameter(extents<width, 1, 3>{}, init::normal(0.5));
  parameter<extents<width, width, 1>> points = make_parameter(extents<width, width, 1>{}, init::normal(0.5));
};

/// Checks that f(model, run, tokens, labels) is refused with `what` on two ranks, and computed on one.
template <class F>
void refuses(const char* what, F f) {
  CAPTURE(what);
  for (const int n : {1, 2})
    run_ranks(n, [&](communicator& ranks) {
      net model;
      initialize(model, 3);
      sgd optimizer;
      auto run = bind<plan>(model, optimizer, ranks);
      const context_part own = run.part_of_context(length);
      const auto x = own.of(batch(0, 0)), y = own.of(batch(0, 1));
      if (n == 1) CHECK_NOTHROW(f(model, run, x, y));
      else CHECK_THROWS_WITH_AS(f(model, run, x, y), doctest::Contains(what), usage_error);
    });
}
/// The same for the loss of the logits f(model, embedded tokens, tokens per sequence), in training and
/// evaluation.
template <class F>
void refuses_counted(const char* what, F f) {
  const auto loss = [&](const net& model, const auto& x, const auto& y) {
    return cross_entropy(model.head(f(model, model.table(x), x.extents()[1])), y);
  };
  refuses(what, [&](const net& m, auto& run, const auto& x, const auto& y) {
    return run.step(1, [&](index_t) { return loss(m, x, y); }).loss;
  });
  refuses(what, [&](const net& m, auto& run, const auto& x, const auto& y) { eval(loss(m, x, y), run); });
}
template <class F>
void refuses_logits(const char* what, F f) {
  refuses_counted(what, [&](const net& m, auto h, index_t) { return f(m, h); });
}

}  // namespace

TEST_CASE("what moves or combines positions is refused by name") {
  refuses_logits("context: depthwise_conv2d reads along positions", [](const net& m, auto h) {
    return transpose(conv1d<conv_options{.padding = 1, .groups = width}>(transpose(h), m.windows));
  });
  refuses_logits("context: cumsum reads along positions", [](const net&, auto h) { return cumsum<1>(h); });
  refuses_logits("context: flip reads along positions", [](const net&, auto h) { return flip<1>(h); });
  refuses("context: concat reads along positions", [](const net& m, auto& run, const auto& x, const auto&) {
    eval(concat<1>(m.table(x), m.table(x)), run);
  });
  refuses_logits("context: matmul reads along positions", [](const net& m, auto h) {
    return let(h, [&](auto x) { return matmul(softmax(matmul(m.query(x), transpose(x))), x); });
  });
}

TEST_CASE("means over positions are refused where the loss is not linear in them") {
  constexpr auto what = "context: sum or mean over positions covers only those of this rank";
  refuses_logits(what, [](const net& m, auto h) {
    return let(h, [&](auto x) { return x + mean(m.query(x), dims<1>, keepdim); });
  });
  refuses_logits(what, [](const net&, auto h) {
    return let(h, [](auto x) { return x * rsqrt(1.0f + mean(square(x), dims<1>, keepdim)); });
  });
  const auto classes = from(extents<dyn>{2}, std::vector<std::int32_t>{1, 2});
  refuses(what, [&](const net& m, auto& run, const auto& x, const auto&) {
    tape steps(run);
    steps.backward(steps.eval(cross_entropy(m.head(mean(tanh(m.query(m.table(x))), dims<1>)), classes)));
  });
  refuses("context: amax or softmax reads along positions",
          [](const net& m, auto& run, const auto& x, const auto&) {
            eval(sum(softmax<1>(m.table(x)) * m.table(x)), run);
          });
}

TEST_CASE("values keep their positions from program to program") {
  refuses("context: cumsum", [](const net& m, auto& run, const auto& x, const auto&) {
    tape steps(run);
    const auto turned = steps.eval(transpose(m.table(x)));
    steps.eval(mean(cumsum<1>(turned)));  // along features
    steps.eval(mean(cumsum<-1>(turned)));
  });
  refuses("context: cumsum", [](const net& m, auto& run, const auto& x, const auto&) {
    eval(cumsum<0>(eval(flatten<0, 1>(m.table(x)), run)), run);
  });
  refuses("context: a sum over positions", [](const net& m, auto& run, const auto& x, const auto&) {
    tape steps(run);
    const auto pooled = steps.eval(mean(m.table(x), dims<1>));
    steps.eval(mean(m.head(pooled)));
    steps.eval(mean(tanh(m.head(pooled))));
  });
}

TEST_CASE("what counts positions from 0 on every rank is refused by name") {
  constexpr auto what =
      "that counts positions from 0 on every rank, together with the positions of this rank";
  const auto numbers = [](index_t n) { return arange<std::int64_t>(n); };
  const auto heads = [](auto v) { return unflatten<-1, 2>(v); };
  refuses_counted(what, [&](const net& m, auto h, index_t n) { return h + slice<0>(m.places.weight, 0, n); });
  refuses_counted(what, [&](const net& m, auto h, index_t n) { return h + m.places(numbers(n)); });
  refuses_counted(what,
                  [&](const net&, auto h, index_t n) { return h * unsqueeze<1>(cast<float>(numbers(n))); });
  refuses_counted(what, [&](const net& m, auto h, index_t n) {
    return flatten<2, 3>(rotary(heads(m.query(h)), numbers(n)));
  });
  refuses_counted(what, [&](const net& m, auto h, index_t n) {  // one weight of each position
    return h * unsqueeze<1>(slice<0>(flatten<0, 1>(m.places.weight), 0, n));
  });
  refuses_counted(
      "context: matmul reads", [&](const net&, auto h, index_t n) {  // a weighted sum of positions
        return let(h, [&](auto x) { return x + matmul(reshape<1, dyn>(cast<float>(numbers(n))), x); });
      });
  refuses_counted("context: attention reads an operand", [&](const net& m, auto h, index_t n) {
    const auto queries =
        expand(unsqueeze<0>(slice<0>(m.places.weight, 0, n)), extents<2, dyn, width>{2, n, width});
    return let(h, [&](auto x) {
      return flatten<2, 3>(attention<!causal>(heads(queries), heads(m.key(x)), heads(m.value(x))));
    });
  });
}

TEST_CASE("parts of positions, in dims of their own or merged with others, are refused where they are read") {
  const auto even = [](auto& run) {
    const context_part own = run.part_of_context(12);
    return own.of(generate<std::int32_t>(extents<dyn, dyn>{2, 12}, [](index_t i) { return i % words; }));
  };
  refuses("context: sum or mean reads along", [&](const net& m, auto& run, const auto&, const auto&) {
    const auto x = even(run);
    eval(mean(square(unflatten<1>(m.table(x), x.extents()[1] / 2))), run);
    eval(mean(square(mean(unflatten<1>(m.table(x), x.extents()[1] / 2), dims<2>))), run);
  });
  refuses("context: sum or mean reads along", [&](const net& m, auto& run, const auto&, const auto&) {
    eval(mean(square(mean(unflatten<1, 2>(m.table(even(run))), dims<1>))), run);
  });
  refuses("context: sum or mean reads along", [&](const net& m, auto& run, const auto&, const auto&) {
    eval(mean(unflatten<1, 2>(m.table(even(run))), dims<2>), run);
  });
  refuses("context: cumsum", [&](const net& m, auto& run, const auto&, const auto&) {
    const auto x = even(run);
    eval(cumsum<1>(flatten<0, 1>(unflatten<1>(m.table(x), x.extents()[1] / 2))), run);
  });
  refuses("context: cumsum", [&](const net&, auto& run, const auto&, const auto&) {
    const auto flat = eval(flatten<0, 1>(cast<float>(even(run))), run);
    eval(cumsum<1>(unflatten<0, 2>(flat)), run);
  });
}

TEST_CASE("rows at positions of what is itself divided are refused") {
  refuses("context: index_select reads along positions",
          [](const net& m, auto& run, const auto& x, const auto&) {
            const auto here = eval(cast<std::int64_t>(x[0]) * 0, run);  // numbers of rows at positions
            eval(index_select<1>(m.table(x), here), run);
          });
}

TEST_CASE("an update is computed as eval computes, and its target has positions") {
  refuses("context: cumsum", [](const net&, auto& run, const auto& x, const auto&) {
    const auto to = zeros<float>(extents<dyn, dyn>{2, x.extents()[1]});
    update(to, cumsum<1>(cast<float>(x)), run);
  });
  refuses("context: cumsum", [](const net&, auto& run, const auto& x, const auto&) {
    const auto to = zeros<float>(extents<dyn, dyn>{2, x.extents()[1]});
    update(to, cast<float>(x), run);
    eval(cumsum<1>(to), run);
  });
  refuses("context: cumsum", [](const net&, auto& run, const auto& x, const auto&) {
    const auto to = zeros<float>(extents<dyn, dyn>{3, x.extents()[1]});
    update(slice<0>(to, 1, 3), cast<float>(x), run);
    eval(cumsum<0>(to), run);
    eval(cumsum<1>(to), run);
  });
  refuses("context: update writes [2, ", [](const net&, auto& run, const auto& x, const auto&) {
    const auto to = zeros<float>(extents<dyn, dyn>{2, x.extents()[1] + 1});
    update(slice<1>(to, 1, x.extents()[1] + 1), cast<float>(x), run);
  });
  refuses("context: update writes []", [](const net&, auto& run, const auto& x, const auto&) {
    const auto to = eval(cast<float>(x), run);
    update(to, 1, run);
    update(select<1>(to, 0), 0, run);
  });
}

TEST_CASE("copies and gradients have the positions of the original") {
  refuses("context: cumsum", [](const net&, auto& run, const auto& x, const auto&) {
    eval(cumsum<1>(cast<float>(clone(x))), run);
  });
  refuses("context: cumsum", [](const net& m, auto& run, const auto& x, const auto&) {
    const variable<float, extents<dyn, dyn, width>> h(eval(m.table(x), run));
    tape steps(run);
    steps.backward(steps.eval(mean(square(h))));
    eval(cumsum<1>(h.grad()), run);
  });
}

namespace {

struct flipped {
  auto operator()(expression auto h) const { return flip<1>(h); }
};
struct flipped_features {
  auto operator()(expression auto h) const { return flip<-1>(h); }
};

template <class F>
struct deep_net {
  embedding_table<words, width> table;
  repeat<block_of<F>> blocks{std::vector<block_of<F>>(3)};
  linear<width, words> head;
  auto loss(const tokens& x, const tokens& y) const { return cross_entropy(head(blocks(table(x))), y); }
};

template <class Plan>
void refuses_blocks(const mesh_sizes& n) {
  run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
    deep_net<flipped> model;
    initialize(model, 3);
    sgd optimizer;
    auto run = bind<Plan>(model, optimizer, ranks, n);
    const context_part own = run.part_of_context(length);
    const tokens x(own.of(batch(0, 0))), y(own.of(batch(0, 1)));
    CHECK_THROWS_WITH_AS(run.step(2, [&](index_t) { return model.loss(x, y); }),
                         doctest::Contains("flip reads along positions"), usage_error);
  });
}

}  // namespace

TEST_CASE("blocks of a repeat, on one stage and on several") {
  refuses_blocks<plan>({.cp = 2});
  refuses_blocks<policy<strategy::mesh<pp<>, cp<>>>>({.pp = 2, .cp = 2});
}

TEST_CASE("a step of a pipeline has sequences of one length") {
  const mesh_sizes n{.pp = 2, .cp = 2};
  run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
    deep_net<flipped_features> model;
    initialize(model, 3);
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<pp<>, cp<>>>>(model, optimizer, ranks, n);
    const auto loss = [&](index_t of) {
      const context_part own = run.part_of_context(of);
      const auto tokens_of = [&](index_t shift) {
        return own.of(
            generate<std::int32_t>(extents<dyn, dyn>{2, of}, [=](index_t i) { return (i + shift) % words; }));
      };
      return model.loss(tokens_of(0), tokens_of(1));
    };
    for (const index_t of : {11, 7}) CHECK_NOTHROW(run.step(2, [&](index_t) { return loss(of); }));
    CHECK_THROWS_WITH_AS(
        run.step(2, [&](index_t j) { return loss(j == 0 ? 11 : 7); }),
        doctest::Contains("micro-batch 1 has sequences of 7 positions, but those before it have 11"),
        std::exception);
  });
}

TEST_CASE("attention to keys that every rank has whole, and in a backward pass of another length, say so") {
  const auto heads = [](auto v) { return unflatten<-1, 2>(v); };
  constexpr auto what = "the length last given to run.part_of_context";
  refuses(what, [&](const net& m, auto& run, const auto& x, const auto&) {
    const auto keys = eval(m.table(batch(3, 0)), run);
    eval(attention<!causal>(heads(m.query(m.table(x))), heads(m.key(keys)), heads(m.value(keys))), run);
  });
  refuses(what, [&](const net& m, auto& run, const auto& x, const auto&) {
    tape steps(run);
    const auto loss = steps.eval(let(m.table(x), [&](auto h) {
      return mean(square(attention<causal>(heads(m.query(h)), heads(m.key(h)), heads(m.value(h)))));
    }));
    run.part_of_context(7);
    steps.backward(loss);
  });
}

namespace {

/// The losses of three steps, an evaluated loss, and the parameters.
template <class F>
std::vector<double> trained_with(communicator& ranks, F loss) {
  net model;
  initialize(model, 3);
  sgd optimizer{.lr = 0.1, .momentum = 0.9};
  auto run = bind<plan>(model, optimizer, ranks);
  const context_part own = run.part_of_context(length);
  const auto loss_of = [&](index_t number) {
    return loss(model, own, run, own.of(batch(number, 0)), own.of(batch(number, 1)));
  };
  std::vector<double> all;
  for (int s = 0; s < 3; ++s) all.push_back(run.step(1, [&](index_t) { return loss_of(s); }).loss);
  std::vector<double> evaluated{run.loss_weight * static_cast<double>(eval(loss_of(3), run).item())};
  ranks.all_reduce(evaluated, reduction::sum).wait();
  all.push_back(evaluated[0] / ranks.size());
  for (const float p : test::elements_of(run.full())) all.push_back(p);
  return all;
}
template <class F>
void trains_like_one(F loss) {
  std::vector<double> one;
  run_ranks(1, [&](communicator& ranks) { one = trained_with(ranks, loss); });
  for (const int n : {2, 3})
    run_ranks(n,
              [&](communicator& ranks) { CHECK(largest_difference(trained_with(ranks, loss), one) < 1e-4); });
}

}  // namespace

TEST_CASE("formulas of each position, attention and losses that are means train as on one rank") {
  trains_like_one([](const net& m, const context_part& own, auto&, const auto& x, const auto& y) {
    const auto positions = own.positions();
    return let(m.norm(m.table(x) + 0.1f * m.table(positions - floor_divide(positions, 9) * 9)), [&](auto h) {
      const auto heads = [](auto v) { return unflatten<-1, 2>(v); };
      auto a = attention<causal>(rotary(heads(m.query(h)), positions), rotary(heads(m.key(h)), positions),
                                 heads(m.value(h)));
      auto turned = transpose(conv1d(transpose(gelu(flatten<2, 3>(a))), m.points));
      return cross_entropy(m.head(h + turned), y) + 0.01f * mean(square(m.key(h))) +
             0.001f * sum(square(m.head.weight)) + sum(mean(h, dims<0, 1>) * m.query.bias);
    });
  });
}

TEST_CASE("sums over those that count, over all ranks or as a mean, train as on one rank") {
  trains_like_one([](const net& m, const context_part& own, auto&, const auto& x, const auto& y) {
    const auto counts = cast<float>(y != 100);
    const auto of_all = sum_over_positions(sum(counts));
    auto losses = cross_entropy<reduction_kind::none>(m.head(m.table(x)), y);
    return sum(losses * counts) / of_all * (static_cast<float>(length) / static_cast<float>(own.count())) +
           0.1f * sum(square(m.table(x)) * unsqueeze<2>(counts)) / maximum(sum(counts), 1.0f);
  });
}

TEST_CASE("weights of classes, and what is the same at each position, train as on one rank") {
  trains_like_one([](const net& m, const context_part& own, auto& run, const auto& x, const auto& y) {
    const auto weights = generate<float>(extents<words>{}, [](index_t i) { return 0.1f + i; });
    const auto hidden =
        m.table(x) + m.places(own.positions() - own.positions()) +
        expand(reshape<1, 1, width>(m.query.bias), extents<2, dyn, width>{2, own.count(), width});
    const auto rows = eval(flatten<0, 1>(cast<float>(x)), run);
    return cross_entropy(m.head(hidden), y, weights) + 0.1f * mean(unflatten<0, 2>(rows)) +
           mean(square(unflatten<1>(m.key(hidden), own.count()))) +
           mean(tanh(m.key(reshape(m.query(hidden), extents<dyn, dyn, width>{2, own.count()}))));
  });
  trains_like_one([](const net& m, const context_part& own, auto&, const auto& x, const auto& y) {
    return cross_entropy(m.head(m.table(x)), where(own.positions() < 2, cast<std::int64_t>(y), -100),
                         ones<float>(extents<words>{}));  // a rank without labels that count
  });
}

TEST_CASE("the result of an update in place, also of a part, is that of eval") {
  trains_like_one([](const net& m, const context_part& own, auto& run, const auto& x, const auto& y) {
    const auto heads = [](auto v) { return unflatten<-1, 2>(v); };
    const auto a = flatten<2, 3>(
        attention<causal>(heads(m.query(m.table(x))), heads(m.key(m.table(x))), heads(m.value(m.table(x)))));
    const auto to = zeros<float>(extents<dyn, dyn, width>{2, own.count(), width});
    const auto beside = zeros<float>(extents<dyn, dyn, 2 * width>{2, own.count(), 2 * width});
    update(to, a, run);
    update(slice<2, 0, width>(beside), a, run);
    return cross_entropy(m.head(m.table(x) + to), y) + mean(square(beside)) * mean(square(m.head.weight));
  });
}

TEST_CASE("rows, slices of them and several programs train as on one rank") {
  trains_like_one([](const net& m, const context_part& own, auto& run, const auto& x, const auto& y) {
    const auto seen = eval(flatten<0, 1>(cast<float>(x)), run);  // of no use but to be read
    const auto other = own.of(batch(7, 0));                      // that keys are of
    const auto heads = [](auto v) { return unflatten<-1, 2>(v); };
    auto a = attention<!causal>(heads(m.query(m.table(x))), heads(m.key(m.table(other))),
                                heads(m.value(m.table(other))));
    return linear_cross_entropy(m.table(x) + flatten<2, 3>(a), m.head.weight, y) + 0.1f * mean(seen);
  });
}
