// SPDX-License-Identifier: MIT
// within 12: weft: from: give as many elements as the extents have, in row-major order
// within 12: extents<2, 2>, 3
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = from(extents<2, 2>{}, {1.0f, 2.0f, 3.0f}); }
