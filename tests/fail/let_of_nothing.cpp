// SPDX-License-Identifier: MIT
// within 10: let: the function must return an expression
// at most 30 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4, 4>> x) { auto y = let(x + 1, [](auto v) { (void)(v * v); }); }
