// SPDX-License-Identifier: MIT
#include <oneapi/dnnl/dnnl.h>

#include "ops.hpp"

int main(int, char** values) {
  setenv("OMP_NUM_THREADS", values[1], 0);
  const auto product = [](long n) {
    std::vector<float> a(static_cast<std::size_t>(n * n)), c(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = ops::element(static_cast<long>(i));
    return
        [n, a, c]() mutable { dnnl_sgemm('N', 'N', n, n, n, 1, a.data(), n, a.data(), n, 0, c.data(), n); };
  };
  ops::serve({{"matmul 256", product(ops::matmul_small)}, {"matmul 1536", product(ops::matmul_large)}});
}
