// SPDX-License-Identifier: MIT
// within 20: weft: pipeline: a let shares a value between the code before a repeat and the code after
#include <weft/comm/self.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/weft.hpp>
using namespace weft;

struct net {
  linear<4, 4> start;
  repeat<linear<4, 4>> h;
  auto operator()(expression auto x) const {
    return let(relu(start(x)),
               [this, x](auto y) { return h(y) + grad([&](auto a) { return sum(a * y); }, x); });
  }
};

void train(net& model, sgd& optimizer, communicator& ranks, const tensor<float, extents<3, 4>>& x) {
  auto run = bind<policy<strategy::mesh<pp<>>>>(model, optimizer, ranks, mesh_sizes{.pp = 2});
  run.step(2, [&](index_t) { return sum(model(x)); });
}
