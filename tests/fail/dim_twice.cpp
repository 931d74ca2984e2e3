// SPDX-License-Identifier: MIT
// within 12: weft: reduction: a dim is given twice
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> x) { sum(x, dims<0, -2>); }
