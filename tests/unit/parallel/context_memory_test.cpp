// SPDX-License-Identifier: MIT
// What a rank holds at its peak when positions are divided among c ranks: a c-th of the activations, and the
// blocks of keys and values that travel.
#include <doctest/doctest.h>

#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

constexpr index_t length = 2048, width = 32;

struct layer {
  causal_self_attention<width> attention = causal_self_attention<width>::create(width, 4);
  feed_forward<width, 4 * width> mlp;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return let(h + attention(h), [this](auto y) { return y + mlp(y); }); });
  }
};

/// The most bytes of any rank for a forward and backward pass, without those of the parameters.
template <class Plan>
std::size_t peak_of_ranks(int ranks) {
  std::vector<std::size_t> peaks(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](communicator& all) {
    const device where(std::make_shared<cpu::cpu_backend>(1));
    layer model;
    to(model, where);
    sgd optimizer;
    auto run = bind<Plan>(model, optimizer, all);
    const index_t own = run.part_of_context(length).count();
    const auto held = where.memory().figures().peak;
    const variable<float, extents<dyn, dyn, width>> x(
        rand<float>(extents<dyn, dyn, width>{1, own}, {}, where));
    tape steps(run);
    steps.backward(steps.eval(mean(square(model(x)))));
    peaks[static_cast<std::size_t>(all.rank())] = where.memory().figures().peak - held;
  });
  return *std::max_element(peaks.begin(), peaks.end());
}

template <class Plan>
void falls_with_ranks() {
  const std::size_t one = peak_of_ranks<Plan>(1);
  for (const int ranks : {2, 4}) {
    const std::size_t of_each = peak_of_ranks<Plan>(ranks);
    MESSAGE(ranks, " ranks: ", of_each, " of ", one, " bytes");
    CHECK(of_each < one * 8 / 5 / static_cast<std::size_t>(ranks));
  }
}

}  // namespace

TEST_CASE("activations of a rank fall with the number of ranks") {
  falls_with_ranks<policy<strategy::mesh<cp<ring>>>>();
  falls_with_ranks<policy<strategy::mesh<cp<ulysses>>>>();
}
