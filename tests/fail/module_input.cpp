// SPDX-License-Identifier: MIT
// within 20: matmul: the last extent of the left operand must equal the second-to-last
// within 20: extents<32, 100>
#include <weft/weft.hpp>
using namespace weft;
struct mlp {
  linear<784, 128> hidden;
  linear<128, 10> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
void f(tensor<float, extents<32, 100>> x, const mlp& m) { auto y = m(x); }
