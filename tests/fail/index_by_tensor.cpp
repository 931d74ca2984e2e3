// SPDX-License-Identifier: MIT
// within 10: for the rows at indices, write index_select<0>(x, indices)
// at most 20 lines
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<dyn, 4>> x, tensor<std::int64_t, extents<3>> i) { auto y = x[i]; }
