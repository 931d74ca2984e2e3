// SPDX-License-Identifier: MIT
// within 12: weft: repeat: operator() of a block must be const: auto operator()(expression auto x) const
#include <weft/weft.hpp>
using namespace weft;
struct block {
  linear<3, 3> layer;
  auto operator()(expression auto x) { return layer(x); }
};
void f(tensor<float, extents<2, 3>> x, repeat<block>& blocks) { auto y = eval(blocks(x)); }
