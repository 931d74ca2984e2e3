// SPDX-License-Identifier: MIT
// within 12: weft: bind: every rank of the axis tp sends the same rows to experts
#include <weft/weft.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/parallel/tensor_parallel.hpp>
using namespace weft;
using plan = policy<strategy::mesh<ep, tp<activations::by_positions>>>;

void f(communicator& ranks) {
  linear<3, 4> model;
  sgd optimizer;
  bind<plan>(model, optimizer, ranks, {.ep = 2, .tp = 2});
}
