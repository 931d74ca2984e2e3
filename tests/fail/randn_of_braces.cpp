// SPDX-License-Identifier: MIT
// within 12: weft: randn: extents are a type: randn<float>(extents<2, 3>{}), randn<float>(extents<dyn, 3>{n})
#include <weft/weft.hpp>
using namespace weft;
void f(int n) { auto y = randn<float>({n, 3}, {.seed = 1}); }
