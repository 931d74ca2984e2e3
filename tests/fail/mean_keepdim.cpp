// SPDX-License-Identifier: MIT
// within 12: weft: mean: to keep the dims write mean(x, dims<1>, keepdim), else mean(x, dims<1>)
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  eval(mean(x, dims<1>, true));
}
