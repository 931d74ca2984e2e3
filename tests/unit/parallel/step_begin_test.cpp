// SPDX-License-Identifier: MIT
// Ranks that wait for each other within a micro-batch begin a step together, or report at once how many
// micro-batches each has.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../throws_with.hpp"

using namespace weft;

namespace {

constexpr index_t C = 4, length = 4;

struct layers {
  linear<C, 6, divided::columns<>> in;
  linear<6, C, divided::rows<>> out;
  static layers create() { return {}; }
  auto operator()(expression auto x) const { return out(relu(in(x))); }
};
struct attention_layer {
  causal_self_attention<C> attend;
  static attention_layer create() {
    attention_layer made;
    made.attend.heads = 2;
    return made;
  }
  auto operator()(expression auto x) const { return attend(x); }
};
struct experts {
  mixture_of_experts<C> moe;
  static experts create() {
    return {decltype(moe)::create(C, 2, {.per_row = 1}, [] { return feed_forward<C>::create(C, 6); })};
  }
  auto operator()(expression auto x) const { return moe(x); }
};

/// Two steps of two micro-batches; the last rank begins a third step, of three.
template <class Model, class... Axes>
void names_counts(const mesh_sizes& n) {
  using plan = policy<strategy::mesh<Axes...>>;
  CAPTURE(to_string(n));
  std::vector<int> steps(static_cast<std::size_t>(n.ranks()));
  const auto train = [&](communicator& ranks) {
    Model model = Model::create();
    initialize(model, 3);
    sgd optimizer{.lr = 0.1};
    auto o = plan::strategy_type::options(n);
    o.timeout = std::chrono::minutes(1);
    auto run = bind<plan>(model, optimizer, ranks, o);
    const auto loss = [&](index_t j) {
      index_t own = length;
      if constexpr (divides_context<plan>) own = run.part_of_context(length).count();
      const auto seed = static_cast<std::uint64_t>(run.micro_batch(j, 2));
      return mean(square(model(randn<float>(extents<2, dyn, C>{own}, {.seed = seed}))));
    };
    int& done = steps[static_cast<std::size_t>(ranks.rank())];
    for (const index_t more : {0, 0, 1}) {
      run.step(ranks.rank() + 1 == ranks.size() ? 2 + more : 2, loss);
      ++done;
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  CHECK(test::throws_with<comm_error>([&] { run_ranks(static_cast<int>(n.ranks()), train); },
                                      {"a step of 2 micro-batches", "a step of 3 micro-batches"}));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
  for (const int done : steps) CHECK(done == 2);
}

}  // namespace

TEST_CASE("ranks along tp, cp and ep with other numbers of micro-batches name both") {
  names_counts<layers, dp, tp<>>({.tp = 2});
  names_counts<attention_layer, dp, cp<ring>>({.cp = 2});
  names_counts<attention_layer, dp, cp<ulysses>>({.cp = 2});
  names_counts<experts, dp, fsdp<3>, ep>({.ep = 2});
}
