// SPDX-License-Identifier: MIT
#include <cblas.h>

#include "ops.hpp"

int main(int, char** values) {
  openblas_set_num_threads(ops::threads_of(values));
  const auto product = [](long n) {
    std::vector<float> a(static_cast<std::size_t>(n * n)), c(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = ops::element(static_cast<long>(i));
    return [n = static_cast<int>(n), a, c]() mutable {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, a.data(), n, 0,
                  c.data(), n);
    };
  };
  ops::serve({{"matmul 256", product(ops::matmul_small)}, {"matmul 1536", product(ops::matmul_large)}});
}
