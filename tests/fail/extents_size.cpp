// SPDX-License-Identifier: MIT
// within 12: the number of elements of these extents does not fit into 64 bits
#include <weft/weft.hpp>
using namespace weft;
void f() { auto x = extents<index_t{1} << 40, index_t{1} << 40>{}; }
