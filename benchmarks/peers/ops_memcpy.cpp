// SPDX-License-Identifier: MIT
#include "copies.hpp"

int main(int, char** values) {
  omp_set_num_threads(ops::threads_of(values));
  ops::serve({ops::copies("chain", 3, ops::chain_size),                     // x, y, result
              ops::copies("softmax", 2, ops::rows * ops::columns)});        // operand, result
}
