// SPDX-License-Identifier: MIT
// within 12: weft: loss: input and target must have the same shape: a target [N] would be broadcast against an input [N, 1]
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
auto f(tensor<float, extents<dyn, 1>> x, tensor<float, extents<dyn>> y) { return mse_loss(x, y); }
