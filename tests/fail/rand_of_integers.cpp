// SPDX-License-Identifier: MIT
// within 12: weft: rand: the element type must be floating; for integers from 0 to n - 1, write
#include <weft/weft.hpp>
using namespace weft;
auto y = rand<std::int32_t>(extents<4>{});
