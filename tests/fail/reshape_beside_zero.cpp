// SPDX-License-Identifier: MIT
// within 12: reshape: with an extent of 0, the one left open cannot be inferred: give it
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<0, 7>> x) { auto y = reshape<0, dyn>(x); }
