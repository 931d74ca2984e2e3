// SPDX-License-Identifier: MIT
// within 12: weft: einsum: a letter must have the same extent in both operands
// within 12: extents<3, 4>
// within 12: extents<5, 6>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 4>> x, tensor<float, extents<5, 6>> y) { auto z = einsum<"ij,jk->ik">(x, y); }
