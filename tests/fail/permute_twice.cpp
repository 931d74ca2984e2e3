// SPDX-License-Identifier: MIT
// within 10: permute: each dim of the operand must be named once
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = permute<0, 0>(x); }
