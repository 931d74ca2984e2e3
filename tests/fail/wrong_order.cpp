// SPDX-License-Identifier: MIT
// within 12: matmul: the last extent of the left operand must equal the second-to-last
// within 12: extents<1, 5>
// at most 40 lines
#include <weft/weft.hpp>
using namespace weft;
struct net {
  linear<4, 8> hidden;
  linear<8, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
void f(const net& m, tensor<float, extents<5>> x) { auto y = eval(m(x)); }
