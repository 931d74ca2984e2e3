// SPDX-License-Identifier: MIT
// within 10: permute: dims are template arguments
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { permute(x, {1, 0}); }
