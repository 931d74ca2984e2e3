// SPDX-License-Identifier: MIT
// Positions divided among ranks that are threads: attention and its gradients, losses, norms and parameters
// are those of one rank, and exactly the predicted bytes are sent.
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
  /// The elements that all ranks send for the result and all gradients.
  index_t sent(bool ring, int ranks) const {
    if (ring) return 6 * batch * positions * key_heads * features * (ranks - 1);
    const parallel::context_division d(positions, ranks);
    index_t stay = 0;  // of one feature and key head: the positions of a rank whose heads are also on it
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
  /// The result, and the gradients of q, k and v, where `part` gives what of them is here.
  template <bool Causal, class Run, class Part>
  std::vector<std::vector<T>> results(Run& c, Part part) const {
    variable<T, rows> q(part(of[0])), k(part(of[1])), v(part(of[2]));
    tape steps(c);
    const auto y = steps.eval(attention<Causal>(q, k, v));
    steps.backward(y, tensor<T, rows>(part(of[3])));
    return {y.to_vector(), q.grad().to_vector(), k.grad().to_vector(), v.grad().to_vector()};
  }
};

/// Whether `ranks` ranks compute what one does, each at its positions, and the bytes that they send.
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
      if (ranks == 1) CHECK(here[i] == whole[i]);
      CHECK(largest_difference(here[i], expected.to_vector()) < tolerance);
    }
    std::vector<std::int64_t> sent{run.sent_by_axis()[static_cast<std::size_t>(mesh_axis::cp)]};
    all.all_reduce(sent).wait();
    constexpr bool ring = std::is_same_v<Plan, plan>;
    CHECK(sent[0] == n.sent(ring, ranks) * static_cast<index_t>(sizeof(T)));
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
    }
  CHECK(sizes{2, 12, 6, 3, 5}.sent(false, 3) == 2 * 2 * (2 * 12 * 6 * 5 + 2 * 12 * 3 * 5) / 3 * 2);
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

TEST_CASE("what does not fit is refused") {
  run_ranks(2, [](communicator& all) {
    nothing_to_train model;
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<cp<>>>>(model, optimizer, all);
    const auto q = randn<float>(rows{1, 4, 2, 3});
    CHECK_THROWS_WITH_AS(eval(attention<causal>(q, q, q), run),
                         doctest::Contains("call run.part_of_context(length) before"), usage_error);
    CHECK_THROWS_AS(run.part_of_context(1), usage_error);
    const context_part own = run.part_of_context(7);
    CHECK_THROWS_WITH_AS(own.of(q), doctest::Contains("has not the 7 positions"), shape_error);
    CHECK_THROWS_WITH_AS(eval(attention<causal>(q, slice<1>(q, 0, 3), slice<1>(q, 0, 3)), run),
                         doctest::Contains("positions: this rank has"), usage_error);
    const tensor<bfloat16, rows> narrow(own.of(randn<bfloat16>(rows{1, 7, 2, 3})));
    CHECK_THROWS_WITH_AS(eval(attention<causal>(narrow, narrow, narrow), run),
                         doctest::Contains("positions of several ranks, of bf16"), usage_error);
  });
}
