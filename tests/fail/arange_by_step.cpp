// SPDX-License-Identifier: MIT
// within 10: arange<T>(n) returns 0 to n - 1
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
auto y = arange<float>(0, 10, 2);
