// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include "ops.hpp"

int main(int, char** values) {
  torch::set_num_threads(ops::threads_of(values));
  torch::NoGradGuard off;
  const auto filled = [](long rows, long columns) {
    auto t = torch::empty({rows, columns});
    for (long i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = ops::element(i);
    return t;
  };
  const auto a = filled(ops::matmul_small, ops::matmul_small),
             b = filled(ops::matmul_large, ops::matmul_large);
  const auto x = filled(1, ops::chain_size), y = filled(1, ops::chain_size),
             r = filled(ops::rows, ops::columns);
  ops::serve({{"matmul 256", [&] { torch::matmul(a, a); }},
              {"matmul 1536", [&] { torch::matmul(b, b); }},
              {"chain", [&] { torch::relu(torch::addcmul(x, x, y)); }},
              {"softmax", [&] { torch::softmax(r, -1); }}});
}
