// SPDX-License-Identifier: MIT
// within 12: weft: stack: the dim is a template argument: stack<0>(list)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(const std::vector<variable<float, extents<3>>>& list) { stack(list); }
