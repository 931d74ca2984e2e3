// SPDX-License-Identifier: MIT
// within 12: weft: from: extents come first: from(extents<3>{}, {1.0f, 2.0f, 3.0f})
#include <weft/weft.hpp>
using namespace weft;
void f() { auto y = from({1.0f, 2.0f, 3.0f}); }
