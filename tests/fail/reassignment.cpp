// SPDX-License-Identifier: MIT
// within 12: weft: a variable cannot be assigned another expression, whose type differs: write auto h2 = relu(h)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
struct net {
  linear<4, 4> first;
  auto operator()(expression auto x) const {
    auto h = first(x);
    h = relu(h);
    return h;
  }
};
auto f(const net& n, tensor<float, extents<2, 4>> x) { return n(x); }
