// SPDX-License-Identifier: MIT
// within 12: weft: einsum: an equation has letters for each operand, a comma between two operands, and ->
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 4, 5>> x) { einsum<"...ij->...ji">(x); }
