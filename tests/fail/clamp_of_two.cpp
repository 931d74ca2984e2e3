// SPDX-License-Identifier: MIT
// within 10: clamp: clamp(x, low, high); one bound alone: clamp_min(x, low), clamp_max(x, high)
#include <weft/weft.hpp>
using namespace weft;

void f(tensor<float, extents<dyn, 4>> x) { auto y = clamp(x, 0.0f); }
