// SPDX-License-Identifier: MIT
// within 12: weft: zeros: the element type must be float, double, weft::bfloat16
#include <weft/weft.hpp>
void f() { weft::zeros<unsigned long long>(weft::extents<2>{}); }
