// SPDX-License-Identifier: MIT
// within 12: lstm, gru: one state: of an lstm [2, batch, hidden], stack<0>(h, c)
#include <weft/weft.hpp>
using namespace weft;
lstm<3, 5> layer;
tensor<float, extents<4, 2, 3>> x;
tensor<float, extents<2, 5>> h, c;
auto y = layer(x, h, c);
