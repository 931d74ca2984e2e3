// SPDX-License-Identifier: MIT
// within 12: conv_transpose2d, conv_transpose1d: the bias must be [O]
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<dyn, 3, 8, 8>> x;
tensor<float, extents<3, 4, 3, 3>> w;
tensor<float, extents<3>> b;
auto y = conv_transpose2d(x, w, b);
