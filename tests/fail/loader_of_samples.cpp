// SPDX-License-Identifier: MIT
// within 12: weft: loader: a dataset must be a struct with `fields`, a tuple of the tensor types of a batch, index_t size() const, and
// at most 20 lines
#include <weft/train/loader.hpp>
#include <weft/weft.hpp>
using namespace weft;
struct squares {
  index_t size() const { return 100; }
  std::pair<float, float> operator[](index_t i) const {
    const auto x = static_cast<float>(i);
    return {x, x * x};
  }
};
void f() {
  for (auto [x, y] : loader(squares{}, {.batch = 4, .shuffle = true})) {}
}
