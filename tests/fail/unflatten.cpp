// SPDX-License-Identifier: MIT
// within 12: unflatten: the number of parts must be positive
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<9>> x) { auto y = unflatten<0, 0>(x); }
