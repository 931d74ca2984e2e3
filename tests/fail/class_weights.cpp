// SPDX-License-Identifier: MIT
// within 14: weft: cross_entropy, nll_loss: there must be as many weights as classes
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<dyn, 3>> x, tensor<int, extents<dyn>> labels, tensor<float, extents<2>> w) {
  return cross_entropy(x, labels, w);
}
