// SPDX-License-Identifier: MIT
// Trains a small transformer with context parallelism and large messages, and prints losses and norms
// bitwise. transports.sh compares the output between transports.
//
//   context_ranks                  WEFT_RANKS=4 for threads; under launch; under mpirun
#include <cstdio>

#include <weft/comm/run_world.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

constexpr index_t length = 301, width = 128, words = 13;  // messages of 80 to 150 KB

struct net {
  embedding_table<words, width> table;
  embedding_table<length, width> places;
  layer_normalization<width> first, last;
  causal_self_attention<width> attention = causal_self_attention<width>::create(width, 4);
  auto loss(expression auto tokens, expression auto labels, expression auto positions) const {
    return let(table(tokens) + places(positions), [&](auto x) {
      return cross_entropy(matmul(last(x + attention(first(x))), transpose(table.weight)), labels);
    });
  }
};

using tokens = tensor<std::int32_t, extents<dyn, dyn>>;
tokens batch(index_t number, index_t shift, const device& where) {
  std::vector<std::int32_t> v;
  for (index_t i = 0; i < length; ++i)
    v.push_back(static_cast<std::int32_t>((number * 7 + (i + shift) * (i + shift) % 31) % words));
  tokens t(shape{2, {1, length}}, where);
  t.copy_from(v);
  return t;
}

template <class Plan>
void train(communicator& ranks, const mesh_sizes& sizes) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model;
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  auto run = bind<Plan>(model, optimizer, ranks, sizes);
  const index_t copies = sizes.dp * sizes.fsdp, data = ranks.rank() / sizes.cp % copies;
  for (int step = 0; step < 3; ++step) {
    const step_result r = run.step(2, [&](index_t j) {
      const context_part own = run.part_of_context(length);
      const index_t number = (step * 2 + j) * copies + data;
      return model.loss(own.of(batch(number, 0, where)), own.of(batch(number, 1, where)),
                        own.positions());
    }, {.clip = 1});
    if (ranks.rank() == 0)
      std::printf("%s, step %d: %a %a\n", to_string(sizes).c_str(), step, r.loss, r.norm);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_world(argc, argv, [](communicator& ranks) {
    using plan = policy<strategy::mesh<dp, fsdp<2>, cp<>>>;
    const int n = ranks.size();
    train<plan>(ranks, {.cp = n});
    if (n < 4) return;
    train<plan>(ranks, {.dp = n / 2, .cp = 2});
    train<plan>(ranks, {.fsdp = n / 2, .cp = 2});
  });
}
