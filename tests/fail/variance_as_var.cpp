// SPDX-License-Identifier: MIT
// within 10: the variance is variance(x)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = var(x, dims<0>); }
