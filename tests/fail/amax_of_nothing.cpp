// SPDX-License-Identifier: MIT
// within 12: weft: amax, amin: a dim without elements has no largest or smallest
// within 12: extents<0, 10>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<0, 10>> x) { amax(x, dims<0>); }
