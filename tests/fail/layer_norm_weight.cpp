// SPDX-License-Identifier: MIT
// within 12: weft: layer_norm, rms_norm: for an operand [..., C], weight and bias must be [C]
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn, 2>> x, tensor<float, extents<1>> w, tensor<float, extents<2>> b) {
  return layer_norm(x, w, b);
}
