// SPDX-License-Identifier: MIT
// within 10: linear_cross_entropy: labels must have the shape of x without its last dim
// within 10: extents<3, 2>
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 3, 4>> x, const embedding_table<7, 4>& words,
       tensor<std::int64_t, extents<3, 2>> labels) {
  auto loss = linear_cross_entropy(x, words.weight, labels);
  (void)loss;
}
