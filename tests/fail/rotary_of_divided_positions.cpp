// SPDX-License-Identifier: MIT
// within 20: weft: rotary: ranks divide positions (axis cp), but these count from 0 on every rank
#include <weft/weft.hpp>
#include <weft/parallel/context_parallel.hpp>
using namespace weft;

struct rotary_attention {
  linear<8, 8> project;
  auto operator()(expression auto x) const {
    const auto q = unsqueeze<2>(project(x));
    return let(rotary(q), [&](auto turned) { return attention<causal>(turned, turned, q); });
  }
};
using plan = policy<strategy::mesh<cp<>>>;

void f(communicator& ranks, tensor<float, extents<2, 6, 8>> x) {
  rotary_attention model;
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.cp = 2});
  run.step(1, [&](index_t) { return mean(model(x)); });
}
