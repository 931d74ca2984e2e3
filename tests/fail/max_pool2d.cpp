// SPDX-License-Identifier: MIT
// within 12: pooling: the operand must have two to four dims
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 3, 8, 8>> x) { auto y = max_pool2d<2, pool_options{.padding = 2}>(x); }
