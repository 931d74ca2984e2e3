// SPDX-License-Identifier: MIT
// The limit that memory sets: memcpy of the minimum number of bytes that a task must read and write, each
// thread its own part.
#pragma once

#include <omp.h>

#include <cstring>

#include "ops.hpp"

namespace ops {

/// A task that reads or writes `arrays` arrays of `elements` floats in all: half as many are copied.
inline task copies(const std::string& name, double arrays, long elements) {
  const auto bytes = static_cast<std::size_t>(arrays / 2 * static_cast<double>(elements) * sizeof(float));
  return {name, [bytes, from = std::vector<char>(bytes, 1), to = std::vector<char>(bytes, 2)]() mutable {
#pragma omp parallel
            {
              const auto thread = static_cast<std::size_t>(omp_get_thread_num()),
                         threads = static_cast<std::size_t>(omp_get_num_threads());
              const std::size_t begin = bytes * thread / threads, end = bytes * (thread + 1) / threads;
              std::memcpy(to.data() + begin, from.data() + begin, end - begin);
            }
          }};
}

}  // namespace ops
