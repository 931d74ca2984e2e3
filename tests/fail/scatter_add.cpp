// SPDX-License-Identifier: MIT
// within 12: weft: scatter_add: indices and source must have the same extents
// within 12: extents<3>
// within 12: extents<2>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3>> x, tensor<std::int64_t, extents<3>> at, tensor<float, extents<2>> s) {
  scatter_add<0>(x, at, s);
}
