// SPDX-License-Identifier: MIT
// Context parallelism on ranks that are threads: attention and its gradients, losses, norms and parameters
// equal those of one rank, and exactly the predicted bytes are sent.
#include <doctest/doctest.h>

#include <numeric>

#include "divided_positions.hpp"

using namespace divided_positions;

namespace {

using plan = policy<strategy::mesh<dp, cp<>>>;
using by_heads = policy<strategy::mesh<dp, cp<ulysses>>>;
using rows = extents<dyn, dyn, dyn, dyn>;

struct nothing_to_train {
  linear<2, 2> layer;
};

/// Extents of queries, keys and values of all ranks.
struct sizes {
  index_t batch, positions, heads, key_heads, features;
  /// The number of elements that all ranks send for the result and all gradients.
  index_t sent(bool ring, int ranks) const {
    if (ring) return 6 * batch * positions * key_heads * features * (ranks - 1);
    const parallel::context_division d(positions, ranks);
    index_t stay = 0;  // per feature and key head, the positions of a rank whose heads are also on it
    for (int r = 0; r < ranks; ++r) stay += d.count(r) * (key_heads / ranks + (r < key_heads % ranks));
    const index_t of_keys = batch * features * (positions * key_heads - stay);
    return 4 * of_keys + 4 * of_keys * (heads / key_heads);
  }
};

template <class T>
struct attended {
  std::vector<tensor<T, rows>> of;  // q, k, v, the cotangent of the result
  explicit attended(const sizes& n) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const bool of_query = i == 0 || i == 3;
      of.push_back(randn<T>(rows{n.batch, n.positions, of_query ? n.heads : n.key_heads, n.features},
                            {.seed = i + 1}));
    }
  }
  /// The result, and the gradients of q, k and v; `part` selects this rank's parts.
  template <bool Causal, class Run, class Part>
  std::vector<std::vector<T>> results(Run& c, Part part) const {
    variable<T, rows> q(part(of[0])), k(part(of[1])), v(part(of[2]));
    tape steps(c);
    const auto y = steps.eval(attention<Causal>(q, k, v));
    steps.backward(y, tensor<T, rows>(part(of[3])));
    return {y.to_vector(), q.grad().to_vector(), k.grad().to_vector(), v.grad().to_vector()};
  }
};

/// Checks that `ranks` ranks compute the same as one, each at its positions, and the bytes that they send.
template <class Plan, class T, bool Causal>
void same_as_one_rank(int ranks, const sizes& n, double tolerance) {
  CAPTURE(ranks);
  CAPTURE(n.positions);
  CAPTURE(Causal);
  const attended<T> a(n);
  context alone;
  const auto whole = a.template results<Causal>(alone, [](const auto& x) { return x; });
  run_ranks(ranks, [&](communicator& all) {
    nothing_to_train model;
    sgd optimizer;
    auto run = bind<Plan>(model, optimizer, all, {.cp = ranks});
    const context_part own = run.part_of_context(n.positions);
    const auto here = a.template results<Causal>(run, [&](const auto& x) { return own.of(x); });
    for (std::size_t i = 0; i < here.size(); ++i) {
      const bool of_query = i < 2;
      const auto expected =
          own.of(from(rows{n.batch, n.positions, of_query ? n.heads : n.key_heads, n.features}, whole[i]));
      CAPTURE(i);
      if (ranks == 1 && !is_narrow(dtype_of<T>)) CHECK(here[i] == whole[i]);
      CHECK(largest_difference(here[i], expected.to_vector()) < tolerance);
    }
    std::vector<std::int64_t> sent{run.sent_by_axis()[static_cast<std::size_t>(mesh_axis::cp)]};
    all.all_reduce(sent).wait();
    constexpr bool ring = std::is_same_v<Plan, plan>;
    const dtype type = dtype_of<T>;  // around a ring, bf16 and f16 are sent as f32
    CHECK(sent[0] == n.sent(ring, ranks) * size_of(ring ? compute_type(type) : type));
  });
}

}  // namespace

TEST_CASE("every position is on one rank, and each has as many and as much to attend to") {
  for (const int ranks : {1, 2, 3, 4, 5})
    for (const index_t positions : {5, 8, 9, 23, 64, 120}) {
      const parallel::context_division d(positions, ranks);
      std::vector<int> seen(static_cast<std::size_t>(positions));
      for (int r = 0; r < ranks; ++r) {
        const auto own = d.positions(r);
        CHECK(std::is_sorted(own.begin(), own.end()));
        CHECK(static_cast<index_t>(own.size()) == d.count(r));
        CHECK(std::abs(d.count(r) * ranks - positions) <= 2 * ranks);
        for (const std::int32_t p : own) ++seen[static_cast<std::size_t>(p)];
        if (positions % (2 * ranks) == 0)
          CHECK(std::accumulate(own.begin(), own.end(), index_t{0}) ==
                positions * (positions - 1) / 2 / ranks);
      }
      CHECK(seen == std::vector<int>(static_cast<std::size_t>(positions), 1));
    }
  CHECK_THROWS_WITH_AS(parallel::context_division(2, 3),
                       "weft: context: 2 positions cannot be divided among 3 ranks", usage_error);
}

TEST_CASE("attention over the positions of all ranks, and its gradients") {
  for (const int ranks : {1, 2, 3, 4})
    for (const sizes& n : {sizes{2, 4, 2, 2, 3}, sizes{1, 9, 4, 2, 5}, sizes{2, 141, 3, 1, 8}}) {
      same_as_one_rank<plan, double, true>(ranks, n, 1e-13);
      same_as_one_rank<plan, double, false>(ranks, n, 1e-13);
      same_as_one_rank<plan, float, true>(ranks, n, 1e-5);
      same_as_one_rank<by_heads, double, true>(ranks, n, 1e-13);
      same_as_one_rank<by_heads, float, false>(ranks, n, 1e-5);
      same_as_one_rank<plan, bfloat16, true>(ranks, n, 0.02);
      same_as_one_rank<by_heads, bfloat16, true>(ranks, n, 0.02);
    }
  CHECK(sizes{2, 12, 6, 3, 5}.sent(false, 3) == 2 * 2 * (2 * 12 * 6 * 5 + 2 * 12 * 3 * 5) / 3 * 2);
}

namespace {

/// The derivative of attention inside an expression, on 2 and 3 ranks and on one.
template <class Precision, class Division>
void same_slope(double tolerance) {
  const sizes n{2, 11, 4, 2, 6};
  const attended<float> a(n);
  const auto slope = [&](auto& c, auto part) {
    const auto k = part(a.of[1]), v = part(a.of[2]), g = part(a.of[3]);
    return eval(grad([&](auto x) { return sum(attention<causal>(x, k, v) * g); }, part(a.of[0])) * 1.0f, c);
  };
  context_in<Precision> alone;
  const tensor<float, rows> whole(slope(alone, [](const auto& x) { return x; }));
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](communicator& all) {
      nothing_to_train model;
      sgd optimizer;
      using plan = policy<Precision, strategy::mesh<dp, Division>>;
      auto run = bind<plan>(model, optimizer, all, {.cp = ranks});
      const context_part own = run.part_of_context(n.positions);
      const auto here = slope(run, [&](const auto& x) { return tensor<float, rows>(own.of(x)); });
      CHECK(largest_difference(here.to_vector(), own.of(whole).to_vector()) < tolerance);
    });
}

}  // namespace

TEST_CASE("the derivative of attention inside an expression, in f32 and in mixed precision") {
  same_slope<precision::f32, cp<>>(1e-5);
  same_slope<precision::bf16, cp<>>(0.03);
  same_slope<precision::bf16, cp<ulysses>>(0.03);
}

TEST_CASE("GPT-2 on meshes: losses, norms and parameters of one rank") {
  outcome one, alone;
  run_ranks(1, [&](communicator& ranks) {
    one = trained<policy<strategy::mesh<dp>>>(ranks, {});
    alone = trained<plan>(ranks, {});
  });
  CHECK(alone.losses == one.losses);
  CHECK(alone.parameters == one.parameters);
  for (const int ranks : {2, 3, 4}) trains_as_one_rank<plan>(one, {.cp = ranks});
  trains_as_one_rank<plan>(one, {.dp = 2, .cp = 2});
  trains_as_one_rank<policy<strategy::mesh<fsdp<3>, cp<>>>>(one, {.fsdp = 2, .cp = 2});
  for (const int ranks : {1, 2, 3}) trains_as_one_rank<by_heads>(one, {.cp = ranks});
}

TEST_CASE("losses weigh as many positions as they were evaluated with, until others are asked for") {
  const auto x = generate<float>(extents<dyn, dyn, 4>{2, 11, 4},
                                 [](index_t i) { return static_cast<float>(i * 7 % 11) / 5; });
  const auto trained = [&](communicator& ranks, int how) {
    struct {
      linear<4, 4> layer;
    } model;
    initialize(model, 1);
    sgd optimizer{.lr = 0.1};
    auto run = bind<policy<strategy::mesh<cp<>>>>(model, optimizer, ranks, {.cp = ranks.size()});
    const auto loss_of = [&](const auto& own, index_t length) {
      context apart;
      return mean(square(model.layer(own.of(eval(slice<1>(x, 0, length), apart))) - 1.0f));
    };
    std::vector<double> all;
    if (how == 0) {  // asked for once
      const auto own = run.part_of_context(5);
      for (int s = 0; s < 3; ++s) {
        const auto r = run.step(1, [&](index_t) { return loss_of(own, 5); });
        all.insert(all.end(), {r.loss, static_cast<double>(r.norm)});
      }
    } else if (how == 1) {  // another length in each micro-batch
      for (int s = 0; s < 2; ++s) {
        const auto r = run.step(2, [&](index_t j) {
          const index_t length = j == 0 ? 11 : 7;
          return loss_of(run.part_of_context(length), length);
        });
        all.insert(all.end(), {r.loss, static_cast<double>(r.norm)});
      }
    } else if (how == 2) {  // labels that count lie at the end
      const auto labels = generate<std::int32_t>(extents<dyn, dyn>{2, 11},
                                                 [](index_t i) { return i % 11 < 7 ? -100 : i % 4; });
      const auto own = run.part_of_context(11);
      for (int s = 0; s < 2; ++s) {
        const auto r = run.step(1, [&](index_t) {
          const auto y = own.of(labels);
          return cross_entropy<reduction_kind::sum>(model.layer(own.of(x)), y) /
                 sum_over_positions(sum(cast<float>(y != -100))) * (11.f / static_cast<float>(own.count()));
        });
        all.insert(all.end(), {r.loss, static_cast<double>(r.norm)});
      }
    } else {  // two tapes, both forward first
      tape first(run), second(run);
      const auto a = first.eval(loss_of(run.part_of_context(11), 11));
      const auto b = second.eval(loss_of(run.part_of_context(5), 5));
      {
        const auto quiet = run.no_sync();
        first.backward(a);
      }
      second.backward(b);
      all.push_back(static_cast<double>(run.step({.micro_batches = 2})));
    }
    return all;
  };
  for (int how = 0; how < 4; ++how) {
    CAPTURE(how);
    std::vector<double> expected;
    run_ranks(1, [&](communicator& ranks) { expected = trained(ranks, how); });
    for (const int n : {2, 3})
      run_ranks(n, [&](communicator& ranks) {
        CHECK(test::largest_relative_difference(trained(ranks, how), expected) < 1e-5);
      });
  }
}

TEST_CASE("what does not fit is refused") {
  run_ranks(2, [](communicator& all) {
    nothing_to_train model;
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<cp<>>>>(model, optimizer, all);
    const auto q = randn<float>(rows{1, 4, 2, 3});
    CHECK_THROWS_WITH_AS(eval(attention<causal>(q, q, q), run),
                         doctest::Contains("call run.part_of_context(length) first"), usage_error);
    CHECK_THROWS_AS(run.part_of_context(1), usage_error);
    const context_part own = run.part_of_context(7);
    CHECK_THROWS_WITH_AS(own.of(q), doctest::Contains("does not have the 7 positions"), shape_error);
    CHECK_THROWS_WITH_AS(eval(attention<causal>(q, slice<1>(q, 0, 3), slice<1>(q, 0, 3)), run),
                         doctest::Contains("positions, but this rank has"), usage_error);
  });
}
