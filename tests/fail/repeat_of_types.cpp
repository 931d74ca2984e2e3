// SPDX-License-Identifier: MIT
// within 12: weft: repeat: a block must keep the shape and dtype of its operand
#include <weft/weft.hpp>
using namespace weft;
struct block {
  auto operator()(expression auto x) const { return cast<double>(x); }
};
void f(tensor<float, extents<2, 3>> x, repeat<block>& blocks) { auto y = eval(blocks(x)); }
