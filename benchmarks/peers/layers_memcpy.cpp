// SPDX-License-Identifier: MIT
#include "copies.hpp"

int main(int, char** values) {
  omp_set_num_threads(ops::threads_of(values));
  constexpr long elements = 16384 * 1024;
  std::vector<ops::task> tasks;
  for (const char* name : {"softmax", "layer_norm", "rms_norm",
                           "gelu"})  // forward: operand, result; backward: one of them, two gradients
    tasks.push_back(ops::copies(std::string(name) + ", out of cache", 5, elements));
  tasks.push_back(
      ops::copies("cross_entropy, 1024 x 50304", 3, 1024l * 50304));  // logits twice, their gradient
  tasks.push_back(ops::copies("clipping and AdamW, 32 million", 8,
                              1l << 25));  // gradient twice; parameter and two moments, in and out
  ops::serve(tasks);
}
