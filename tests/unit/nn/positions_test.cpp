// SPDX-License-Identifier: MIT
// Rotary positions and group norm: how attention depends on positions, caches, ranks, types, errors.
// agree/layers_test compares values and gradients with PyTorch's.
#include <doctest/doctest.h>

#include <weft/comm/threads.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;

namespace {

using heads = extents<dyn, dyn, dyn, dyn>;

auto some(index_t positions, index_t of_heads, std::uint64_t seed) {
  return randn<float>(heads{2, positions, of_heads, 6}, {.seed = seed});
}
template <class A, class B>
test::comparison near(const A& a, const B& b, double within = 1e-5) {
  return test::matches(test::oracle::read(a), test::oracle::read(b), {.of_largest = within});
}
template <class A>
test::comparison near(const A& a, const test::oracle::array& b) {
  return test::matches(test::oracle::read(a), b, {.of_largest = 1e-5});
}

}  // namespace

TEST_CASE("rotary: attention depends on distances only") {
  const auto q = some(7, 4, 1), k = some(7, 2, 2), v = some(7, 2, 3);
  const auto expected = eval(attention<causal>(rotary(q), rotary(k), v));
  CHECK(near(eval(attention<causal>(rotary(q, 5), rotary(k, 5), v)), expected));
  CHECK(!near(eval(attention<causal>(rotary(q, 5), rotary(k), v)), expected));
  CHECK(!near(eval(attention<causal>(q, k, v)), expected));
}

TEST_CASE("rotary: later queries with the keys of a cache") {
  const auto q = some(7, 4, 1), k = some(7, 2, 2), v = some(7, 2, 3);
  const auto expected = eval(attention<causal>(rotary(q), rotary(k), v));
  const auto cache = eval(rotary(slice<1>(k, 0, 5)));
  const auto keys = eval(concat<1>(cache, rotary(slice<1>(k, 5, 7), 5)));
  const auto later = eval(attention<causal>(rotary(slice<1>(q, 5, 7), 5), keys, v, 5));
  CHECK(near(later, eval(slice<1>(expected, 5, 7))));
}

TEST_CASE("rotary: given positions are those of ranks that divide them") {
  const auto x = some(9, 2, 1);
  const auto whole = eval(rotary(x));
  struct {
    linear<2, 2> layer;
  } model;
  run_ranks(2, [&](communicator& all) {
    auto same = clone(model);
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<dp, cp<>>>>(same, optimizer, all, {.cp = 2});
    const context_part own = run.part_of_context(9);
    CHECK(eval(rotary(own.of(x), own.positions()), run).to_vector() == own.of(whole).to_vector());
  });
}

TEST_CASE("rotary: scaled for longer sequences") {
  const auto x = randn<float>(heads{2, 7, 3, 16});
  const auto places = generate<std::int32_t>(extents<dyn, dyn>{2, 7}, [](index_t i) { return i * 11 % 97; });
  const auto check = [&]<rope_scaling Scaling>() {
    const auto at_once = rotary<50, Scaling>(x, 30);
    CHECK(near(eval(at_once), test::oracle::value(at_once)));
    const auto at_places = rotary<50, Scaling>(x, places);
    CHECK(near(eval(at_places), test::oracle::value(at_places)));
    CHECK(!near(eval(at_once), eval(rotary<50>(x, 30)), 1e-3));
  };
  check.operator()<rope_scaling{.factor = 8, .original_max_position_embeddings = 40}>();
  check.operator()<rope_scaling{.factor = 2.5,
                                .low_freq_factor = 0.5,
                                .high_freq_factor = 1.5,
                                .original_max_position_embeddings = 20}>();
  CHECK(eval(rotary<50, rope_scaling{.high_freq_factor = 9}>(x, 30)).to_vector() ==
        eval(rotary<50>(x, 30)).to_vector());
}

TEST_CASE("rotary: types, and what is wrong is said") {
  const auto x = some(5, 2, 1);
  const auto expected = eval(rotary(x, 3));
  const auto narrow = eval(rotary(cast<bfloat16>(x), 3));
  static_assert(std::is_same_v<decltype(narrow)::value_type, bfloat16>);
  CHECK(near(eval(cast<float>(narrow)), expected, 1e-2));
  CHECK(near(eval(cast<float>(rotary(cast<double>(x), 3))), expected));
  const auto places = from(extents<dyn>{5}, std::vector<std::int64_t>{3, 4, 5, 6, 7});
  CHECK(eval(rotary(cast<bfloat16>(x), places)).to_vector() == narrow.to_vector());
  CHECK_THROWS_WITH_AS(rotary(x, -1), "weft: rotary: the first position must be 0 or more, not -1",
                       shape_error);
  CHECK_THROWS_AS(eval(rotary(zeros<float>(heads{1, 2, 3, 5}))), shape_error);
  CHECK_THROWS_AS(eval(rotary(x, from(extents<dyn>{4}, std::vector<std::int64_t>{3, 4, 5, 6}))), shape_error);
}

TEST_CASE("group norm: names, first values, types, and what is wrong is said") {
  const auto layer = group_normalization<2>::create(6);
  CHECK(state_dict(layer)[0].first == "weight");
  CHECK(state_dict(layer)[1].first == "bias");
  CHECK(layer.weight.to_vector() == std::vector<float>(6, 1.0f));
  CHECK(layer.bias.to_vector() == std::vector<float>(6, 0.0f));
  static_assert(parameter_count<group_normalization<2, 6>>() == 12);
  const auto x = randn<float>(extents<dyn, dyn, dyn>{3, 6, 5});
  const auto expected = eval(layer(x));
  CHECK(eval(group_normalization<2, 6>()(x)).to_vector() == expected.to_vector());
  const auto w = cast<bfloat16>(layer.weight), b = cast<bfloat16>(layer.bias);
  const auto narrow = eval(group_norm<2>(cast<bfloat16>(x), w, b));
  static_assert(std::is_same_v<decltype(narrow)::value_type, bfloat16>);
  CHECK(near(eval(cast<float>(narrow)), expected, 1e-2));
  CHECK(near(eval(group_norm<6, per_million<1'000'000>>(x, layer.weight, layer.bias)),
             eval(reshape(layer_norm<per_million<1'000'000>>(x, full<float>(extents<dyn>{5}, 1.0f),
                                                             full<float>(extents<dyn>{5}, 0.0f)),
                          extents<dyn, dyn, dyn>{3, 6, 5}))));
  CHECK_THROWS_WITH_AS(group_normalization<4>::create(6),
                       "weft: group_normalization: 4 groups do not divide 6 channels", value_error);
  CHECK_THROWS_AS(eval(group_norm<4>(x, layer.weight, layer.bias)), shape_error);
}
