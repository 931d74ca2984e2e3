// SPDX-License-Identifier: MIT
// within 20: weft: attention: a mask is not supported where ranks divide positions (axis cp)
#include <weft/weft.hpp>
#include <weft/parallel/context_parallel.hpp>
using namespace weft;

struct layer {
  linear<8, 8> project;
};
using plan = policy<strategy::mesh<cp<>>>;

void f(communicator& ranks, tensor<float, extents<2, 6, 2, 4>> x, tensor<bool, extents<6, 6>> mask) {
  layer model;
  sgd optimizer;
  auto run = bind<plan>(model, optimizer, ranks, {.cp = 2});
  eval(attention(x, x, x, mask), run);
}
