// SPDX-License-Identifier: MIT
// within 10: stack: the dim is a template argument: stack<0>(a, b)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = stack(x, x, 0); }
