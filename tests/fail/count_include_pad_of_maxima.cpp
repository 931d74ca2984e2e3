// SPDX-License-Identifier: MIT
// within 12: max_pool2d: count_include_pad is an option of avg_pool2d
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<1, 8, 8>> x) {
  return max_pool2d<2, pool_options{.padding = 1, .count_include_pad = false}>(x);
}
