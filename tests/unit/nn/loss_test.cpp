// SPDX-License-Identifier: MIT
// A head with its loss, computed in slices: the same result as at once, in less memory.
#include <doctest/doctest.h>

#include <weft/device/counting.hpp>
#include <weft/nn/linear_cross_entropy.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
namespace oracle = test::oracle;

namespace {

struct net {
  embedding_table<> table;  // the head is its transpose
  linear<> in;
  auto features(expression auto tokens) const { return gelu(in(table(tokens))); }
};

using tokens = tensor<std::int64_t, extents<dyn, dyn>>;
constexpr index_t words = 391, width = 8;

/// Two micro-batches; the second has ignored labels.
struct lesson {
  device where{std::make_shared<cpu::cpu_backend>(1)};
  net model{embedding_table<>::create(words, width, where), linear<>::create(width, width, where)};
  tokens in[2] = {batch(31, 0, -1), batch(31, 0, -1)}, labels[2] = {batch(57, 5, -1), batch(57, 5, 4)};

  lesson() { initialize(model, 3); }

  tokens batch(std::int64_t factor, std::int64_t first, std::int64_t left_out) const {
    tokens t(shape{2, {7, 9}}, where);
    std::vector<std::int64_t> v;
    for (std::int64_t i = 0; i < 63; ++i)
      v.push_back(left_out > 0 && i % left_out == 0 ? ignored_label : (i * factor + first) % words);
    t.copy_from(v);
    return t;
  }
  /// All logits at once.
  auto whole(int b) const {
    return cross_entropy(matmul(model.features(in[b]), transpose(model.table.weight)), labels[b]);
  }
};

struct outcome {
  double loss = 0;
  std::vector<oracle::array> gradients;  // 64 times
  std::size_t peak = 0;
};

/// `at_once` = 0: all logits at once, without linear_cross_entropy.
template <class Context>
outcome learn(index_t at_once) {
  const lesson l;
  Context c(l.where);
  c.loss_scale = 64;
  outcome result;
  for (int b = 0; b < 2; ++b) {
    tape steps(c);
    const auto loss = [&] {
      if (at_once == 0) return steps.eval(l.whole(b));
      return steps.eval(
          linear_cross_entropy(l.model.features(l.in[b]), l.model.table.weight, l.labels[b], at_once));
    }();
    result.loss += static_cast<double>(loss.item());
    steps.backward(loss);
  }
  result.peak = l.where.memory().figures().peak;
  for (const auto& p : parameters_of(l.model)) result.gradients.push_back(oracle::read(*p->grad));
  return result;
}

/// Compares with the definition: the loss, and for each parameter the derivative along a few directions.
struct expected {
  double loss = 0;
  std::vector<std::vector<oracle::array>> directions;
  std::vector<std::vector<double>> slopes;

  expected() {
    const lesson l;
    for (int b = 0; b < 2; ++b) loss += oracle::value(l.whole(b)).number(0);
    const auto both = l.whole(0) + l.whole(1);
    add(both, l.model.table.weight);
    add(both, l.model.in.weight);
    add(both, l.model.in.bias);
  }
  template <class E, class P>
  void add(const E& e, const P& parameter) {
    directions.emplace_back();
    slopes.emplace_back();
    for (std::uint64_t k = 0; k < 12; ++k) {  // dense directions, and directions in which one element moves
      oracle::array v = oracle::read(randn<float>(extents<dyn>{parameter.size()}, {.seed = k}));
      v.extents = parameter.extents();
      if (k >= 4)
        for (index_t i = 0; i < parameter.size(); ++i)
          v.f[static_cast<std::size_t>(i)] = i == static_cast<index_t>(k * 2654435761u) % parameter.size();
      const auto d = oracle::slope(e, parameter, v);
      REQUIRE(converged(d));
      directions.back().push_back(v);
      slopes.back().push_back(d.value.number(0));
    }
  }
};

void check(const outcome& part, const expected& whole, double tolerance) {
  CHECK(part.loss == doctest::Approx(whole.loss).epsilon(tolerance));
  REQUIRE(part.gradients.size() == whole.directions.size());
  for (std::size_t p = 0; p < part.gradients.size(); ++p)
    for (std::size_t k = 0; k < whole.directions[p].size(); ++k) {
      CAPTURE(p); CAPTURE(k);
      const oracle::array &g = part.gradients[p], &v = whole.directions[p][k];
      REQUIRE(g.extents == v.extents);
      double along = 0, size = 0, largest = 0;  // errors of elements are relative to the largest
      for (std::size_t i = 0; i < g.f.size(); ++i) {
        along += g.f[i] * v.f[i] / 64;
        size += std::abs(g.f[i] * v.f[i]) / 64;
        largest = std::max(largest, std::abs(g.f[i]) / 64);
      }
      CHECK(std::abs(along - whole.slopes[p][k]) <= tolerance * (size + largest));
    }
}

}  // namespace

TEST_CASE("linear_cross_entropy: by slices, the value and gradients of the definition") {
  const expected all;
  const outcome whole = learn<context>(0);
  check(whole, all, 1e-5);
  for (index_t at_once : {1, 391 * 10, 391 * 62, 391 * 63, 1 << 20}) {
    CAPTURE(at_once);
    check(learn<context>(at_once), all, 1e-5);
  }
  CHECK(learn<context>(391 * 8).peak < whole.peak - 63 * 391 * 4);  // less than one of the two
}

TEST_CASE("linear_cross_entropy: in lower precision") {
  const expected all;
  check(learn<context_in<precision::bf16>>(391 * 10), all, 3e-2);
  check(learn<context_in<precision::f16>>(391 * 10), all, 4e-3);
}

namespace {
/// Bytes that the loss of 64 rows, in this many slices, and its gradients read and write.
template <class Context>
double bytes_of_slices(index_t slices, index_t classes, bool differentiated) {
  const auto counts = std::make_shared<counting_backend>();
  const device nowhere(counts);
  Context c(nowhere);
  using matrix = extents<dyn, dyn>;
  const variable<float, matrix> x(zeros<float>(matrix{64, 16}, nowhere).state());
  const variable<float, matrix> w(zeros<float>(matrix{classes, 16}, nowhere).state());
  const auto labels = zeros<std::int64_t>(extents<dyn>{64}, nowhere);
  const auto loss = linear_cross_entropy(x, w, labels, 64 / slices * classes);
  if (differentiated) {
    tape steps(c);
    steps.backward(steps.eval(loss));
  } else {
    (void)eval(loss, c);
  }
  return counts->work().bytes;
}
}  // namespace

TEST_CASE("linear_cross_entropy: a weight that products read in lower precision is rounded once") {
  const auto of_a_slice = [](auto bytes_of) { return (bytes_of(16) - bytes_of(4)) / 12 / (10000 * 16); };
  // Per element: two products read two bytes each, and one adds to four bytes, which it reads and writes.
  CHECK(of_a_slice([](index_t n) {
          return bytes_of_slices<context_in<precision::bf16>>(n, 10000, true);
        }) == doctest::Approx(12).epsilon(0.01));
  CHECK(of_a_slice([](index_t n) {
          return bytes_of_slices<context_in<precision::bf16>>(n, 10000, false);
        }) == doctest::Approx(2).epsilon(0.01));
  CHECK(of_a_slice([](index_t n) { return bytes_of_slices<context>(n, 10000, true); }) ==
        doctest::Approx(16).epsilon(0.01));
}

TEST_CASE("linear_cross_entropy: evaluated, and on a tape that does not record") {
  const auto x = randn<float>(extents<dyn, 6>{20, 6}, {.seed = 1});
  const parameter<extents<11, 6>> w = make_parameter(extents<11, 6>{}, init::normal(1));
  tensor<std::int32_t, extents<dyn>> y(shape{1, {20}});
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 20; ++i) labels.push_back(i * 7 % 11);
  y.copy_from(labels);
  const double whole = oracle::value(cross_entropy(matmul(x, transpose(w)), y)).number(0);
  CHECK(eval(linear_cross_entropy(x, w, y, 11 * 3)).item() == doctest::Approx(whole).epsilon(1e-6));
  tape steps;
  const no_grad quiet(steps);
  CHECK(steps.eval(linear_cross_entropy(x, w, y, 11 * 3)).item() == doctest::Approx(whole).epsilon(1e-6));
  CHECK(steps.size() == 0);
}

namespace {
/// The mean loss of `rows` equal rows with logits 0 and `high`, whose labels name the lower one, and the sum
/// of the gradient of the features.
template <class T>
std::pair<double, double> narrow_loss(index_t rows, float high, index_t at_once) {
  variable<T, extents<2, 1>> w(full<T>(extents<2, 1>{}, T(0.0f)).state());
  w.copy_from(std::vector<T>{T(0.0f), T(high)});
  const variable<T, extents<dyn, 1>> x(full<T>(extents<dyn, 1>{rows, 1}, T(1.0f)).state());
  const auto labels = full<std::int64_t>(extents<dyn>{rows}, 0);
  tape steps;
  const auto loss = steps.eval(linear_cross_entropy(x, w, labels, at_once));
  steps.backward(loss);
  double sum = 0;
  for (const T g : x.grad().to_vector()) sum += static_cast<double>(g);
  return {static_cast<double>(loss.item()), sum};
}
}  // namespace

TEST_CASE("linear_cross_entropy: bf16 and f16 are added up and counted in f32") {
  for (const index_t at_once : {2, 64, 1 << 20}) {
    CAPTURE(at_once);
    // bf16 sums stop growing at 256 times an addend, counts at 256; f16 sums overflow at 65504.
    const auto [bf16_loss, bf16_slope] = narrow_loss<bfloat16>(1003, 4.0f, at_once);
    CHECK(bf16_loss == doctest::Approx(4 + std::log1p(std::exp(-4.0))).epsilon(4e-3));
    CHECK(bf16_slope == doctest::Approx(4 / (1 + std::exp(-4.0))).epsilon(8e-3));
    const auto [f16_loss, f16_slope] = narrow_loss<float16>(4099, 32.0f, at_once);
    CHECK(f16_loss == doctest::Approx(32).epsilon(5e-4));
    CHECK(f16_slope == doctest::Approx(32).epsilon(1e-3));
  }
}

namespace {
/// Six rows of data, some labels and a weight.
struct rows_and_labels {
  tensor<float, extents<dyn, 4>> x = randn<float>(extents<dyn, 4>{6, 4}, {.seed = 2});
  parameter<extents<5, 4>> w{randn<float>(extents<5, 4>{}, {.seed = 1}).state()};
  tensor<std::int64_t, extents<dyn>> y = some_labels(6);

  static tensor<std::int64_t, extents<dyn>> some_labels(index_t count) {
    return generate<std::int64_t>(extents<dyn>{count}, [](index_t i) { return i * 3 % 5; });
  }
};
constexpr index_t slices[] = {5 * 2, 1000};  // logits at once: in three slices, and in one
}  // namespace

TEST_CASE("linear_cross_entropy: as many labels as rows") {
  rows_and_labels r;
  for (const index_t at_once : slices)
    for (const index_t count : {3, 9}) {
      const auto labels = rows_and_labels::some_labels(count);
      tape steps;
      for (const bool recorded : {false, true})
        CHECK_THROWS_WITH_AS(recorded ? (void)steps.eval(linear_cross_entropy(r.x, r.w, labels, at_once))
                                      : (void)eval(linear_cross_entropy(r.x, r.w, labels, at_once)),
                             ("weft: linear_cross_entropy: there are 6 rows, but the labels have the "
                              "shape [" +
                              std::to_string(count) + "]")
                                 .c_str(),
                             shape_error);
    }
}

TEST_CASE("linear_cross_entropy: an operand that was changed in place is named") {
  for (const index_t at_once : slices) {
    rows_and_labels r;
    const auto loss = linear_cross_entropy(r.x, r.w, r.y, at_once);
    const auto always = compile(loss);
    const auto check = [&](const char* what, auto& changed) {
      const auto written = linear_cross_entropy(r.x, r.w, r.y, at_once);
      changed.mutable_data()[0] = 3;
      tape steps;
      CHECK_THROWS_WITH_AS(eval(written), doctest::Contains(what), value_error);
      CHECK_THROWS_WITH_AS((void)steps.eval(written), doctest::Contains(what), value_error);
    };
    check("weft: operand 0 of shape [6, 4] was changed in place", r.x);
    check("weft: operand 1 of shape [6] was changed in place", r.y);
    check("weft: operand 2 of shape [5, 4] was changed in place", r.w);
    CHECK(always().item() == eval(linear_cross_entropy(r.x, r.w, r.y, at_once)).item());
  }
}

TEST_CASE("linear_cross_entropy: of a value that a backward pass has consumed") {
  for (const index_t at_once : slices) {
    rows_and_labels r;
    variable<float, extents<4, 4>> v(randn<float>(extents<4, 4>{}, {.seed = 3}));
    tape steps;
    const auto h = steps.eval(matmul(r.x, v));
    steps.backward(steps.eval(sum(h)));
    const auto loss = linear_cross_entropy(h, r.w, r.y, at_once);
    CHECK_THROWS_WITH_AS((void)steps.eval(loss),
                         doctest::Contains("whose backward pass has already run through it"), usage_error);
    CHECK(steps.size() == 0);
    const no_grad quiet(steps);
    CHECK(steps.eval(loss).item() == eval(loss).item());
  }
}

TEST_CASE("linear_cross_entropy: data has no gradient, variables have the same in slices as at once") {
  std::vector<float> gradients[2];
  for (const int which : {0, 1}) {
    rows_and_labels r;
    const variable<float, extents<dyn, 4>> x(randn<float>(extents<dyn, 4>{6, 4}, {.seed = 2}));
    const auto w = randn<float>(extents<5, 4>{}, {.seed = 1});
    tape steps;
    steps.backward(steps.eval(linear_cross_entropy(r.x, r.w, r.y, slices[which])));
    CHECK_FALSE(r.x.grad().defined());
    gradients[which] = r.w.grad().to_vector();
    steps.backward(steps.eval(linear_cross_entropy(x, w, r.y, slices[which])));
    CHECK_FALSE(w.grad().defined());
    for (const float g : x.grad().to_vector()) gradients[which].push_back(g);
  }
  REQUIRE(gradients[0].size() == gradients[1].size());
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    CHECK(gradients[0][i] == doctest::Approx(gradients[1][i]).epsilon(1e-4));
}
