// SPDX-License-Identifier: MIT
// within 12: weft: update: a repeat, experts, a recurrent layer, batch norm, linear_cross_entropy or a list is several programs
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 3>> x, repeat<linear<3, 3>> blocks) { update(x, blocks(x)); }
