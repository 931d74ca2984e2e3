// SPDX-License-Identifier: MIT
// within 20: weft: recurrence: ranks divide positions (axis cp), but a recurrence would see only those of its own rank
#include <weft/weft.hpp>
#include <weft/nn/recurrent.hpp>
#include <weft/parallel/context_parallel.hpp>
using namespace weft;
using plan = policy<strategy::mesh<cp<>>>;

void f(communicator& ranks, tensor<float, extents<6, 2, 8>> x) {
  gru<8, 8> model;
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.cp = 2});
  run.step(1, [&](index_t) { return mean(model(x)); });
}
