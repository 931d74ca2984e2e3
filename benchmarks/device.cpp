// SPDX-License-Identifier: MIT
// What a device reaches: bandwidth of element-wise and row kernels, rate of matrix products.
//
//   weft_benchmark_device cuda
//
// Prints a Markdown table of medians over interleaved rounds. Bytes are those that must move: each
// operand read once, each result written once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <weft/gpu/open.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

struct measurement {
  std::string what;
  double amount;  // bytes or floating-point operations
  const char* unit;
  std::function<void()> run;
  std::vector<double> seconds{};
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int count, char** values) try {
  const device where = open_device(count > 1 ? values[1] : "auto");
  const bool small = count > 2 && std::string(values[2]) == "small";
  context c(where);
  const index_t rows = small ? 256 : 16384, columns = 2048, side = small ? 256 : 4096;
  const auto x = tensor<float, extents<dyn, dyn>>(shape{2, {rows, columns}}, where);
  const auto y = tensor<float, extents<dyn, dyn>>(shape{2, {rows, columns}}, where);
  const auto a = tensor<float, extents<dyn, dyn>>(shape{2, {side, side}}, where);
  for (const auto* t : {&x, &y, &a}) where->fill_zero(t->state()->memory.data(), t->state()->bytes());
  const double bytes = static_cast<double>(x.state()->bytes());
  const double products =
      2.0 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side);
  std::vector<measurement> all{
      {"copy: x + 0", 2 * bytes, "GB/s", [&] { eval(x + 0.0f, c); }},
      {"chain: gelu(x * y + x)", 3 * bytes, "GB/s", [&] { eval(gelu(x * y + x), c); }},
      {"softmax of rows of 2048", 2 * bytes, "GB/s", [&] { eval(softmax(x), c); }},
      {"sum of columns", bytes, "GB/s", [&] { eval(sum(x, dims<0>), c); }},
      {"matmul " + std::to_string(side) + " f32", products, "GFLOP/s", [&] { eval(matmul(a, a), c); }},
  };
  for (int round = 0; round < 12; ++round)
    for (measurement& m : all) {
      where->synchronize();
      const double start = now();
      m.run();
      where->synchronize();
      if (round >= 2) m.seconds.push_back(now() - start);
    }
  std::printf("%s\n\n| kernel | median |\n|---|---|\n", where->description().c_str());
  for (measurement& m : all) {
    std::sort(m.seconds.begin(), m.seconds.end());
    std::printf("| %s | %.0f %s |\n", m.what.c_str(), m.amount / m.seconds[m.seconds.size() / 2] * 1e-9,
                m.unit);
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "weft_benchmark_device: %s\n", e.what());
  return 2;
}
