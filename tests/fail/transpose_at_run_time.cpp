// SPDX-License-Identifier: MIT
// within 10: transpose: dims are template arguments: transpose<0, 1>(x)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = transpose(x, 0, 1); }
