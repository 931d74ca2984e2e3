// SPDX-License-Identifier: MIT
// within 12: weft: batch_norm: the operand and the layer have different numbers of channels
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 4, 6>> x) { batch_normalization<3>()(x); }
