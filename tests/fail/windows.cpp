// SPDX-License-Identifier: MIT
// within 12: windows: the operand must have two to four dims, and its last two must be at least as large as a window
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 3, 2>> x) { auto y = windows<3>(x); }
