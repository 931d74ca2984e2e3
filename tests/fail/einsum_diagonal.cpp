// SPDX-License-Identifier: MIT
// within 12: weft: einsum: a letter occurs twice in an operand or in the result
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4, 4>> x) { einsum<"ii->i">(x); }
