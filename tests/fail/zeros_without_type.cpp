// SPDX-License-Identifier: MIT
// within 12: weft: zeros: name the element type: zeros<float>(extents<2, 3>{})
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  auto y = zeros(extents<3>{});
}
