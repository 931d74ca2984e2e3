// SPDX-License-Identifier: MIT
// within 10: dropout: dropout(x, rate)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = dropout(x); }
