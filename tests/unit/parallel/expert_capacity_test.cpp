// SPDX-License-Identifier: MIT
// Mixtures of experts with a capacity under context parallelism: the same tokens of whole sequences are
// dropped as in plain loops, and exactly the predicted bytes are sent.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <weft/comm/counting.hpp>
#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

constexpr index_t C = 4;
using mixture = mixture_of_experts<C, feed_forward<C, 6>>;
using sequences = extents<dyn, dyn, C>;

struct net {
  mixture moe;
};
net made(const expert_choice& choice) {
  net model{mixture::create(C, 5, choice, [] { return feed_forward<C, 6>(); })};
  initialize(model, 3);
  return model;
}

struct loops {
  std::vector<float> y;
  std::size_t dropped = 0, zeros = 0;  // choices; tokens without an expert
};

/// The mixture's result for x [tokens, C].
loops by_loops(const mixture& moe, const tensor<float, extents<dyn, C>>& x) {
  context alone;
  const std::vector<float> p = eval(softmax(moe.router(x)), alone).to_vector();
  const auto experts = moe.experts.size(), per_row = static_cast<std::size_t>(moe.choice.per_row);
  const std::size_t tokens = p.size() / experts, width = C;
  std::vector<std::vector<float>> computed;
  for (const auto& e : moe.experts) computed.push_back(eval(e(x), alone).to_vector());
  std::vector<std::vector<std::size_t>> best(tokens, std::vector<std::size_t>(experts));
  for (std::size_t n = 0; n < tokens; ++n) {
    std::iota(best[n].begin(), best[n].end(), 0);
    std::sort(best[n].begin(), best[n].end(),
              [&](auto a, auto b) { return p[n * experts + a] > p[n * experts + b]; });
  }
  const double mean = static_cast<double>(tokens * per_row) / static_cast<double>(experts);
  const double factor = moe.choice.capacity_factor, most = factor > 0 ? std::ceil(factor * mean) : 1e9;
  loops found{std::vector<float>(tokens * width, 0.0f)};
  std::vector<double> taken(experts, 0.0);
  std::vector<std::size_t> kept(tokens, 0);
  for (std::size_t j = 0; j < per_row; ++j)
    for (std::size_t n = 0; n < tokens; ++n) {
      const std::size_t e = best[n][j];
      if (++taken[e] > most) {
        ++found.dropped;
        continue;
      }
      ++kept[n];
      float all = 0;
      for (std::size_t i = 0; i < per_row; ++i) all += p[n * experts + best[n][i]];
      for (std::size_t c = n * width; c < (n + 1) * width; ++c)
        found.y[c] += p[n * experts + e] / all * computed[e][c];
    }
  found.zeros = static_cast<std::size_t>(std::count(kept.begin(), kept.end(), 0));
  return found;
}

/// The number of tokens whose values are all 0.
std::size_t zeros_of(const std::vector<float>& y) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < y.size(); i += C)
    count += std::all_of(y.begin() + static_cast<std::ptrdiff_t>(i),
                         y.begin() + static_cast<std::ptrdiff_t>(i + C), [](float v) { return v == 0; });
  return count;
}

/// The bytes that this rank sends along each axis to evaluate a mixture; f(run, model, own) evaluates it.
template <class Plan, class F>
axis_bytes sent(communicator& ranks, const mesh_sizes& n, const expert_choice& choice, index_t length,
                const device& where, F f) {
  net model = made(choice);
  to(model, where);
  sgd optimizer;
  auto run = bind<Plan>(model, optimizer, ranks, n);
  f(run, model, run.part_of_context(length));
  return run.sent_by_axis();
}
index_t of(mesh_axis a, const axis_bytes& sent) { return sent[static_cast<std::size_t>(a)]; }

/// The prediction for rank `rank`, on a device that only counts.
template <class Plan, class E>
axis_bytes predicted(int rank, const mesh_sizes& n, const expert_choice& choice, const E& extents_of_x) {
  counting_communicator nowhere(rank, static_cast<int>(n.ranks()));
  const device counts(std::make_shared<counting_backend>());
  return sent<Plan>(nowhere, n, choice, extents_of_x[1], counts,
                    [&](auto& run, const net& model, const context_part& own) {
                      eval(model.moe(own.of(zeros<float>(extents_of_x, counts))), run);
                    });
}

/// Checks that the ranks of a mesh compute the same from x [batch, positions, ..., C] as loops, each at its
/// positions, and the bytes that they send.
template <class Plan, class E>
void same_as_loops(const mesh_sizes& n, const E& extents_of_x, const expert_choice& choice) {
  CAPTURE(to_string(n));
  CAPTURE(to_string(shape(extents_of_x)));
  CAPTURE(choice.per_row);
  CAPTURE(choice.capacity_factor);
  const index_t length = extents_of_x[1], tokens = shape(extents_of_x).size() / C;
  std::atomic<std::size_t> without = 0, expected = 0, dropped = 0;
  std::atomic<index_t> sent_by_all = 0;
  run_ranks(static_cast<int>(n.ranks()), [&](communicator& ranks) {
    const int data = n.coordinate(ranks.rank(), mesh_axis::ep);
    const auto x = randn<float>(extents_of_x, {.seed = static_cast<std::uint64_t>(data) + 7});
    context alone;
    const loops all = by_loops(made(choice).moe, eval(reshape(x, extents<dyn, C>{tokens}), alone));
    const auto evaluate = [&](auto& run, const net& model, const context_part& own) {
      const std::vector<float> y = eval(model.moe(own.of(x)), run).to_vector();
      CHECK(test::largest_difference(y, own.of(from(extents_of_x, all.y)).to_vector()) < 1e-5);
      without += zeros_of(y);
    };
    const index_t bytes = of(mesh_axis::cp, sent<Plan>(ranks, n, choice, length, default_device(), evaluate));
    CHECK(bytes == of(mesh_axis::cp, predicted<Plan>(ranks.rank(), n, choice, extents_of_x)));
    sent_by_all += bytes;
    if (n.coordinate(ranks.rank(), mesh_axis::cp) == 0) expected += all.zeros, dropped += all.dropped;
  });
  CHECK(without.load() == expected.load());
  if (choice.capacity_factor > 0)
    CHECK(4 * dropped > static_cast<std::size_t>(tokens * choice.per_row * n.ep));
  const index_t numbers = choice.capacity_factor > 0 ? tokens * choice.per_row : 0;
  CHECK(sent_by_all.load() == n.ep * (n.cp - 1) * numbers * static_cast<index_t>(sizeof(std::int64_t)));
}

using plan = policy<strategy::mesh<cp<>>>;
using with_experts = policy<strategy::mesh<cp<>, ep>>;

}  // namespace

TEST_CASE("the tokens that one rank drops, of sequences of any length, and one message") {
  for (const expert_choice& choice : {expert_choice{1, 0.5}, expert_choice{2, 0.6}, expert_choice{2, 0}})
    for (const sequences& x : {sequences{1, 16}, sequences{3, 11}, sequences{2, 5}}) {
      for (const int ranks : {1, 2, 3, 4}) same_as_loops<plan>({.cp = ranks}, x, choice);
      same_as_loops<policy<strategy::mesh<cp<ulysses>>>>({.cp = 3}, x, choice);
      for (const int ranks : {2, 3}) same_as_loops<with_experts>({.cp = 2, .ep = ranks}, x, choice);
    }
  same_as_loops<plan>({.cp = 3}, extents<dyn, dyn, dyn, C>{2, 7, 3}, {2, 0.6});
}

TEST_CASE("predictions are for experts that are equally used: of the mean none is dropped") {
  const mesh_sizes n{.cp = 3, .ep = 2};
  for (int r = 0; r < n.ranks(); ++r) {
    const sequences x{2, 11};
    const auto along_ep = [&](double factor) {
      return of(mesh_axis::ep, predicted<with_experts>(r, n, {2, factor}, x));
    };
    CHECK(along_ep(0) > 0);
    CHECK(along_ep(1) == along_ep(0));
    CHECK(along_ep(0.5) < along_ep(0));
  }
}

TEST_CASE("a sequence without a batch; no sequences") {
  const expert_choice choice{1, 0.5};
  const auto x = randn<float>(sequences{1, 11});
  const net whole = made(choice);
  const loops all = by_loops(whole.moe, eval(reshape(x, extents<dyn, C>{11})));
  run_ranks(3, [&](communicator& ranks) {
    sent<plan>(ranks, {.cp = 3}, choice, 11, default_device(),
               [&](auto& run, const net& model, const context_part& own) {
                 const auto here = eval(reshape(own.of(x), extents<dyn, C>{own.count()}), run);
                 const auto expected = own.of(from(sequences{1, 11}, all.y)).to_vector();
                 CHECK(test::largest_difference(eval(model.moe(here), run).to_vector(), expected) < 1e-5);
                 const tensor<float, sequences> none(sequences{0, own.count()});
                 CHECK(eval(model.moe(none), run).to_vector().empty());
               });
  });
}

TEST_CASE("rows that are not the positions of this rank are refused") {
  run_ranks(2, [](communicator& ranks) {
    net model = made({1, 0.5});
    sgd optimizer;
    auto run = bind<plan>(model, optimizer, ranks);
    const auto x = randn<float>(sequences{1, 4});
    CHECK_THROWS_WITH_AS(eval(model.moe(x), run),
                         "weft: experts: the number of positions of all ranks is not known: call "
                         "run.part_of_context(length) first",
                         usage_error);
    run.part_of_context(11);
    CHECK_THROWS_WITH_AS(eval(model.moe(x), run), doctest::Contains("has 4 positions, but this rank has"),
                         usage_error);
  });
}
