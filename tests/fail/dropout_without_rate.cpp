// SPDX-License-Identifier: MIT
// within 10: dropout: the rate is missing: dropout(x, 0.1f)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { auto y = dropout(x); }
