// SPDX-License-Identifier: MIT
// within 12: weft: for the largest element, write amax(x) or amax(x, dims<1>); for the larger of two, maximum(a, b)
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  eval(max(x));
}
