// SPDX-License-Identifier: MIT
#include <weft/weft.hpp>

#include "ops.hpp"

using namespace weft;

int main(int, char** values) {
  const device where(std::make_shared<cpu::cpu_backend>(ops::threads_of(values)));
  context c(where);
  using matrix = tensor<float, extents<dyn, dyn>>;
  const auto filled = [&](index_t rows, index_t columns) {
    return matrix(generate<float>(extents<dyn, dyn>{rows, columns}, ops::element, where));
  };
  const matrix a = filled(ops::matmul_small, ops::matmul_small),
               b = filled(ops::matmul_large, ops::matmul_large);
  const matrix x = filled(1, ops::chain_size), y = filled(1, ops::chain_size),
               r = filled(ops::rows, ops::columns);
  ops::serve({{"matmul 256", [&] { eval(matmul(a, a), c); }},
              {"matmul 1536", [&] { eval(matmul(b, b), c); }},
              {"chain", [&] { eval(relu(x * y + x), c); }},
              {"softmax", [&] { eval(softmax(r), c); }}});
}
