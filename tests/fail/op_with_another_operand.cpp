// SPDX-License-Identifier: MIT
// within 10: apply: wrong number of operands
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
struct twice : op::elementwise<1> {
  static constexpr auto name = "twice";
  static constexpr auto value(auto x) { return 2 * x; }
};
void f(tensor<float, extents<4>> x) { auto y = eval(apply<twice>(x, x)); }
