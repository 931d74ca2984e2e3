// SPDX-License-Identifier: MIT
// within 12: expand: an extent must be a number of elements
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = expand<dyn, 3>(x); }
