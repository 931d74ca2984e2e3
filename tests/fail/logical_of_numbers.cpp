// SPDX-License-Identifier: MIT
// within 12: logical ops take bools: write x != 0 for a number x
#include <weft/weft.hpp>
using namespace weft;
tensor<float, extents<dyn, 4>> x;
auto y = x & x;
