// SPDX-License-Identifier: MIT
// within 10: zeros_like(x) has the type of x
// at most 50 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = zeros<float>(x.extents()); }
