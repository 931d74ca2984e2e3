// SPDX-License-Identifier: MIT
// within 12: cosine_similarity: both operands must have the same extent along the dim
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn, 3>> a, tensor<float, extents<dyn, 1>> b) { return cosine_similarity(a, b); }
