// SPDX-License-Identifier: MIT
// within 10: backward is a function of the tape
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { mean(x).backward(); }
