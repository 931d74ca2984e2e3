// SPDX-License-Identifier: MIT
// within 10: nothing is computed yet: write std::cout << eval(e)
// at most 20 lines
#include <weft/weft.hpp>
#include <iostream>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x) { std::cout << x + 1 << 2; }
