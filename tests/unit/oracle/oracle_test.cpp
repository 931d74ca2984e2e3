// SPDX-License-Identifier: MIT
// The oracle against numbers computed by hand and by PyTorch 2.13. The library evaluates nothing here.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <weft/op/all.hpp>
#include <weft/tensor/create.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(),
                 NaN = std::numeric_limits<double>::quiet_NaN();

/// Checks that the floating value of `e` has this type, extents and elements.
template <expression E>
test::comparison is(const E& e, dtype type, const shape& s, std::vector<double> elements, double within = 0) {
  return matches(oracle::value(e), oracle::numbers(type, s, std::move(elements)), {.absolute = within});
}
template <expression E>
test::comparison is_integer(const E& e, dtype type, const shape& s, std::vector<std::int64_t> elements) {
  return matches(oracle::value(e), oracle::integers(type, s, std::move(elements)));
}

template <class T, class Extents>
auto counting(Extents e) {
  return generate<T>(e, [](index_t i) { return static_cast<float>(i); });
}
template <class T>
auto row(std::vector<T> v) {
  return from(extents<dyn>{static_cast<index_t>(v.size())}, v);
}
auto flags(std::vector<int> v) {
  return generate<bool>(extents<dyn>{static_cast<index_t>(v.size())},
                        [&](index_t i) { return v[static_cast<std::size_t>(i)] != 0; });
}

const auto sample = from(extents<2, 3>{}, std::vector<double>{0.5, -1.25, 2, 3, 0.25, -0.75});

template <class... Ops>
void check_defined(op::op_list<Ops...>) {
  const auto check = [](std::string_view name) {
    for (const char* left_out : {"coordinate",
                                 "reduce_sum",
                                 "reduce_max",
                                 "reduce_min",
                                 "leaf",
                                 "argument",
                                 "constant",
                                 "extent_value",
                                 "result",
                                 "differentiated_at",
                                 "contract",
                                 "index_add",
                                 "attention_backward",
                                 "checked_index",
                                 "fold_windows",
                                 "arg_window_max",
                                 "depthwise_conv2d",
                                 "depthwise_weight_gradient",
                                 "rounded_before",  // users do not write them
                                 "uniform_like",
                                 "dropout",
                                 "checked_probability",
                                 "checked_weight",
                                 "bernoulli",
                                 "multinomial"})  // random
      if (name == left_out) return;
    CAPTURE(std::string(name));
    CHECK(oracle::is_defined(name));
  };
  (check(Ops::name), ...);
}

}  // namespace

TEST_CASE("every op that users write has a definition") { check_defined(op::all::list{}); }

TEST_CASE("rounding to narrow types: halves to even, subnormal numbers, overflow") {
  CHECK(oracle::rounded(1 + 0x1p-8, dtype::bf16) == 1);  // a tie
  CHECK(oracle::rounded(1 + 3 * 0x1p-8, dtype::bf16) == 1 + 0x1p-6);
  CHECK(oracle::rounded(1.01, dtype::bf16) == 1.0078125);
  CHECK(oracle::rounded(-1.01, dtype::f16) == -1.009765625);
  CHECK(oracle::rounded(0x1p-25, dtype::f16) == 0);
  CHECK(oracle::rounded(0x1.8p-25, dtype::f16) == 0x1p-24);
  CHECK(oracle::rounded(65519, dtype::f16) == 65504);
  CHECK(oracle::rounded(-65520, dtype::f16) == -inf);
  CHECK(oracle::rounded(3.4e38, dtype::bf16) == inf);
  CHECK(oracle::rounded(0.1, dtype::f32) == static_cast<double>(0.1f));
  CHECK(oracle::rounded(1e-45, dtype::f32) == 0x1p-149);
  CHECK(oracle::rounded(0.1, dtype::f64) == 0.1);
  CHECK(oracle::epsilon(dtype::bf16) == 0x1p-7);
}

TEST_CASE("elements are read from bytes") {
  CHECK(is(row<float16>({1.5f, -0x1p-24f, 65504.f}), dtype::f16, {1, {3}}, {1.5, -0x1p-24, 65504}));
  CHECK(is(row<bfloat16>({1.5f, -3.f}), dtype::bf16, {1, {2}}, {1.5, -3}));
  CHECK(is_integer(row<std::int32_t>({-5, 1 << 30}), dtype::i32, {1, {2}}, {-5, 1 << 30}));
  const std::uint8_t bytes[] = {0, 1, 255};
  CHECK(oracle::decoded(dtype::boolean, {1, {3}}, bytes).i == std::vector<std::int64_t>{0, 1, 255});
}

TEST_CASE("arithmetic: common types, wrapping, bool") {
  const auto i = row<std::int64_t>({7, -7, std::numeric_limits<std::int64_t>::max()});
  CHECK(is_integer(i + std::int64_t{1}, dtype::i64, {1, {3}},
                   {8, -6, std::numeric_limits<std::int64_t>::min()}));
  CHECK(is(i / 2, dtype::f32, {1, {3}}, {3.5, -3.5, 0x1p62}));
  const auto u = row<std::uint8_t>({200, 3});
  CHECK(is_integer(u + u, dtype::u8, {1, {2}}, {144, 6}));
  CHECK(is_integer(-u, dtype::u8, {1, {2}}, {56, 253}));
  CHECK(is(cast<float>(u + u), dtype::f32, {1, {2}}, {144, 6}));
  CHECK(is_integer(u + row<std::int32_t>({-1, 1}), dtype::i32, {1, {2}}, {199, 4}));
  const auto a = flags({0, 0, 1, 1}), b = flags({0, 1, 0, 1});
  CHECK(is_integer(a + b, dtype::boolean, {1, {4}}, {0, 1, 1, 1}));
  CHECK(is_integer(a * b, dtype::boolean, {1, {4}}, {0, 0, 0, 1}));
  CHECK(is_integer(maximum(a, b), dtype::boolean, {1, {4}}, {0, 1, 1, 1}));
  CHECK(is_integer(minimum(a, b), dtype::boolean, {1, {4}}, {0, 0, 0, 1}));
  CHECK(is_integer(less(a, b), dtype::boolean, {1, {4}}, {0, 1, 0, 0}));
  CHECK(is_integer(logical_or(a, logical_not(b)), dtype::boolean, {1, {4}}, {1, 0, 1, 1}));
  const auto h = row<bfloat16>({1.f, 0.1f, -3.3f});
  CHECK(is(h + h * row<bfloat16>({0.3f, 0.3f, 0.3f}), dtype::bf16, {1, {3}},
           {1.296875, 0.1298828125, -4.28125}));  // PyTorch's
  CHECK(is(h + row<float16>({1.f, 0.f, 0.f}), dtype::f32, {1, {3}}, {2, 0.10009765625, -3.296875}));
  CHECK(is(h * row<double>({2., 2., 2.}), dtype::f64, {1, {3}}, {2, 0.2001953125, -6.59375}));
  CHECK(is(row<std::int64_t>({257}) + row<bfloat16>({0.f}), dtype::bf16, {1, {1}}, {256}));
  CHECK(is(cast<float>(cast<bfloat16>(row<float>({1.01f}))), dtype::f32, {1, {1}}, {1.0078125}));
}

TEST_CASE("arithmetic: broadcasting aligns at the right") {
  const auto x = counting<float>(extents<2, 1, 3>{});
  const auto y = counting<float>(extents<2, 1>{});
  CHECK(is(x + y, dtype::f32, {3, {2, 2, 3}}, {0, 1, 2, 1, 2, 3, 3, 4, 5, 4, 5, 6}));
  CHECK(is(where(flags({1, 0, 1}), x, -1.f), dtype::f32, {3, {2, 1, 3}}, {0, -1, 2, 3, -1, 5}));
  CHECK_THROWS_AS(oracle::value(counting<float>(extents<dyn>{2}) + counting<float>(extents<dyn>{3})),
                  oracle::undefined);
  CHECK(is(counting<float>(extents<0, 3>{}) + counting<float>(extents<3>{}), dtype::f32, {2, {0, 3}}, {}));
}

TEST_CASE("NaN, infinities, halves") {
  const auto x = row<float>({static_cast<float>(NaN), 1, static_cast<float>(inf), -2.5f});
  CHECK(is(maximum(x, 0.f), dtype::f32, {1, {4}}, {NaN, 1, inf, 0}));
  CHECK(is(minimum(0.f, x), dtype::f32, {1, {4}}, {NaN, 0, 0, -2.5}));
  CHECK(is(relu(x), dtype::f32, {1, {4}}, {NaN, 1, inf, 0}));
  CHECK(is(amax(x), dtype::f32, {}, {NaN}));
  CHECK(is(round(x), dtype::f32, {1, {4}}, {NaN, 1, inf, -2}));
  CHECK(is(floor(x), dtype::f32, {1, {4}}, {NaN, 1, inf, -3}));
  CHECK(is_integer(equal(x, x), dtype::boolean, {1, {4}}, {0, 1, 1, 1}));
  CHECK(is_integer(argmax<0>(x), dtype::i64, {}, {0}));
  CHECK(is(1.f / row<float>({0.f, -0.f}), dtype::f32, {1, {2}}, {inf, -inf}));
  const auto mixed = from(extents<3, 2>{}, std::vector<double>{inf, 1, -inf, -inf, NaN, inf});
  CHECK(is(logsumexp(mixed, dims<1>), dtype::f64, {1, {3}}, {inf, -inf, NaN}));
  CHECK(is(softmax(mixed), dtype::f64, {2, {3, 2}}, {NaN, NaN, NaN, NaN, NaN, NaN}));
  CHECK(is_integer(cast<std::int32_t>(row<float>({-1.5f, 300.7f})), dtype::i32, {1, {2}}, {-1, 300}));
}

TEST_CASE("movement") {
  const auto x = counting<float>(extents<2, 3>{});
  CHECK(is(transpose(x), dtype::f32, {2, {3, 2}}, {0, 3, 1, 4, 2, 5}));
  CHECK(is(reshape<3, dyn>(transpose(x)), dtype::f32, {2, {3, 2}}, {0, 3, 1, 4, 2, 5}));
  CHECK(is(reshape(x, extents<dyn, 2>{3, 2}), dtype::f32, {2, {3, 2}}, {0, 1, 2, 3, 4, 5}));
  CHECK(is(reshape<2>(slice<1, 1, 2>(x)), dtype::f32, {1, {2}}, {1, 4}));
  CHECK(is(sum(slice<1, 1, 2>(x), dims<1>) + 1.f, dtype::f32, {1, {2}}, {2, 5}));
  CHECK(is(slice<1, 0, 3, 2>(x), dtype::f32, {2, {2, 2}}, {0, 2, 3, 5}));
  CHECK(is(slice<1>(x, 1, 3), dtype::f32, {2, {2, 2}}, {1, 2, 4, 5}));
  CHECK(is(flip<0>(x), dtype::f32, {2, {2, 3}}, {3, 4, 5, 0, 1, 2}));
  CHECK(is(expand<2, 2, 3>(x), dtype::f32, {3, {2, 2, 3}}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  CHECK(is(pad<1, 1, 2>(x), dtype::f32, {2, {2, 6}}, {0, 0, 1, 2, 0, 0, 0, 3, 4, 5, 0, 0}));
  CHECK(is(concat<-1>(x, flip<1>(x)), dtype::f32, {2, {2, 6}}, {0, 1, 2, 2, 1, 0, 3, 4, 5, 5, 4, 3}));
  CHECK(is(stack<0>(x, x), dtype::f32, {3, {2, 2, 3}}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  CHECK(is(flatten<0, 1>(permute<1, 0>(x)), dtype::f32, {1, {6}}, {0, 3, 1, 4, 2, 5}));
  CHECK(is(unflatten<1>(x, 3), dtype::f32, {3, {2, 3, 1}}, {0, 1, 2, 3, 4, 5}));
  CHECK(is(chunk<1, 3, 2>(x), dtype::f32, {2, {2, 1}}, {2, 5}));
  CHECK(is(permute<2, 0, 1>(counting<float>(extents<1, 2, 3>{})), dtype::f32, {3, {3, 1, 2}},
           {0, 3, 1, 4, 2, 5}));
  CHECK_THROWS_AS(oracle::value(unflatten<1>(counting<float>(extents<2, dyn>{2, 3}), 2)), oracle::undefined);
}

TEST_CASE("reductions") {
  const auto x = counting<double>(extents<2, 3, 2>{});
  CHECK(is(sum(x), dtype::f64, {}, {66}));
  CHECK(is(sum(x, dims<0, 2>), dtype::f64, {1, {3}}, {14, 22, 30}));
  CHECK(is(mean(x, dims<1>, keepdim), dtype::f64, {3, {2, 1, 2}}, {2, 3, 8, 9}));
  CHECK(is(amin(x, dims<0>), dtype::f64, {2, {3, 2}}, {0, 1, 2, 3, 4, 5}));
  CHECK(is_integer(sum(flags({1, 0, 1})), dtype::i64, {}, {2}));
  CHECK(is_integer(sum(row<std::uint8_t>({200, 200})), dtype::i64, {}, {400}));
  CHECK(is(mean(row<std::int32_t>({1, 2})), dtype::f32, {}, {1.5}));
  CHECK(is_integer(amax(flags({0, 1})), dtype::boolean, {}, {1}));
  CHECK(is(mean(full<float16>(extents<70000>{}, float16(1.f))), dtype::f16, {}, {1}));
  CHECK(is(sum(full<bfloat16>(extents<300>{}, bfloat16(1.f))), dtype::bf16, {}, {300}));
  CHECK(is(logsumexp(sample), dtype::f64, {}, {3.43933452909531967}, 1e-15));
  CHECK(is(sum(counting<float>(extents<0, 2>{}), dims<0>), dtype::f32, {1, {2}}, {0, 0}));
  CHECK(is(mean(counting<float>(extents<0>{})), dtype::f32, {}, {NaN}));
  CHECK_THROWS_AS(oracle::value(amax(counting<float>(extents<dyn>{0}))), oracle::undefined);
}

TEST_CASE("functions of rows and elements, by PyTorch") {
  const shape s{2, {2, 3}};
  CHECK(is(softmax(sample), dtype::f64, s,
           {0.17682018210744427, 0.03072674032643643, 0.79245307756611927, 0.91958622436398008,
            0.05878718051874077, 0.02162659511727905},
           1e-15));
  CHECK(is(log_softmax(sample), dtype::f64, s,
           {-1.73262198310203264, -3.48262198310203264, -0.23262198310203266, -0.08383146623578200,
            -2.83383146623578197, -3.83383146623578197},
           1e-14));
  CHECK(is(softmax<0>(transpose(sample)), dtype::f64, {2, {3, 2}},
           {0.17682018210744427, 0.91958622436398008, 0.03072674032643643, 0.05878718051874077,
            0.79245307756611927, 0.02162659511727905},
           1e-15));
  const auto one = full<double>(extents<3>{}, 1.0), zero = full<double>(extents<3>{}, 0.0);
  CHECK(is(layer_norm(sample, one, zero), dtype::f64, s,
           {0.06274540265308406, -1.25490805306168052, 1.19216265040859692, 1.36652694324041701,
            -0.36791110010318923, -0.99861584313722795},
           1e-14));
  CHECK(is(rms_norm<default_epsilon>(sample, one), dtype::f64, s,
           {0.35920967706203094, -0.89802419265507738, 1.43683870824812376, 1.67486896853387601,
            0.13957241404448967, -0.41871724213346900},
           1e-14));
  const auto ones = full<double>(extents<4>{}, 1.0), zeros = full<double>(extents<4>{}, 0.0);
  CHECK(is(group_norm<2>(reshape<1, 4, 3>(concat<0>(sample, sample * sample)), ones, zeros), dtype::f64,
           {3, {1, 4, 3}},
           {-0.08461602522954777, -1.26924037844321647, 0.93077627752502545, 1.60770447936140748,
            -0.25384807568864332, -0.93077627752502545, -0.73392958775823225, -0.31924291485447776,
            0.45088947768106630, 2.03064823160013086, -0.79317054103019713, -0.63519466563829063},
           1e-14));
  const auto batch = from(extents<2, 3>{}, std::vector<double>{1, 2, 3, 4, 6, 8});
  const auto moments = apply<op::channel_moments>(batch);
  CHECK(is(moments, dtype::f64, {2, {2, 3}}, {2.5, 4, 5.5, 2.25, 4, 6.25}, 1e-15));
  CHECK(is(apply<op::batch_norm, attr<number_bits(1e-5)[0]>>(
               batch, moments, from(extents<3>{}, std::vector<double>{1, 2, -1}),
               from(extents<3>{}, std::vector<double>{0, 1, 0.5})),
           dtype::f64, s,
           {-0.9999977777851852, -0.9999975000046875, 1.49999920000096, 0.9999977777851852,
            2.9999975000046875, -0.49999920000096},
           1e-14));
  CHECK(is(gelu(sample), dtype::f64, s,
           {0.34573123063700656, -0.13206221708356905, 1.95449973610364158, 2.99595030590510980,
            0.14967658142073093, -0.16997051428265111},
           1e-15));
  CHECK(is(gelu_tanh(sample), dtype::f64, s,
           {0.34571400982514394, -0.13228579703028542, 1.95459769408777495, 2.99636260791822684,
            0.14967535070168500, -0.17003944483437966},
           1e-15));
  CHECK(is(silu(sample), dtype::f64, s,
           {0.31122966560092730, -0.27837517353163604, 1.76159415595576463, 2.85772238046729976,
            0.14054412522144952, -0.24061597561845527},
           1e-15));
  const std::vector<double> values = sample.to_vector();
  std::vector<double> leaky, unit;
  for (const double x : values) leaky.push_back(x > 0 ? x : 0.25 * x);
  CHECK(is(leaky_relu(sample, 0.25), dtype::f64, s, leaky));
  for (const double x : values) unit.push_back(x > 0 ? x : 2 * (std::exp(x) - 1));
  CHECK(is(elu(sample, 2.0), dtype::f64, s, unit, 1e-14));
  CHECK(is(vector_norm(from<double>(extents<2, 2>{}, {3, 4, 0, -2}), dims<1>), dtype::f64, {1, {2}}, {5, 2}));
  CHECK(
      is(variance(from<double>(extents<2, 3>{}, {1, 2, 6, 5, 5, 5}), dims<1>), dtype::f64, {1, {2}}, {7, 0}));
  CHECK(is(stddev<0>(from<double>(extents<2, 2>{}, {1, 2, 7, 8}), dims<0>), dtype::f64, {1, {2}}, {3, 3}));
  CHECK(
      is(normalize(from<double>(extents<2, 2>{}, {3, 4, 0, 0})), dtype::f64, {2, {2, 2}}, {0.6, 0.8, 0, 0}));
  CHECK(is(softplus(sample), dtype::f64, s,
           {0.97407698418010669, 0.25192908134537290, 2.12692801104297269, 3.04858735157374205,
            0.82593941987884356, 0.38687100611489994},
           1e-15));
  CHECK(is(sigmoid(sample), dtype::f64, s,
           {0.62245933120185459, 0.22270013882530884, 0.88079707797788231, 0.95257412682243336,
            0.56217650088579807, 0.32082130082460703},
           1e-15));
  CHECK(is(gelu(row<bfloat16>({1.f, 0.1f, -3.3f})), dtype::bf16, {1, {3}},
           {0.83984375, 0.05395507812500000, -0.00160980224609375}));
  CHECK(is(bce_with_logits<reduction_kind::none>(sample, full<double>(extents<2, 3>{}, 0.25)), dtype::f64, s,
           {0.84907698418010669, 0.56442908134537295, 1.62692801104297247, 2.29858735157374205,
            0.76343941987884356, 0.57437100611489988},
           1e-15));
}

TEST_CASE("losses, look-ups") {
  CHECK(is(cross_entropy<reduction_kind::none>(sample, row<std::int64_t>({2, 1})), dtype::f64, {1, {2}},
           {0.23262198310203266, 2.83383146623578197}, 1e-14));
  CHECK(
      is(cross_entropy(sample, row<std::int64_t>({2, -100})), dtype::f64, {}, {0.23262198310203266}, 1e-15));
  CHECK(is(cross_entropy<reduction_kind::none, ignored_label, per_million<100'000>>(
               sample, row<std::int64_t>({2, -100})),
           dtype::f64, {1, {2}}, {0.39095531643536596, 0}, 1e-15));
  CHECK_THROWS_AS(oracle::value(cross_entropy(sample, row<std::int64_t>({2, 3}))), oracle::undefined);
  CHECK_THROWS_AS(oracle::value(cross_entropy(sample, row<std::int64_t>({2, std::int64_t{1} << 32}))),
                  oracle::undefined);
  const auto x = from(extents<2, 3>{}, std::vector<float>{0, 5, 3, 1, 6, 4});
  const auto index = from(extents<2, 2>{}, std::vector<std::int64_t>{2, 0, 1, 1});
  CHECK(is(gather<1>(x, index), dtype::f32, {2, {2, 2}}, {3, 0, 6, 6}));
  CHECK(is(scatter_add<1>(x, index, full<float>(extents<2, 2>{}, 10.f)), dtype::f32, {2, {2, 3}},
           {10, 5, 13, 1, 26, 4}));
  CHECK(is(embedding(x, row<std::uint8_t>({1, 0, 1})), dtype::f32, {2, {3, 3}}, {1, 6, 4, 0, 5, 3, 1, 6, 4}));
  CHECK(is(index_select<1>(x, row<std::int32_t>({2, 0})), dtype::f32, {2, {2, 2}}, {3, 0, 4, 1}));
  CHECK_THROWS_AS(oracle::value(embedding(x, row<std::int32_t>({2}))), oracle::undefined);
  CHECK_THROWS_AS(oracle::value(gather<1>(x, from(extents<2, 1>{}, std::vector<std::int64_t>{0, -1}))),
                  oracle::undefined);
  CHECK(is_integer(argmax<1>(x), dtype::i64, {1, {2}}, {1, 1}));
  const auto ties = row<float>({3, static_cast<float>(NaN), 1, 3, -0.f, 0});
  CHECK(is_integer(argsort<0>(ties), dtype::i64, {1, {6}}, {4, 5, 2, 0, 3, 1}));
  CHECK(is_integer(argsort<0, descending>(ties), dtype::i64, {1, {6}}, {1, 0, 3, 2, 4, 5}));
  CHECK(is_integer(topk<0, 2>(ties).indices, dtype::i64, {1, {2}}, {1, 0}));
  CHECK(is(topk<0, 3, smallest>(ties).values, dtype::f32, {1, {3}}, {0, 0, 1}));
  CHECK(is(sort<1, descending>(x), dtype::f32, {2, {2, 3}}, {5, 3, 0, 6, 4, 1}));
  CHECK(is(sort<0>(x), dtype::f32, {2, {2, 3}}, {0, 5, 3, 1, 6, 4}));
  CHECK_THROWS_AS(oracle::value(topk<0>(ties, 7).values), oracle::undefined);
  CHECK(is(cumsum<1>(x), dtype::f32, {2, {2, 3}}, {0, 5, 8, 1, 7, 11}));
  CHECK(is_integer(cumsum<0>(row<std::uint8_t>({200, 100, 1})), dtype::i64, {1, {3}}, {200, 300, 301}));
  CHECK(is(cumprod<1>(x + 1.f), dtype::f32, {2, {2, 3}}, {1, 6, 24, 2, 14, 70}));
  CHECK(is(apply<op::cumprod, attr<0, 1>>(x), dtype::f32, {2, {2, 3}}, {1, 1, 1, 0, 5, 3}));
  CHECK(is_integer(cumprod<0>(row<std::uint8_t>({20, 100, 3})), dtype::i64, {1, {3}}, {20, 2000, 6000}));
  CHECK(is(apply<op::linear_recurrence, attr<1, 0>>(x, x + 1.f), dtype::f32, {2, {2, 3}},
           {1, 11, 37, 2, 19, 81}));
  CHECK(is(apply<op::linear_recurrence, attr<1, 1>>(x, x + 1.f), dtype::f32, {2, {2, 3}},
           {91, 18, 4, 164, 27, 5}));
  CHECK(is_integer(argmin<0>(full<float>(extents<3, 1>{}, 2.f)), dtype::i64, {1, {1}}, {0}));
  CHECK(is(one_hot<3>(row<std::int32_t>({2, 0})), dtype::f32, {2, {2, 3}}, {0, 0, 1, 1, 0, 0}));
  CHECK_THROWS_AS(oracle::value(one_hot<3>(row<std::int32_t>({3}))), oracle::undefined);
}

TEST_CASE("products and attention") {
  const auto a = counting<double>(extents<2, 2, 3>{});
  const auto b = counting<double>(extents<3, 2>{});
  CHECK(is(matmul(a, b), dtype::f64, {3, {2, 2, 2}}, {10, 13, 28, 40, 46, 67, 64, 94}));
  CHECK(is(einsum<"bij,jk->ikb">(a, b), dtype::f64, {3, {2, 2, 2}}, {10, 46, 13, 67, 28, 64, 40, 94}));
  CHECK(is(einsum<"bij,jk->kj">(a, b), dtype::f64, {2, {2, 3}}, {0, 44, 104, 18, 66, 130}));
  CHECK(is(matmul(transpose(b), reshape<2, 3, 2>(a)), dtype::f64, {3, {2, 2, 2}},
           {20, 26, 26, 35, 56, 62, 80, 89}));
  CHECK(is(matmul(counting<double>(extents<2, 0>{}), counting<double>(extents<0, 1>{})), dtype::f64,
           {2, {2, 1}}, {0, 0}));
  CHECK_THROWS_AS(oracle::value(matmul(counting<float>(extents<dyn, dyn>{2, 3}),
                                       counting<float>(extents<dyn, dyn>{2, 3}))),
                  oracle::undefined);
  const auto q =
      generate<double>(extents<1, 3, 2, 2>{}, [](index_t i) { return 0.25 * static_cast<double>(i) - 1; });
  CHECK(is(attention<causal>(q, flip<1>(q), q * q), dtype::f64, {4, {1, 3, 2, 2}},
           {1, 0.5625, 0.25, 0.0625, 0.54407944334922598, 0.33453972167461293, 0.25, 0.20868683701274271,
            0.83639629681195726, 0.51402811206119381, 0.26817163782020481, 0.13498311989205988},
           1e-15));
  CHECK(is(attention<false>(q, flip<1>(q), q * q), dtype::f64, {4, {1, 3, 2, 2}},
           {0.78889122439025794, 1.18458850205102428, 1.28378519761713372, 1.76525036735456209,
            0.67011195854453021, 0.67399123396038063, 0.46556280042717080, 0.51627481566747024,
            0.83639629681195726, 0.51402811206119381, 0.26817163782020481, 0.13498311989205988},
           1e-14));
  const auto keys = slice<2, 0, 1>(q);  // two heads read one of the keys, from the second position on
  CHECK(is(attention<causal>(slice<1, 1, 3>(q), keys, keys * keys, 1), dtype::f64, {4, {1, 2, 2, 2}},
           {0.45592055665077397, 0.290460278325387, 0.2923736740254854, 0.2086868370127427,
            0.8363962968119573, 1.2837644815627205, 0.9095486736764944, 1.4177371916046393},
           1e-14));
  const auto turned =
      from(extents<1, 2, 1, 4>{}, std::vector<double>{0.5, -1.25, 2, 3, 0.25, -0.75, 1, -2.5});
  CHECK(is(rotary(turned, 3), dtype::f64, {4, {1, 2, 1, 4}},
           {-0.77723626441995708, -1.33942404279372140, -1.90942498917095715, 2.96115572599384302,
            0.59339159009202525, -0.64942674452914806, -0.84284424469059394, -2.52799226729242044},
           1e-14));
  const auto back = flip<1>(rotary(flip<1>(turned), from(extents<1, 2>{}, std::vector<std::int64_t>{4, 3})));
  CHECK(test::matches(oracle::value(back), oracle::value(rotary(turned, 3)), {}));
}

TEST_CASE("let: a variable is its value, inner ones hide nothing") {
  const auto x = counting<float>(extents<3>{});
  const auto e = let(x + 1.f, [](auto a) { return let(a * 2.f, [a](auto b) { return a + b; }) + a; });
  CHECK(is(e, dtype::f32, {1, {3}}, {4, 8, 12}));
  const auto both = oracle::value(bundled(x + 1.f, cast<std::int32_t>(x)));
  REQUIRE(both.size() == 2);
  CHECK(matches(both[1], oracle::integers(dtype::i32, {1, {3}}, {0, 1, 2})));
}

TEST_CASE("derivatives by differences: once and twice, in double whatever the type") {
  const variable<float, extents<3>> x(from(extents<3>{}, std::vector<float>{0.5f, 2, -1}));
  const auto cube = sum(x * x * x);
  const auto first = oracle::gradient(cube, x);
  CHECK(matches(first.value, oracle::numbers(dtype::f32, {1, {3}}, {0.75, 12, 3}), {.relative = 1e-10}));
  CHECK(converged(first));
  const auto v = oracle::numbers(dtype::f32, {1, {3}}, {1, 10, 100});
  const auto second = oracle::gradient_along(cube, x, v, x);
  CHECK(matches(second.value, oracle::numbers(dtype::f32, {1, {3}}, {3, 120, -600}), {.relative = 1e-7}));
  CHECK(matches(oracle::slope(cube, x, v).value, oracle::numbers(dtype::f64, {}, {420.75}),
                {.relative = 1e-10}));
  // Weights, a cast that rounds (not here), a value hidden from the derivative directly and through a let.
  const auto weights = oracle::numbers(dtype::f32, {1, {3}}, {1, 10, 100});
  CHECK(matches(
      oracle::gradient(cast<float>(cast<bfloat16>(exp(x))), x, weights).value,
      oracle::numbers(dtype::f32, {1, {3}}, {std::exp(0.5), 10 * std::exp(2.0), 100 * std::exp(-1.0)}),
      {.relative = 1e-6}));
  CHECK(matches(oracle::gradient(x * detach(x), x, weights).value,
                oracle::numbers(dtype::f32, {1, {3}}, {0.5, 20, -100}), {.relative = 1e-6}));
  CHECK(matches(oracle::gradient(let(x * 3.f, [](auto y) { return y * detach(y); }), x).value,
                oracle::numbers(dtype::f32, {1, {3}}, {4.5, 18, -9}), {.relative = 1e-6}));
  const variable<double, extents<2>> near_border(from(extents<2>{}, std::vector<double>{1e-3, 2}));
  CHECK(matches(oracle::gradient(log(near_border), near_border).value,
                oracle::numbers(dtype::f64, {1, {2}}, {1000, 0.5}), {.relative = 1e-8}));
  // With respect to a leaf other than the direction's.
  const variable<double, extents<2>> w(from(extents<2>{}, std::vector<double>{3, 4}));
  CHECK(matches(oracle::gradient_along(near_border * near_border * w, near_border,
                                       oracle::numbers(dtype::f64, {1, {2}}, {1, 1}), w)
                    .value,
                oracle::numbers(dtype::f64, {1, {2}}, {2e-3, 4}), {.relative = 1e-7}));
  // Smaller steps avoid a kink near the point; at a kink, the one-sided derivatives differ.
  const variable<double, extents<2>> kink(from(extents<2>{}, std::vector<double>{-1e-3, 0.01}));
  CHECK(matches(oracle::gradient(relu(kink), kink).value, oracle::numbers(dtype::f64, {1, {2}}, {0, 1}),
                {.absolute = 1e-9}));
  const variable<double, extents<1>> step(from(extents<1>{}, std::vector<double>{2}));
  CHECK_FALSE(converged(oracle::gradient(floor(step), step)));
  CHECK_FALSE(converged(oracle::gradient(sqrt(step - 2.0), step)));
}

TEST_CASE("elements may be replaced") {
  const auto x = counting<float>(extents<3>{});
  const auto instead = oracle::numbers(dtype::f32, {1, {3}}, {5, 6, 7});
  CHECK(matches(oracle::value(x * x, {.leaves = {{x.state().get(), instead}}}),
                oracle::numbers(dtype::f32, {1, {3}}, {25, 36, 49})));
}
