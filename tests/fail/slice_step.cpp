// SPDX-License-Identifier: MIT
// within 12: weft: slice: the step is a template argument: slice<0, 2>(x, start, stop)
#include <weft/weft.hpp>
using namespace weft;
auto f(tensor<float, extents<dyn, 10>> x, index_t n) { return eval(slice<0>(x, 0, n, 2)); }
