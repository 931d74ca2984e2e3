// SPDX-License-Identifier: MIT
// within 90: weft: dims are template arguments: variance(x, dims<0>)
// within 90: weft: dims are template arguments: stddev(x, dims<0>)
// within 90: weft: vector_norm is the 2-norm, and dims are template arguments
// within 90: weft: the dim is a template argument: normalize<0>(x)
// within 90: weft: the dim is a template argument: cosine_similarity<1>(a, b)
// within 90: weft: cumprod: the dim is a template argument: cumprod<1>(x)
// within 90: weft: expand: extents are template arguments: expand<2, 3>(x)
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<32, 10>> x) {
  variance(x, 1);
  stddev(x, 0, true);
  vector_norm(x, 2);
  normalize(x, 1);
  cosine_similarity(x, x, 1);
  cumprod(x, 1);
  expand(x, 3, 32, 10);
}
