// SPDX-License-Identifier: MIT
// within 12: embedding: the padding index must be from 0 to V - 1
#include <weft/weft.hpp>
using namespace weft;

auto f(tensor<float, extents<5, 3>> table, tensor<std::int64_t, extents<dyn>> index) {
  return embedding<5>(table, index);
}
