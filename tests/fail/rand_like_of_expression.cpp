// SPDX-License-Identifier: MIT
// within 8: weft: rand_like creates a tensor and takes one: rand_like(eval(x)); in an expression, uniform_like(x)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn>> x) { rand_like(x * 2.0f); }
