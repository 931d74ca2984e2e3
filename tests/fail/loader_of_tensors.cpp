// SPDX-License-Identifier: MIT
// within 12: weft: loader: a dataset must be a struct with `fields`, a tuple of the tensor types of a batch, index_t size() const, and
// at most 20 lines
#include <weft/train/loader.hpp>
#include <weft/weft.hpp>
using namespace weft;
void f(tensor<float, extents<100, 2>> x, tensor<float, extents<100>> y) {
  loader batches(std::tuple(x, y), {.batch = 4});
}
