// SPDX-License-Identifier: MIT
// within 12: conv2d: x must be [B, C, H, W] and the weight [O, C / groups, height, width]
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<dyn, 3, 8, 8>> x;
tensor<float, extents<4, 2, 3, 3>> w;
auto y = conv2d(x, w);
