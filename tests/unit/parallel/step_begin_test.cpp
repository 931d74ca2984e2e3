// SPDX-License-Identifier: MIT
// Ranks that wait for each other within a micro-batch begin a step together, or report at once how many
// micro-batches each has.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_pipeline.hpp>
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

/// Binds on all ranks but the last, which comes to none of the messages of bind.
template <class Model, class... Axes>
void waits_only_so_long(const mesh_sizes& n) {
  using plan = policy<strategy::mesh<Axes...>>;
  CAPTURE(to_string(n));
  std::atomic<int> failed = 0;
  const int absent = static_cast<int>(n.ranks()) - 1;
  const auto train = [&](communicator& ranks) {
    if (ranks.rank() == absent) {  // stays, so that the others do not learn that it is gone
      while (failed < absent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    Model model = Model::create();
    sgd optimizer;
    auto o = plan::strategy_type::options(n);
    o.timeout = std::chrono::milliseconds(100);
    CHECK_THROWS_AS(bind<plan>(model, optimizer, ranks, o), comm_error);
    ++failed;
  };
  run_ranks(static_cast<int>(n.ranks()), train);
}

}  // namespace

TEST_CASE("ranks along tp, cp and ep with other numbers of micro-batches name both") {
  names_counts<layers, dp, tp<>>({.tp = 2});
  names_counts<attention_layer, dp, cp<ring>>({.cp = 2});
  names_counts<attention_layer, dp, cp<ulysses>>({.cp = 2});
  names_counts<experts, dp, fsdp<3>, ep>({.ep = 2});
}

TEST_CASE("bind waits for a missing rank only as long as the options say, whatever groups it forms") {
  waits_only_so_long<layers, dp>({.dp = 2});
  waits_only_so_long<layers, dp, tp<>>({.dp = 2, .tp = 2});
  waits_only_so_long<layers, fsdp<>, tp<>>({.fsdp = 2, .tp = 2});
  waits_only_so_long<attention_layer, dp, cp<>>({.dp = 2, .cp = 2});
  waits_only_so_long<attention_layer, cp<>>({.cp = 2});
  waits_only_so_long<experts, fsdp<>, ep>({.fsdp = 2, .ep = 2});
  waits_only_so_long<experts, ep>({.ep = 2});
  waits_only_so_long<layers, pp<>, tp<>>({.pp = 2, .tp = 2});
  waits_only_so_long<attention_layer, pp<>, cp<>>({.pp = 2, .cp = 2});
}
