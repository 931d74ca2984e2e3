// SPDX-License-Identifier: MIT
// The predictions of benchmarks/divided_memory.cpp: equal to the byte to the memory of ranks that compute,
// and, for each block of a GPT, to theory.
#include <doctest/doctest.h>

#include <weft/comm/threads.hpp>

#include "../../../benchmarks/step_memory.hpp"

using namespace weft;

namespace {

template <class Axis>
using plan = policy<strategy::mesh<Axis>>;
using whole = plan<tp<activations::whole>>;
using by_positions = plan<tp<activations::by_positions>>;
using in_ring = plan<cp<ring>>;
using by_heads = plan<cp<ulysses>>;

constexpr index_t B = 2, T = 256, C = 64, heads = 8;
constexpr gpt2::config of_layers(index_t layers) {
  return {.layers = layers, .heads = heads, .width = C, .context = T, .vocabulary = 256};
}

template <class Plan>
void same_as_used(int n, index_t positions) {
  gpt2::config c = of_layers(2);
  c.context = positions;
  const std::vector<step_memory> known = forecast<Plan>(n, c, B);
  run_ranks(n, [&](communicator& ranks) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    const step_memory used = memory_of_step<Plan>(ranks, where, c, B);
    CAPTURE(n);
    CAPTURE(ranks.rank());
    CHECK(used.kept == known[static_cast<std::size_t>(ranks.rank())].kept);
    CHECK(used.peak == known[static_cast<std::size_t>(ranks.rank())].peak);
  });
}

/// The bytes that the forward pass keeps for one block, on the first of n ranks.
template <class Plan>
index_t kept_of_block(int n) {
  return static_cast<index_t>(forecast<Plan>(n, of_layers(3), B)[0].kept -
                              forecast<Plan>(n, of_layers(2), B)[0].kept);
}

}  // namespace

TEST_CASE("what is predicted is what a rank holds") {
  for (const int n : {1, 2, 4}) {
    same_as_used<whole>(n, 96);
    same_as_used<by_positions>(n, 96);
  }
  for (const int n : {1, 2, 3, 4}) {
    same_as_used<in_ring>(n, 97);
    same_as_used<by_heads>(n, 97);
  }
}

TEST_CASE("what forward keeps of a block") {
  constexpr index_t S = 4 * B * T * C, log_sums = 4 * B * T * heads;
  // Norms: operand and result of both, with two means and the variance. Inside layers: queries, keys, values
  // and the result of attention, and operand and result of gelu, which are four times as wide.
  constexpr index_t of_norms = 2 * (2 * S + 3 * 4 * B * T), inside = (3 + 1 + 4 + 4) * S + log_sums;
  for (const int n : {1, 2, 4, 8}) {
    CAPTURE(n);
    CHECK(kept_of_block<whole>(n) == of_norms + inside / n);
    CHECK(kept_of_block<by_positions>(n) == (of_norms + inside) / n);
    CHECK(kept_of_block<in_ring>(n) == (of_norms + inside) / n);
    CHECK(kept_of_block<by_heads>(n) == (of_norms + inside + S) / n);  // the result of attention twice
  }
}
