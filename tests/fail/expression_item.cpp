// SPDX-License-Identifier: MIT
// within 10: item: nothing is computed yet: write eval(e).item()
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = sum(x).item(); }
