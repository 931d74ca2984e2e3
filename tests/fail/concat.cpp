// SPDX-License-Identifier: MIT
// within 12: concat: the operands must have the same order
// within 12: extents<32, 784>
// within 12: extents<31, 10>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 784>> x, tensor<float, extents<31, 10>> y) { auto z = concat<1>(x, y); }
