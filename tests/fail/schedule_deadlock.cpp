// SPDX-License-Identifier: MIT
// within 12: mistake::deadlock
// within 12: stage<0>
// within 12: step_number<1>
// within 12: peer<1>
// within 12: weft: pipeline: the schedule cannot run
#include <weft/parallel/schedule/check.hpp>
using namespace weft::pipeline;

/// Stage 0 waits for the gradient of micro-batch 1, stage 1 for its activation.
constexpr schedule crossed() {
  using enum step_kind;
  return {.micro_batches = 2,
          .stage_of = {0, 1},
          .steps = {{{forward, 0, 0}, {backward, 0, 0}, {forward, 0, 1}, {backward, 0, 1}},
                    {{forward, 1, 0}, {forward, 1, 1}, {backward, 1, 0}, {backward, 1, 1}}}};
}
static_assert(proved<crossed>);
