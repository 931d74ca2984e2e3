// SPDX-License-Identifier: MIT
// within 12: normal_like: the element type must be floating
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<std::int32_t, extents<4>> x) { return normal_like(x); }
