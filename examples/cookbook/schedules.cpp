// SPDX-License-Identifier: MIT
// The code that docs/schedules.md shows.
#include <iostream>

#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>

#include "../section.hpp"
using namespace weft;

// [prove]
static_assert(
    pipeline::proved<[] { return pipeline::zb_h1(4, 16); }>);  // 4 stages, 16 micro-batches: it runs
static_assert(pipeline::simulate(pipeline::zb_h1(4, 16)).bubble() ==
              3);  // idle time, in forward steps of one chunk
static_assert(pipeline::live(pipeline::zb_h1(4, 16))[0].together == 4);   // micro-batches that stage 0 holds
// [/prove]

// [table]
constexpr pipeline::schedule mine() {
  using enum pipeline::step_kind;
  return {.micro_batches = 2,
          .stage_of = {0, 1},  // the stage that holds each chunk
          .steps = {
              // {kind, chunk, micro-batch}
              {{forward, 0, 0}, {forward, 0, 1}, {backward, 0, 0}, {backward, 0, 1}},
              {{forward, 1, 0}, {backward, 1, 0}, {forward, 1, 1}, {backward, 1, 1}}}};
}
static_assert(pipeline::proved<mine>);
// [/table]

int main() {
  section("csv");
  // [csv]
  const auto s = pipeline::schedule_from_csv(
      "# F forward, B backward, I and W its parts\n"
      "0F0,0F1,0B0,0B1\n"
      "1F0,1F1,1B1,1B1\n");
  if (const auto f = pipeline::check(s)) std::cout << pipeline::to_text(*f) << '\n';
  std::cout << pipeline::to_csv(pipeline::with_messages(mine()));
  // [/csv]
}
