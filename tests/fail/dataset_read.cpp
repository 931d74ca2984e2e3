// SPDX-License-Identifier: MIT
// within 12: loader: the dataset needs void read(index_t i, T* to...) const
// at most 20 lines
#include <weft/train/loader.hpp>
#include <weft/weft.hpp>
using namespace weft;
struct squares {
  using fields = std::tuple<tensor<float, extents<dyn, 1>>, tensor<float, extents<dyn, 1>>>;
  index_t size() const { return 100; }
  void read(index_t i, float* x) const { *x = static_cast<float>(i); }
};
void f() { loader batches(squares{}, {.batch = 4}); }
