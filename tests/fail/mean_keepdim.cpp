// SPDX-License-Identifier: MIT
// within 12: weft: a reduction keeps its dims if the last argument is `keepdim`, not if it is true: mean(x, dims<1>, keepdim)
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  eval(mean(x, dims<1>, true));
}
