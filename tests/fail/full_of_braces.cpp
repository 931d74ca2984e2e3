// SPDX-License-Identifier: MIT
// within 12: weft: full: extents are a type: full<float>(extents<2, 3>{}, 2.5f)
#include <weft/weft.hpp>
using namespace weft;
void f(int n) { auto y = full<float>({n, 3}, 1); }
