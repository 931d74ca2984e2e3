// SPDX-License-Identifier: MIT
// Chapter 7 of the tutorial, docs/tutorial/ranks.md: one model on many ranks.
#include <cstdio>
#include <iostream>
#include <mutex>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

struct mlp {
  linear<16, 32> hidden;
  linear<32, 4> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

// [train]
/// Trains on this rank together with the others; returns the parameters.
template <class Plan>
std::vector<float> train(communicator& ranks,
                         parallel_options options = Plan::strategy_type::options()) {
  const device where(std::make_shared<cpu::cpu_backend>(1));   // one thread per rank
  mlp model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<>(model, optimizer, ranks, options);
  for (std::uint64_t step = 0; step < 20; ++step) {
    // The global batch has 8 rows; each rank takes its part.
    const auto all = randn<float>(extents<8, 16>{}, {.seed = step}, where);
    const index_t part = 8 / ranks.size();
    const auto x = eval(slice<0>(all, ranks.rank() * part, (ranks.rank() + 1) * part), run);
    tape steps(run);
    steps.backward(steps.eval(mean(square(model(x) - 1.0f))));
    run.step({.clip = 1.0});
  }
  std::vector<float> all;
  for (const auto& [name, p] : run.full())                     // gathers whole parameters; collective
    for (float element : flat_view<float>(p).to_vector()) all.push_back(element);
  return all;
}
// [/train]

int main() {
  section("collectives");
  // [collectives]
  run_ranks(3, [](communicator& ranks) {                        // three threads, each a rank
    std::vector<float> values{static_cast<float>(ranks.rank()), 1};
    ranks.all_reduce(values).wait();
    if (ranks.rank() == 0) std::cout << values[0] << ' ' << values[1] << '\n';
  });
  // [/collectives]

  section("strategies");
  // [strategies]
  using alone = policy<strategy::single>;
  using copies = policy<strategy::data_parallel>;               // the one line that changes
  using shards = policy<strategy::fully_sharded<3>>;

  std::vector<float> one, two, three;
  run_ranks(1, [&](communicator& ranks) { one = train<alone>(ranks); });
  run_ranks(2, [&](communicator& ranks) {
    auto result = train<copies>(ranks);
    if (ranks.rank() == 0) two = result;
  });
  run_ranks(4, [&](communicator& ranks) {
    auto result = train<shards>(ranks);
    if (ranks.rank() == 0) three = result;
  });
  float most = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    most = std::max({most, std::abs(one[i] - two[i]), std::abs(one[i] - three[i])});
  std::cout << one.size() << " parameters, "
            << (most < 1e-4f ? "equal up to rounding" : "different") << '\n';
  // [/strategies]

  section("deterministic");
  // [deterministic]
  const auto bits = [](int ranks_in_all, sharding divide) {
    std::vector<float> result;
    run_ranks(ranks_in_all, [&](communicator& ranks) {
      auto mine = train<alone>(ranks, {.divide = divide, .deterministic = true});
      if (ranks.rank() == 0) result = mine;
    });
    return result;
  };
  std::cout << std::boolalpha << (bits(2, sharding::none) == bits(2, sharding::parameters)) << '\n';
  // [/deterministic]

  section("mesh");
  // [mesh]
  using plan = policy<strategy::mesh<dp, fsdp<3>>>;             // axis kinds are types, sizes are values
  run_ranks(4, [](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    mlp model;
    to(model, where);
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    auto run = bind<plan>(model, optimizer, ranks, {.dp = 2, .fsdp = 2});
    const auto batch = [&](index_t j) {                         // micro-batch j of this rank
      const auto number = static_cast<std::uint64_t>(run.micro_batch(j, 3));
      return randn<float>(extents<2, 16>{}, {.seed = number}, where);
    };
    step_result r;
    for (int step = 0; step < 20; ++step)
      r = run.step(3, [&](index_t j) { return mean(square(model(batch(j)) - 1.0f)); }, {.clip = 1.0});
    const rank_mesh mesh(ranks, run.groups().sizes());          // a collective call
    if (ranks.rank() == 3) std::cout << mesh.to_string() << "loss " << r.loss << '\n';
  });
  // [/mesh]

  section("errors");
  // [errors]
  try {
    run_ranks(2, [](communicator& ranks) {
      std::vector<float> values(ranks.rank() == 0 ? 3 : 4);     // ranks that do not agree
      ranks.all_reduce(values).wait();
    });
  } catch (const comm_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/errors]
}
