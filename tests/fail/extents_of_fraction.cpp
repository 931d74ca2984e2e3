// SPDX-License-Identifier: MIT
// within 12: extents: numbers of elements are integers
#include <weft/weft.hpp>
using namespace weft;
auto x = zeros<float>(extents<dyn>{2.7});
