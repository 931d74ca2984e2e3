// SPDX-License-Identifier: MIT
// within 12: weft: loss: input and target must have the same shape: a target [N] beside [N, 1] would be repeated
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
auto f(tensor<float, extents<dyn, 1>> x, tensor<float, extents<dyn>> y) { return mse_loss(x, y); }
