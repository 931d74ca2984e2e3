// SPDX-License-Identifier: MIT
// The planner accepts the measured figures of this machine; their sizes are not checked.
#include <doctest/doctest.h>

#include <weft/comm/self.hpp>
#include <weft/comm/threads.hpp>
#include <weft/planner/measure.hpp>
#include <weft/weft.hpp>

using namespace weft;

TEST_CASE("few bytes measure no bandwidth") {
  self_communicator alone;
  CHECK_THROWS_AS(planner::measured_link(alone, -5), value_error);
  CHECK_THROWS_AS(planner::measured_link(alone, 0), value_error);
}

TEST_CASE("measured figures are those of a cluster") {
  planner::cluster c{.ranks = 3, .device = planner::measured_rates(default_device(), 32)};
  CHECK(c.device.narrow_products > 0);
  CHECK(c.device.attention > 0);
  CHECK(!c.device.is_gpu);
  std::vector<planner::link> links(3);
  run_ranks(3, [&](communicator& ranks) {
    links[static_cast<std::size_t>(ranks.rank())] = planner::measured_link(ranks, 4096);
  });
  for (const planner::link& l : links) {
    CHECK(l.latency == links[0].latency);
    CHECK(l.bytes == links[0].bytes);
  }
  c.within = links[0];
  CHECK_NOTHROW(planner::checked(c));
  self_communicator alone;
  CHECK(planner::measured_link(alone).bytes == 0);
}
