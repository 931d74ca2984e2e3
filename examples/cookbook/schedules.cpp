// SPDX-License-Identifier: MIT
// Pipeline schedules that are proved, simulated and written in code; see docs/schedules.md.
// [proof]
#include <weft/parallel/schedule/check.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>
using namespace weft;

static_assert(pipeline::proved<[] { return pipeline::zb_h1(4, 16); }>);       // 4 stages, 16 micro-batches: it runs
static_assert(pipeline::simulate(pipeline::zb_h1(4, 16)).bubble() == 3);      // idle time, in forwards of one chunk
static_assert(pipeline::live(pipeline::zb_h1(4, 16))[0].together == 4);       // micro-batches that stage 0 holds
// [/proof]

// [own]
constexpr pipeline::schedule mine() {
  using enum pipeline::step_kind;
  return {.micro_batches = 2,
          .stage_of = {0, 1},  // by chunk: which stage holds it
          .steps = {{{forward, 0, 0}, {forward, 0, 1}, {backward, 0, 0}, {backward, 0, 1}},  // {kind, chunk, micro-batch}
                    {{forward, 1, 0}, {backward, 1, 0}, {forward, 1, 1}, {backward, 1, 1}}}};
}
static_assert(pipeline::proved<mine>);
// [/own]

int main() {}
