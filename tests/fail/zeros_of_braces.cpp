// SPDX-License-Identifier: MIT
// within 12: weft: zeros: extents are a type: zeros<float>(extents<2, 3>{}), zeros<float>(extents<dyn, 3>{n})
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = zeros<float>({2, 3}); }
