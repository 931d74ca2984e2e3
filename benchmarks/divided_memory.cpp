// SPDX-License-Identifier: MIT
// Predicted memory of the activations of one sequence by the number of ranks that shard layers or positions,
// as tables for docs/benchmarks.md.
//
//   weft_benchmark_divided_memory [LAYERS HEADS WIDTH VOCABULARY]      default: GPT-2 medium
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "step_memory.hpp"

using namespace weft;

namespace {

template <class Axis>
using plan = policy<strategy::mesh<Axis>>;

/// The maximum over ranks.
template <class Plan>
step_memory most_of(int ranks, const gpt2::config& c) {
  step_memory most;
  for (const step_memory& m : forecast<Plan>(ranks, c, 1))
    most = {std::max(most.kept, m.kept), std::max(most.peak, m.peak)};
  return most;
}

/// Prints the bytes kept, with the fraction that theory predicts, and the peak, as fractions of one rank's.
void print_columns(const step_memory& of, const step_memory& one, double theory) {
  const auto megabytes = [](std::size_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  std::printf(" %.0f | %.3f | %.3f | %.0f | %.3f |", megabytes(of.kept),
              megabytes(of.kept) / megabytes(one.kept), theory, megabytes(of.peak),
              megabytes(of.peak) / megabytes(one.peak));
}

/// A row for each number of ranks, with columns for two ways to shard. `First` on one rank is an unsharded
/// step.
template <class First, class Second, class Theory>
void print_table(const char* divided, const char* axis, const char* first, const char* second,
                 const gpt2::config& c, Theory theory_of_first) {
  std::printf("\n%td positions, %s divided among %s ranks:\n\n| %s |", c.context, divided, axis, axis);
  for (const char* name : {first, second})
    std::printf(" %s, MB | of one rank | theory | peak, MB | of one rank |", name);
  std::puts("\n|---|---|---|---|---|---|---|---|---|---|---|");
  const step_memory one = most_of<First>(1, c);
  for (const int ranks : {1, 2, 4, 8}) {
    std::printf("| %d |", ranks);
    print_columns(most_of<First>(ranks, c), one, theory_of_first(ranks));
    print_columns(most_of<Second>(ranks, c), one, 1.0 / ranks);
    std::puts("");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, index_t otherwise) -> index_t {
    return i < argc ? std::atoll(argv[i]) : otherwise;
  };
  gpt2::config c{.layers = argument(1, 24),
                 .heads = argument(2, 16),
                 .width = argument(3, 1024),
                 .context = 2048,
                 .vocabulary = argument(4, 50304)};
  // Of the 16 activations of a block, ranks that shard layers hold 4 whole: those that norms read and write.
  print_table<plan<tp<activations::whole>>, plan<tp<activations::by_positions>>>(
      "layers", "t", "whole", "by positions", c, [](int t) { return (4 + 12.0 / t) / 16; });
  c.context = 16384;
  print_table<plan<cp<ring>>, plan<cp<ulysses>>>("positions", "c", "ring", "Ulysses", c,
                                                 [](int n) { return 1.0 / n; });
}
