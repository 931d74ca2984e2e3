// SPDX-License-Identifier: MIT
#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xtensor.hpp>

#include "ops.hpp"

int main(int, char** values) {
  const auto filled = [](std::size_t rows, std::size_t columns) {
    xt::xtensor<float, 2> m({rows, columns});
    for (std::size_t i = 0; i < m.size(); ++i) m.data()[i] = ops::element(static_cast<long>(i));
    return m;
  };
  const auto x = filled(1, ops::chain_size), y = filled(1, ops::chain_size),
             r = filled(ops::rows, ops::columns);
  xt::xtensor<float, 2> e = x, s = r;
  ops::serve({{"chain", [&] { xt::noalias(e) = xt::maximum(x * y + x, 0.0f); }},
              {"softmax", [&] {
                 const xt::xtensor<float, 2> p = xt::exp(r - xt::amax(r, {1}, xt::keep_dims));
                 xt::noalias(s) = p / xt::eval(xt::sum(p, {1}, xt::keep_dims));
               }}});
}
