// SPDX-License-Identifier: MIT
// within 12: with same_padding, the stride must be 1
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<1, 2, 8>> x, tensor<float, extents<4, 2, 3>> weight) {
  return conv1d<conv_options{.stride = 2, .padding = same_padding}>(x, weight);
}
