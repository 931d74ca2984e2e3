// SPDX-License-Identifier: MIT
// within 12: weft: grad: the first argument must be a function of the second: grad([](auto x) { return sum(x * x); }, x)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<3>> x) { auto g = grad(sum(x * x), x); }
