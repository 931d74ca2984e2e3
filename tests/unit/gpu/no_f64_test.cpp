// SPDX-License-Identifier: MIT
// OpenCL devices without f64: training, and what is refused.
#include <doctest/doctest.h>

#if WEFT_WITH_OPENCL

#include <memory>
#include <vector>

#include <weft/gpu/opencl.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

#include "../../skip.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using test::throws_with;

namespace {

/// A device whose compiler does not know `double`.
class without_f64 : public gpu::opencl_backend {
 public:
  bool has_f64() const override { return false; }
};

/// Null if the machine has no OpenCL device.
const device* tested_device() {
  static const device* const found = []() -> const device* {
    try {
      return new device(std::make_shared<without_f64>());
    } catch (const device_error& e) {
      test::skip("opencl", e.what());
      return nullptr;
    }
  }();
  return found;
}

struct trained {
  double norm;
  std::vector<float> weight;
};
trained train_on(const device& d) {
  linear<4, 3> m;
  initialize(m, 1);
  to(m, d);
  adamw optimizer;
  auto run = bind<policy<>>(m, optimizer);
  const auto x = generate<float>(extents<8, 4>{}, [](index_t i) { return 0.25f * float(i % 7) - 0.5f; }, d);
  const auto y = generate<std::int32_t>(extents<8>{}, [](index_t i) { return std::int32_t(i % 3); }, d);
  const auto result = run.step(1, [&](index_t) { return cross_entropy(m(x), y); }, {.clip = 0.125});
  return {result.norm, m.weight.to_vector()};
}

}  // namespace

TEST_CASE("a device without f64 trains with clipped gradients, whose rows it sums in f32") {
  const device* const d = tested_device();
  if (!d) return;
  const trained expected = train_on(default_device()), seen = train_on(*d);
  CHECK(expected.norm > 0.125);
  CHECK(seen.norm == doctest::Approx(expected.norm).epsilon(1e-6));
  REQUIRE(seen.weight.size() == expected.weight.size());
  for (std::size_t i = 0; i < seen.weight.size(); ++i)
    CHECK(seen.weight[i] == doctest::Approx(expected.weight[i]).epsilon(1e-5));
}

TEST_CASE("a device without f64 copies f64 elements, and refuses to compute them, by the name of the op") {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const std::vector<double> elements{1, 2, 3, 4};
  const auto x = from(extents<2, 2>{}, elements, *d);
  CHECK(clone(x).to_vector() == elements);
  const char* const why = "the device opencl (";
  CHECK(
      throws_with<device_error>([&] { (void)eval(exp(x) * 2.0, c); },
                                {"weft: fused kernel of exp, multiply: ", why, ") does not compute in f64"}));
  CHECK(throws_with<device_error>([&] { (void)eval(matmul(x, x), c); }, {"weft: matmul: ", why}));
  CHECK(throws_with<device_error>([&] { (void)eval(cumsum<0>(x), c); }, {"weft: cumsum: ", why}));
  CHECK(eval(cast<float>(full<std::int32_t>(extents<2>{}, 3, *d)), c).to_vector() ==
        std::vector<float>{3, 3});
}
#endif
