// SPDX-License-Identifier: MIT
// Values that a backward pass of a run has not reached, and that a later pass on the same tape
// differentiates: the bits of two tapes, under every data-parallel strategy.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../../elements.hpp"

using namespace weft;
using weft::test::elements_of;

namespace {

struct pair_of_layers {
  linear<3, 4> first, second;
};

std::vector<float> trained(communicator& ranks, const parallel_options& o, bool on_one_tape) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  pair_of_layers m;
  to(m, where);
  initialize(m, 1);
  adamw optimizer{.lr = 1e-2};
  auto run = bind(m, optimizer, ranks, o);
  for (std::uint64_t s = 0; s < 3; ++s) {
    const auto seed = 10 * s + static_cast<std::uint64_t>(ranks.rank());
    const auto x = randn<float>(extents<4, 3>{}, {.seed = seed}, where);
    tape one(run), two(run);
    tape<>& other = on_one_tape ? one : two;
    const auto late = one.eval(m.first(x));
    {
      const auto quiet = run.no_sync();
      other.backward(other.eval(mean(square(m.second(x) + detach(late)))));
    }
    CHECK(one.size() == 1);
    one.backward(one.eval(mean(square(late) + square(m.second(x)))));
    CHECK(one.size() == 0);
    run.step({.clip = 0.5, .micro_batches = 2});
  }
  return elements_of(run.full());
}

}  // namespace

TEST_CASE("a value that a pass has not reached: the bits of two tapes, under every strategy") {
  for (const sharding divide :
       {sharding::none, sharding::optimizer, sharding::gradients, sharding::parameters})
    for (const bool reshard : {true, false})
      for (const bool deterministic : {false, true})
        for (const int n : {1, 2, 3})
          run_ranks(n, [&](communicator& ranks) {
            const parallel_options o{
                .divide = divide, .deterministic = deterministic, .reshard_after_forward = reshard};
            CHECK(trained(ranks, o, true) == trained(ranks, o, false));
          });
}
