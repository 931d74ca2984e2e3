// SPDX-License-Identifier: MIT
// within 12: weft: update: the target must be a tensor, or a view of one in which no element occurs twice
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3>> t) { update(expand<2, 3>(t), zeros<float>(extents<2, 3>{})); }
