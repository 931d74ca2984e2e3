// SPDX-License-Identifier: MIT
// docs/cookbook/tensors.md: Eigen matrices in and out.
#include <iostream>

#include <Eigen/Dense>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

int main() {
  section("eigen");
  // [eigen]
  using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  row_major m(2, 2);
  m << 4, 1, 1, 3;

  tensor<float, extents<dyn, dyn>> t({2, {m.rows(), m.cols()}});   // in: copied
  t.copy_from(m.data());

  Eigen::Map<const row_major> view(t.data(), t.extent(0), t.extent(1));   // out: not copied
  row_major inverse = view.inverse();                                      // not in weft
  auto product =
      matmul(t, from(extents<dyn, dyn>{2, 2}, std::vector<float>(inverse.data(), inverse.data() + 4)));
  std::cout << eval(round(product)) << '\n';
  // [/eigen]
}
