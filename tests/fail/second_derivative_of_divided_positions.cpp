// SPDX-License-Identifier: MIT
// within 20: weft: attention: where ranks divide positions (axis cp), it has only a first derivative
#include <weft/weft.hpp>
#include <weft/parallel/context_parallel.hpp>
using namespace weft;

struct layer {
  linear<8, 8> project;
};
using plan = policy<strategy::mesh<cp<>>>;

void f(communicator& ranks, tensor<float, extents<2, 6, 2, 4>> x) {
  layer model;
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.cp = 2});
  const auto attended = [](auto h) { return sum(attention<causal>(h, h, h)); };
  eval(hvp(attended, x, x), run);
}
