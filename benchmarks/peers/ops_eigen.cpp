// SPDX-License-Identifier: MIT
#include <Eigen/Dense>

#include "ops.hpp"

int main(int, char** values) {
  Eigen::setNbThreads(ops::threads_of(values));
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto filled = [](long rows, long columns) {
    matrix m(rows, columns);
    for (long i = 0; i < m.size(); ++i) m.data()[i] = ops::element(i);
    return m;
  };
  const matrix a = filled(ops::matmul_small, ops::matmul_small),
               b = filled(ops::matmul_large, ops::matmul_large);
  const matrix x = filled(1, ops::chain_size), y = filled(1, ops::chain_size),
               r = filled(ops::rows, ops::columns);
  matrix c = a, d = b, e = x, s = r;
  ops::serve({{"matmul 256", [&] { c.noalias() = a * a; }},
              {"matmul 1536", [&] { d.noalias() = b * b; }},
              {"chain", [&] { e = (x.array() * y.array() + x.array()).max(0.0f); }},
              {"softmax", [&] {
                 s = (r.colwise() - r.rowwise().maxCoeff()).array().exp();
                 s.array().colwise() /= s.rowwise().sum().array();
               }}});
}
