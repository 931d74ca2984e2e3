// SPDX-License-Identifier: MIT
// Devices that several threads open at once, before anything else in the process has opened one.
#include <doctest/doctest.h>

#if WEFT_WITH_OPENCL

#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/gpu/opencl.hpp>
#include <weft/weft.hpp>

#include "../../skip.hpp"

using namespace weft;

TEST_CASE("threads that open a device at once get the same one") {
  std::vector<std::vector<float>> values(4);
  std::vector<device> devices(4, default_device());
  try {
    run_ranks(4, [&](communicator& ranks) {
      const auto own = static_cast<std::size_t>(ranks.rank());
      devices[own] = on<opencl>::where();
      context c(devices[own]);
      const auto x = full<float>(extents<3>{}, static_cast<float>(own), devices[own]);
      values[own] = eval(x + 1.f, c).to_vector();
    });
  } catch (const device_error& e) { return test::skip("opencl", e.what()); }
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(devices[r] == devices[0]);
    CHECK(values[r] == std::vector<float>(3, static_cast<float>(r + 1)));
  }
}
#endif
