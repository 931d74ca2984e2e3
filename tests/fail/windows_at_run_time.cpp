// SPDX-License-Identifier: MIT
// within 95: weft: flatten: dims are
// within 95: weft: squeeze: the dim is
// within 95: weft: flip: the dim is
// within 95: weft: select: the dim is
// within 95: weft: chunk: dim, parts
// within 95: weft: cumsum: the dim is
// within 95: weft: sort: the dim is
// within 95: weft: argsort: the dim is
// within 95: weft: topk: the dim is
// within 95: weft: gather: the dim is
// within 95: weft: index_select: the dim is
// within 95: weft: one_hot: the number of classes
// within 95: weft: conv2d: options are
// within 95: weft: conv_transpose2d: options are
// within 95: weft: max_pool2d: the window
// within 95: weft: avg_pool2d: the window
// within 95: weft: upsample_nearest: the factor
// within 95: weft: upsample_bilinear: the factor
// at most 95 lines
#include <weft/weft.hpp>
using namespace weft;
using images = tensor<float, extents<2, 3, 8, 8>>;
void f(images x, tensor<float, extents<5, 3, 2, 2>> w, tensor<std::int64_t, extents<2>> i) {
  flatten(x, 1);
  squeeze(x, 1);
  flip(x, 0);
  select(x, 0, 1);
  chunk(x, 2, 1);
  cumsum(x, 1);
  sort(x, 0);
  argsort(x, 0);
  topk(x, 2);
  gather(x, 1, i);
  index_select(x, 0, i);
  one_hot(i, 10);
  conv2d(x, w, 2);
  conv_transpose2d(x, w, 2);
  max_pool2d(x, 2);
  avg_pool2d(x, 2);
  upsample_nearest(x, 2);
  upsample_bilinear(x, 2);
}
