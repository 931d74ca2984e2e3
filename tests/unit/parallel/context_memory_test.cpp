// SPDX-License-Identifier: MIT
// The peak memory of a rank when positions are sharded over c ranks: a c-th of the activations, plus the
// buffers of messages.
#include <doctest/doctest.h>

#include <map>
#include <vector>

#include <weft/comm/counting.hpp>
#include <weft/comm/threads.hpp>
#include <weft/device/counting.hpp>
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

/// The maximum over ranks of the bytes of a forward and backward pass, without the parameters.
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

constexpr std::size_t gradients = 4 * (12 * width * width + 9 * width), keys = 4 * length * width;

/// `travelling`: by number of ranks, the peak memory of attention besides its operands and results, in units
/// of the keys of one rank.
template <class Plan>
void falls_with_ranks(std::map<int, std::size_t> travelling) {
  const std::size_t one = peak_of_ranks<Plan>(1);
  for (const auto& [ranks, blocks] : travelling) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t of_each = peak_of_ranks<Plan>(ranks);
    MESSAGE(ranks, " ranks: ", of_each, " of ", one, " bytes");
    CHECK(of_each <= (one - gradients + blocks * keys) / n + gradients + 256);  // a few scalars
  }
}

}  // namespace

TEST_CASE("activations of a rank fall with the number of ranks") {
  // The peak, in the backward pass: keys and values that are here and that arrive, their cotangents that are
  // computed, sent and received, and those of queries. With two ranks, nothing arrives during computation.
  falls_with_ranks<policy<strategy::mesh<cp<ring>>>>({{2, 2 + 2 + 1}, {4, 2 * 2 + 3 * 2 + 1}});
  falls_with_ranks<policy<strategy::mesh<cp<ulysses>>>>({{2, 2}, {4, 2}});  // a tensor sent and received
}

namespace {
/// The forecast of a pass on a device with separate memory, or with host memory.
template <class Plan>
std::size_t forecast_peak(bool of_host) {
  const device where(std::make_shared<counting_backend>(of_host));
  counting_communicator nowhere(0, 2);
  layer model;
  to(model, where);
  sgd optimizer;
  auto run = bind<Plan>(model, optimizer, nowhere);
  const index_t own = run.part_of_context(length).count();
  const variable<float, extents<dyn, dyn, width>> x(
      zeros<float>(extents<dyn, dyn, width>{1, own, width}, where));
  tape steps(run);
  steps.backward(steps.eval(mean(square(model(x)))));
  return where.memory().figures().peak;
}
}  // namespace

TEST_CASE("divided positions are forecast on devices that only count, of the host and not") {
  const auto both = []<class Plan>(Plan) {
    const std::size_t host = forecast_peak<Plan>(true), other = forecast_peak<Plan>(false);
    CHECK(host > keys);
    CHECK(other > keys);
  };
  both(policy<strategy::mesh<cp<ring>>>());
  both(policy<strategy::mesh<cp<ulysses>>>());
}
