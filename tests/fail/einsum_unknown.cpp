// SPDX-License-Identifier: MIT
// within 12: weft: einsum: a letter of the result occurs in no operand
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 4>> x) { einsum<"ij->ik">(x); }
