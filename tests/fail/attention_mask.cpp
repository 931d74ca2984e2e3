// SPDX-License-Identifier: MIT
// within 12: weft: attention: a mask must be [batch, heads, queries, keys], or broadcast to that
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<2, 5, 3, 4>> q;
tensor<bool, extents<2, 5>> mask;   // of keys in each batch element: [2, 1, 1, 5]
auto y = attention(q, q, q, mask);
