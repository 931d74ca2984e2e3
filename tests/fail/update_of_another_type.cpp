// SPDX-License-Identifier: MIT
// within 10: update: the value's element type differs from the tensor's: cast it
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<4>> x, tensor<double, extents<4>> y) { update(x, y + 1); }
