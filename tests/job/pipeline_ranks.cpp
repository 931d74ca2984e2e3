// SPDX-License-Identifier: MIT
// Trains a small pipelined model with large messages, under every schedule that the number of ranks allows,
// and prints losses and norms bitwise. transports.sh compares the output between transports.
//
//   pipeline_ranks                  WEFT_RANKS=4 for threads; under launch; under mpirun
#include <cstdio>

#include <weft/comm/run_world.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

constexpr index_t rows = 75, width = 1024;  // messages of 300 KB

struct block {
  layer_normalization<width> norm;
  linear<width, 8> in;
  linear<8, width> out;
  auto operator()(expression auto x) const {
    return let(x, [&](auto x) { return x + dropout(out(gelu(in(norm(x)))), 0.1f); });
  }
};

/// A model whose head is tied to the table.
struct net {
  embedding_table<13, width> table;
  repeat<block> h;
  layer_normalization<width> last;
  auto operator()(expression auto tokens) const {
    return matmul(last(h(table(tokens))), transpose(table.weight));
  }
};

tensor<std::int32_t, extents<dyn>> batch(index_t number, index_t shift, const device& where) {
  std::vector<std::int32_t> v;
  for (index_t i = 0; i < rows; ++i)
    v.push_back(static_cast<std::int32_t>((number * 7 + i * (3 + shift)) % 13));
  tensor<std::int32_t, extents<dyn>> t(shape{1, {rows}}, where);
  t.copy_from(v);
  return t;
}

void train(communicator& ranks, const mesh_sizes& sizes, const char* schedule, bool deterministic) {
  using plan = policy<strategy::mesh<pp<>, dp>>;
  const device where(std::make_shared<cpu::cpu_backend>(1));
  net model;
  for (int i = 0; i < 2 * sizes.pp; ++i) model.h.blocks.emplace_back();
  to(model, where);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  parallel_options o = plan::strategy_type::options(check_mesh(sizes, ranks.size()));
  o.deterministic = deterministic;
  o.timeout = std::chrono::minutes(5);
  const auto named = [schedule](int p, int m) { return pipeline::schedule_named(schedule, p, m); };
  auto run = bind<plan>(model, optimizer, ranks, o, {.schedule = named});
  const index_t m = 2 * sizes.pp;
  for (int step = 0; step < 3; ++step) {
    const step_result r = run.step(m, [&](index_t j) {
      const index_t number = step * m * sizes.dp + run.micro_batch(j, m);
      return cross_entropy(model(batch(number, 0, where)), batch(number, 1, where));
    }, {.clip = 1});
    if (ranks.rank() == 0)
      std::printf("%s, %s, deterministic %d, step %d: %a %a\n", to_string(sizes).c_str(), schedule,
                  deterministic, step, r.loss, r.norm);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_world(argc, argv, [](communicator& ranks) {
    const int n = ranks.size();
    for (const bool deterministic : {true, false})
      for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "breadth-first:2"}) {
        train(ranks, {.pp = n}, schedule, deterministic);
        if (n == 4) train(ranks, {.pp = 2, .dp = 2}, schedule, deterministic);
      }
  });
}
