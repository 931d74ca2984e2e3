// SPDX-License-Identifier: MIT
// within 12: extents: give a number for each dyn, extents<dyn, 3>{n}
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = zeros<float>(extents<dyn, 3>{}); }
