// SPDX-License-Identifier: MIT
// within 12: weft: cosine_embedding_loss: targets are 1 or -1, of a signed type
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn, 3>> x, tensor<bool, extents<dyn>> same) {
  return cosine_embedding_loss(x, x, same);
}
