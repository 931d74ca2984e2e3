// SPDX-License-Identifier: MIT
// within 12: weft: this op does not support bool: use logical_not, logical_and, less or equal, or cast to a number first
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<bool, extents<3>> a, tensor<bool, extents<3>> b) { auto y = a - b; }
