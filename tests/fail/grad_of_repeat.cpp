// SPDX-License-Identifier: MIT
// within 12: grad: a repeat, experts, a recurrent layer, batch norm, linear_cross_entropy or a list is evaluated as several programs
#include <weft/weft.hpp>
using namespace weft;
lstm<3, 5> layer;
variable<float, extents<4, 2, 3>> x;
auto g = grad([](auto v) { return sum(layer(v)); }, x);
