// SPDX-License-Identifier: MIT
// within 10: reshape: extents are template arguments
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { reshape(x, {2, 2}); }
