// SPDX-License-Identifier: MIT
// The code that docs/strategies.md shows for sharded layers.
#include <cstdio>

#include <weft/comm/threads.hpp>
#include <weft/parallel/redistribute.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../gpt2.hpp"
#include "../section.hpp"
using namespace weft;

// [gate]
template <index_t In, index_t Out>
struct gate {  // x W; each rank computes some of its columns
  parameter<extents<In, Out>, float, divided::along<1>> weight;
  auto operator()(expression auto x) const { return sigmoid(matmul(x, weight)); }
};
// [/gate]

// [by_hand]
/// x times 2; each rank computes its own columns.
auto doubled(const tensor<float, extents<5, 3>>& x, communicator& ranks, context& c) {
  auto rows = divide(x, 0, ranks);              // this rank's rows; sends nothing
  auto columns = redistribute(rows, 1, ranks);  // its columns: one all_to_all
  auto own = local_part(columns);               // an ordinary tensor, to compute with
  return gather(as_part(eval(own * 2.0f, c), 1, ranks), ranks);
}
// [/by_hand]

// [sent]
// A GPT-2 block with its derivative sends 8 activations of [8, 1024, 768] floats per additional rank.
using activation = variable<float, extents<8, 1024, 768>>;
using block = decltype(std::declval<const gpt2::block<768, 12>&>()(std::declval<activation>()));
static_assert(sent<block, policy<strategy::mesh<tp<>>>>(4) == 8 * (8 * 1024 * 768) * sizeof(float) * (4 - 1));
// [/sent]

struct net {
  gate<4, 6> hidden{make_parameter(extents<4, 6>{}, init::uniform(0.5))};
  linear<6, 1, divided::rows<>> out;
  auto operator()(expression auto x) const { return out(hidden(x)); }
};

int main() {
  using plan = policy<strategy::mesh<tp<>>>;
  section("gate");
  double losses[2];
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](communicator& all) {
      net model;
      sgd optimizer{.lr = 0.1};
      auto run = bind<plan>(model, optimizer, all);
      const auto x = full<float>(extents<3, 4>{}, 0.5f);
      const auto y = full<float>(extents<3, 1>{}, 1.0f);
      double loss = 0;
      for (int step = 0; step < 20; ++step)
        loss = run.step(1, [&](index_t) { return mse_loss(model(x), y); }).loss;
      if (all.rank() == 0) losses[ranks - 1] = loss;
    });
  std::printf("two ranks train as one: %s\n", std::abs(losses[0] - losses[1]) < 1e-5 ? "yes" : "no");
  section("by_hand");
  run_ranks(2, [&](communicator& all) {
    const auto x = generate<float>(extents<5, 3>{}, [](index_t i) { return i; });
    context own;
    const auto y = doubled(x, all, own).to_vector();
    if (all.rank() == 0) std::printf("the last element: %g\n", static_cast<double>(y[14]));
  });
}
