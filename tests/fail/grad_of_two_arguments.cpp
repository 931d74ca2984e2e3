// SPDX-License-Identifier: MIT
// within 12: weft: grad: one argument at a time: grad([&](auto x) { return f(x, y); }, x)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3>> x, tensor<float, extents<3>> y) {
  auto g = grad([](auto a, auto b) { return sum(a * b); }, x, y);
}
