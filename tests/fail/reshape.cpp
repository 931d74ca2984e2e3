// SPDX-License-Identifier: MIT
// within 12: reshape: the shapes must have the same number of elements
// within 12: extents<32, 784>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 784>> x) { auto y = reshape<32, 783>(x); }
