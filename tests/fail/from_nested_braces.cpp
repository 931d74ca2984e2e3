// SPDX-License-Identifier: MIT
// within 12: weft: from: give the elements as one list, row by row: from(extents<2, 2>{}, {1.0f, 2.0f, 3.0f, 4.0f})
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = from(extents<2, 2>{}, {{1.0f, 2.0f}, {3.0f, 4.0f}}); }
