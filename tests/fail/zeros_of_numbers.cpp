// SPDX-License-Identifier: MIT
// within 10: zeros: extents are a type: zeros<float>(extents<2, 3>{}), zeros<float>(extents<dyn, 3>{n})
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = zeros<float>(2, 3); }
