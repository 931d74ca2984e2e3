// SPDX-License-Identifier: MIT
// within 12: cosine_embedding_loss: x and y must have the same shape [..., C], and targets, 1 or -1, the shape [...]
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn, 3>> x, tensor<std::int64_t, extents<dyn, 1>> target) {
  return cosine_embedding_loss(x, x, target);
}
