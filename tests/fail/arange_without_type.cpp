// SPDX-License-Identifier: MIT
// within 10: arange: the element type is a template argument
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
auto y = arange(10);
