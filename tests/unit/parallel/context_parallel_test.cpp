// SPDX-License-Identifier: MIT
// Positions divided among ranks that are threads: attention and its gradients, losses, norms and parameters
// are those of one rank, and exactly the predicted bytes are sent.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

using plan = policy<strategy::mesh<dp, cp<>>>;
using rows = extents<dyn, dyn, dyn, dyn>;

struct nothing_to_train {
  linear<2, 2> layer;
};

/// Extents of queries, keys and values of all ranks.
struct sizes {
  index_t batch, positions, heads, key_heads, features;
  index_t elements_of_keys() const { return batch * positions * key_heads * features; }
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

template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i])) return 1;
    most = std::max(most,
                    std::abs(static_cast<double>(a[i] - b[i])) / (1 + std::abs(static_cast<double>(b[i]))));
  }
  return most;
}

/// Whether `ranks` ranks compute what one does, each at its positions, and the bytes that they send.
template <class T, bool Causal>
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
    auto run = bind<plan>(model, optimizer, all, {.cp = ranks});
    const context_part own = run.part_of_context(n.positions);
    const auto here = a.template results<Causal>(run, [&](const auto& x) { return own.of(x); });
    for (std::size_t i = 0; i < here.size(); ++i) {
      const bool of_query = i < 2;
      const auto expected =
          own.of(from(rows{n.batch, n.positions, of_query ? n.heads : n.key_heads, n.features}, whole[i]));
      CAPTURE(i);
      if (ranks == 1) CHECK(here[i] == whole[i]);
      CHECK(distance(here[i], expected.to_vector()) < tolerance);
    }
    std::vector<std::int64_t> sent{run.sent_by_axis()[static_cast<std::size_t>(mesh_axis::cp)]};
    all.all_reduce(sent).wait();
    CHECK(sent[0] == 6 * n.elements_of_keys() * static_cast<index_t>(sizeof(T)) * (ranks - 1));
  });
}

}  // namespace

TEST_CASE("every position is on one rank, and each has as many and as much to attend to") {
  for (const int ranks : {1, 2, 3, 4, 5})
    for (const index_t length : {5, 8, 9, 23, 64, 120}) {
      const parallel::context_division d(length, ranks);
      std::vector<int> seen(static_cast<std::size_t>(length));
      for (int r = 0; r < ranks; ++r) {
        const auto own = d.positions(r);
        CHECK(std::is_sorted(own.begin(), own.end()));
        CHECK(static_cast<index_t>(own.size()) == d.count(r));
        CHECK(std::abs(d.count(r) * ranks - length) <= 2 * ranks);
        for (const std::int32_t p : own) ++seen[static_cast<std::size_t>(p)];
        if (length % (2 * ranks) == 0)
          CHECK(std::accumulate(own.begin(), own.end(), index_t{0}) == length * (length - 1) / 2 / ranks);
      }
      CHECK(seen == std::vector<int>(static_cast<std::size_t>(length), 1));
    }
  CHECK_THROWS_WITH_AS(parallel::context_division(2, 3),
                       "weft: context: 2 positions cannot be divided among 3 ranks", usage_error);
}

TEST_CASE("attention over the positions of all ranks, and its gradients") {
  for (const int ranks : {1, 2, 3, 4})
    for (const sizes& n : {sizes{2, 4, 2, 2, 3}, sizes{1, 9, 4, 2, 5}, sizes{2, 141, 3, 1, 8}}) {
      same_as_one_rank<double, true>(ranks, n, 1e-13);
      same_as_one_rank<double, false>(ranks, n, 1e-13);
      same_as_one_rank<float, true>(ranks, n, 1e-5);
    }
}
