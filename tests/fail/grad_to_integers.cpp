// SPDX-License-Identifier: MIT
// within 12: grad: the argument and the result of the function must be floating
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<3>> x;
auto g = grad([](auto v) { return sum(cast<std::int64_t>(v)); }, x);
