// SPDX-License-Identifier: MIT
// The protocol of the programs that run.py compares. A program prints the names of its tasks, one per line,
// and an empty line. Then, for each name that it reads, it does the task and prints the seconds that it took,
// or "none" if it failed, so that run.py decides which program computes when.
//
//   echo softmax | ops_weft THREADS
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
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

/// Seconds of one run. A run shorter than ten milliseconds, in which the clock and cold caches would show, is
/// then repeated for that long. `finish` waits for work that runs have queued.
inline double seconds_of(const std::function<void()>& run, const std::function<void()>& finish = [] {}) {
  const auto seconds = [&](int repeats) {
    finish();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) run();
    finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
  };
  constexpr double least = 0.01;
  const double once = seconds(1);
  return once < least ? seconds(static_cast<int>(least / once) + 1) : once;
}

inline void serve(const std::vector<task>& tasks) {
  for (const task& t : tasks) std::printf("%s\n", t.name.c_str());
  std::printf("\n");
  std::fflush(stdout);
  for (std::string name; std::getline(std::cin, name);)
    for (const task& t : tasks)
      if (t.name == name) {
        try {
          std::printf("%.9f\n", seconds_of(t.run));
        } catch (const std::exception& e) {
          std::fprintf(stderr, "%s: %s\n", name.c_str(), e.what());
          std::printf("none\n");
        }
        std::fflush(stdout);
      }
}

inline float element(long i) { return static_cast<float>(i % 251 - 125) / 125.0f; }

}  // namespace ops
