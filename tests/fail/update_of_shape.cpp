// SPDX-License-Identifier: MIT
// within 12: weft: update: the value does not broadcast to the shape of the target
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3, 2>> t) { update(t[0], zeros<float>(extents<3>{})); }
