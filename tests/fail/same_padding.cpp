// SPDX-License-Identifier: MIT
// within 12: same_padding needs windows that have a middle: static, odd sizes
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<1, 2, 8, 8>> x, tensor<float, extents<4, 2, 3, 2>> weight) {
  return conv2d<conv_options{.padding = same_padding}>(x, weight);
}
