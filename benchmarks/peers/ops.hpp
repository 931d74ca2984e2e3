// SPDX-License-Identifier: MIT
// What the programs of one op have in common: each measures the tasks it can do and prints
// "task seconds" lines, one for every round.
//
//   ops_weft threads rounds
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ops {

// The tasks; f32, row-major, every element written once.
inline constexpr long matmul_small = 256, matmul_large = 1536;  // C = A B of square matrices
inline constexpr long chain_size = 1 << 24;                     // relu(x * y + x), out of cache
inline constexpr long rows = 4096, columns = 1024;              // softmax of rows

struct task {
  std::string name;
  std::function<void()> run;
};

inline int threads_of(char** values) { return std::atoi(values[1]); }

inline void measure(char** values, const std::vector<task>& tasks) {
  for (int round = 0; round <= std::atoi(values[2]); ++round)
    for (const task& t : tasks) {
      const auto start = std::chrono::steady_clock::now();
      t.run();
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (round > 0) std::printf("%s\t%.9f\n", t.name.c_str(), s);  // the first round warms up
    }
}

inline float element(long i) { return static_cast<float>(i % 251 - 125) / 125.0f; }

}  // namespace ops
