// SPDX-License-Identifier: MIT
// within 12: weft: rand: the elements are of a floating type; whole numbers from 0 to n - 1 are
#include <weft/weft.hpp>
using namespace weft;
auto y = rand<std::int32_t>(extents<4>{});
