// SPDX-License-Identifier: MIT
// within 12: weft: on_gradient: this tensor is not tracked and gets no gradient
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32>> x) {
  x.on_gradient([](const auto&) {});
}
