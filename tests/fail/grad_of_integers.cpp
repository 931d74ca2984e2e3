// SPDX-License-Identifier: MIT
// within 12: grad: the argument and the result of the function must be floating
#include <weft/weft.hpp>
using namespace weft;
tensor<std::int64_t, extents<3>> x;
auto g = grad([](auto v) { return sum(cast<float>(v) * 0.5f); }, x);
