// SPDX-License-Identifier: MIT
// Several threads of a program compute on one device concurrently.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include <weft/weft.hpp>

using namespace weft;

TEST_CASE("threads that share a device do not disturb each other") {
  const device where(std::make_shared<cpu::cpu_backend>(2));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      context c(where);
      const auto n = static_cast<float>(t + 1);
      for (int i = 0; i < 200; ++i) {
        const auto a = full<float>(extents<40, 300>{}, n, where);
        const auto b = full<float>(extents<300, 50>{}, 1.0f, where);
        // matmul packs its operands, the sum over columns and the softmax keep partial results
        const float product = eval(matmul(a, b), c).to_vector()[777];
        const float columns = eval(sum(a, dims<0>), c).to_vector()[17];
        const float softmaxed = eval(softmax(a), c).to_vector()[5];
        if (product != 300 * n || columns != 40 * n || std::abs(softmaxed - 1.0f / 300) > 1e-6f) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}
