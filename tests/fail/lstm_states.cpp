// SPDX-License-Identifier: MIT
// within 12: lstm, gru: the state of an lstm must be [2, batch, hidden], as stack<0>(h, c)
#include <weft/weft.hpp>
using namespace weft;
lstm<3, 5> layer;
tensor<float, extents<4, 2, 3>> x;
tensor<float, extents<2, 5>> h, c;
auto y = layer(x, h, c);
