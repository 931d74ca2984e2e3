// SPDX-License-Identifier: MIT
// within 12: weft: einsum: the equation is for another number of operands
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 4>> x, tensor<float, extents<4, 6>> y) { einsum<"ij,jk,kl->il">(x, y); }
