// SPDX-License-Identifier: MIT
// within 10: parts of a tensor are chunk<Dim, Parts, I>(x)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = split(x, 2); }
