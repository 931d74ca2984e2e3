// SPDX-License-Identifier: MIT
// within 12: weft: attention: a template argument says whether queries see later keys: attention<causal>(q, k, v), attention<!causal>(q, k, v)
#include <weft/weft.hpp>
using namespace weft;
void f([[maybe_unused]] tensor<float, extents<1, 4, 2, 2>> x) {
  eval(attention(x, x, x));
}
