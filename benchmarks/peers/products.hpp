// SPDX-License-Identifier: MIT
// Matrix products of many shapes, for programs that do the same ones: C [m, n] = A [m, k] B [k, n], each
// operand stored as it is read or transposed.
#pragma once

#include <cstdio>
#include <string>

#include "ops.hpp"

namespace products {

struct tensor_spec {
  const char* name;
  bool a_transposed, b_transposed;
};
inline constexpr tensor_spec specs[] = {{"AB", false, false}, {"ABt", false, true}, {"AtB", true, false}};

struct shape {
  long m, n, k;
};
inline constexpr shape shapes[] = {
    {1, 768, 768},      {8, 768, 768},      {32, 768, 768},     {64, 768, 768},
    {64, 64, 64},       {50, 70, 33},       {100, 100, 100},    {512, 512, 512},
    {1000, 1000, 1000}, {1024, 1024, 1024}, {2048, 2048, 2048}, {256, 2304, 768},
    {256, 3072, 768},   {256, 768, 3072},   {4096, 768, 768},   {1024, 50304, 768}};

/// Calls make(name, shape, form) for every product and measures what it returns; small products are repeated,
/// so that a measurement takes about a millisecond. A product is made just before it is measured, so that one
/// is in memory at a time. Threads often begin on one core: they get half a second to find their own.
template <class Make>
void measure(char** values, const char* type, const Make& make) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto run = make({1024, 1024, 1024}, specs[0]);
       std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500);)
    run();
  for (const shape& s : shapes)
    for (const tensor_spec& f : forms) {
      auto run = make(s, f);
      const long repeats = std::max(1l, 100'000'000 / (2 * s.m * s.n * s.k));
      run();
      for (int round = 0; round < std::atoi(values[2]); ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (long r = 0; r < repeats; ++r) run();
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        std::printf("%s %ld,%ld,%ld %s\t%.9f\n", type, s.m, s.n, s.k, f.name,
                    seconds / static_cast<double>(repeats));
      }
    }
}

}  // namespace products
