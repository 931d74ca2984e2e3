// SPDX-License-Identifier: MIT
// The traffic and memory of sequence parallelism: the volumes of Megatron-LM, and sharded activations.
#include <doctest/doctest.h>

#include <weft/comm/counting.hpp>
#include <weft/comm/threads.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"

using namespace weft;

namespace {

template <activations Between>
using plan = policy<strategy::mesh<tp<Between>>>;

constexpr index_t B = 2, T = 96, C = 48;
using tokens = tensor<std::int32_t, extents<dyn, dyn>>;

struct found {
  std::size_t peak = 0, kept = 0;  // by forward for backward
  index_t sent = 0;                // by this rank
};

template <activations Between>
found step_of(communicator& ranks, const device& where, index_t layers) {
  auto model = gpt2::model<>::create({.layers = layers, .heads = 12, .width = C, .context = T}, where);
  sgd optimizer;
  auto run = bind<plan<Between>>(model, optimizer, ranks, {.tp = ranks.size()});
  tokens words(shape{2, {B, T}}, where);
  words.copy_from(std::vector<std::int32_t>(static_cast<std::size_t>(B * T), 3));
  const traffic before = run.layer_ranks().sent();
  const std::size_t held = where.memory().figures().in_use;
  found f;
  {
    tape steps(run);
    auto loss = steps.eval(model.loss(words, words, T));
    f.kept = where.memory().figures().in_use - held;
    steps.backward(loss);
  }
  run.step();
  const traffic sent = run.layer_ranks().sent() - before;
  f.sent = sent.total() - sent.control;
  f.peak = where.memory().figures().peak;
  return f;
}

/// The same for all ranks, on a device that only counts.
template <activations Between>
std::vector<found> forecast(int n, index_t layers) {
  std::vector<found> all;
  for (int r = 0; r < n; ++r) {
    counting_communicator nowhere(r, n);
    all.push_back(step_of<Between>(nowhere, device(std::make_shared<counting_backend>()), layers));
  }
  return all;
}

template <activations Between>
index_t sent_by_all(int n, index_t layers) {
  index_t sum = 0;
  for (const found& f : forecast<Between>(n, layers)) sum += f.sent;
  return sum;
}

}  // namespace

TEST_CASE("what a step sends: a block ten activations, its vectors once") {
  constexpr index_t S = B * T * C, float_bytes = 4;
  for (const int n : {2, 3, 4}) {
    INFO(n << " ranks");
    const index_t per = float_bytes * (n - 1);
    const auto by_positions = [&](index_t layers) {
      return sent_by_all<activations::by_positions>(n, layers);
    };
    const auto whole = [&](index_t layers) { return sent_by_all<activations::whole>(n, layers); };
    CHECK(by_positions(3) - by_positions(2) == per * (10 * S + 2 * 6 * C));
    CHECK(whole(3) - whole(2) == per * 8 * S);
    const index_t embedding = S + S + T * C, head = S + 2 * S + 6 * B * T, norm = 2 * C;
    CHECK(by_positions(1) == per * (10 * S + 2 * 6 * C + embedding + head + norm));
  }
}

TEST_CASE("activations take a part of the memory, and what a rank holds is known beforehand to the byte") {
  const found one = forecast<activations::by_positions>(1, 6)[0];
  for (const int n : {2, 4}) {
    INFO(n << " ranks");
    const found f = forecast<activations::by_positions>(n, 6)[0],
                whole = forecast<activations::whole>(n, 6)[0];
    CHECK(f.kept < 11 * one.kept / (10 * static_cast<std::size_t>(n)));
    CHECK(f.kept < whole.kept);
    CHECK(f.peak < whole.peak);
  }
  const std::vector<found> known = forecast<activations::by_positions>(2, 2);
  run_ranks(2, [&](communicator& ranks) {
    const found f =
        step_of<activations::by_positions>(ranks, device(std::make_shared<cpu::cpu_backend>(1)), 2);
    CHECK(f.peak == known[static_cast<std::size_t>(ranks.rank())].peak);
    CHECK(f.sent == known[static_cast<std::size_t>(ranks.rank())].sent);
  });
}
