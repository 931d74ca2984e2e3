// SPDX-License-Identifier: MIT
// within 12: weft: dims are template arguments: sum(x, dims<0>)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> x) { sum(x, {0, 1}); }
