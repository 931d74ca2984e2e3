// SPDX-License-Identifier: MIT
// within 12: operands must broadcast
// within 12: extents<32, 784>
// within 12: extents<128>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 784>> x, tensor<float, extents<128>> b) { auto y = x + b; }
