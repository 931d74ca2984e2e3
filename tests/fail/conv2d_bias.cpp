// SPDX-License-Identifier: MIT
// within 12: conv2d, conv1d: the bias must be [O]
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<dyn, 3, 8, 8>> x;
tensor<float, extents<4, 3, 3, 3>> w;
tensor<float, extents<1>> b;
auto y = conv2d(x, w, b);
