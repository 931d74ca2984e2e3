// SPDX-License-Identifier: MIT
// within 12: grad: the function must return an expression
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<3>> x;
auto g = grad([](auto) { return 1.0f; }, x);
