// SPDX-License-Identifier: MIT
// within 10: a dim is out of range for this operand
// within 10: extents<-1, 4>
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = sum(x, dims<2>); }
