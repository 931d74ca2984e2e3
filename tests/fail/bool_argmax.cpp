// SPDX-License-Identifier: MIT
// within 12: weft: this op does not support bool
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<bool, extents<3>> a) { auto y = argmax<0>(a); }
