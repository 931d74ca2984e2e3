// SPDX-License-Identifier: MIT
// within 12: weft: einsum: the equation must have one letter for each dim of the operands
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 4, 5>> x, tensor<float, extents<5, 6>> y) { einsum<"ij,jk->ik">(x, y); }
