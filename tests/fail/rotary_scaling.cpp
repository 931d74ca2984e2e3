// SPDX-License-Identifier: MIT
// within 12: weft: rotary: base, factor and original positions must be positive, and low_freq_factor must be less than
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<2, 9, 3, 8>> x) {
  rotary<100, rope_scaling{.factor = 8, .low_freq_factor = 5}>(x);
}
