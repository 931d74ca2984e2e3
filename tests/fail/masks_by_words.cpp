// SPDX-License-Identifier: MIT
// within 12: for masks, a & b, a | b, !a
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<dyn, 4>> x;
auto y = x > 0 && x < 1;
