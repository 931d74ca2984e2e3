// SPDX-License-Identifier: MIT
// within 10: clamp: an argument is missing: clamp(x, low, high); for one bound, clamp_min(x, low) or clamp_max(x, high)
#include <weft/weft.hpp>
using namespace weft;

void f(tensor<float, extents<dyn, 4>> x) { auto y = clamp(x, 0.0f); }
