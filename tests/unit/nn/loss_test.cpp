// SPDX-License-Identifier: MIT
// A head with its loss, by slices: what the whole gives, in less memory.
#include <doctest/doctest.h>

#include <weft/nn/linear_cross_entropy.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

struct net {
  embedding_table<> table;  // the head is its transpose
  linear<> in;
  auto features(expression auto tokens) const { return gelu(in(table(tokens))); }
};

using tokens = tensor<std::int64_t, extents<dyn, dyn>>;

struct outcome {
  float loss = 0;
  std::vector<std::vector<float>> gradients;
  std::size_t peak = 0;
};

/// Two micro-batches, of which the second has labels that do not count. 0: all logits at once, by hand.
template <class Context>
outcome learn(index_t at_once) {
  const device where(std::make_shared<cpu::cpu_backend>(1));
  constexpr index_t words = 391, width = 8;
  net model{embedding_table<>::create(words, width, where), linear<>::create(width, width, where)};
  initialize(model, 3);
  Context c(where);
  c.loss_scale = 64;
  outcome result;
  for (int batch = 0; batch < 2; ++batch) {
    tokens x(shape{2, {7, 9}}, where), y(shape{2, {7, 9}}, where);
    std::vector<std::int64_t> in, out;
    for (std::int64_t i = 0; i < 63; ++i) {
      in.push_back(i * 31 % words);
      out.push_back(batch == 1 && i % 4 == 0 ? ignored_label : (i * 57 + 5) % words);
    }
    x.copy_from(in);
    y.copy_from(out);
    tape steps(c);
    const auto loss = [&] {
      if (at_once == 0) return steps.eval(cross_entropy(matmul(model.features(x), transpose(model.table.weight)), y));
      return steps.eval(linear_cross_entropy(model.features(x), model.table.weight, y, at_once));
    }();
    result.loss += loss.item();
    steps.backward(loss);
  }
  result.peak = where.memory().figures().peak;
  for (const auto& p : parameters_of(model)) {
    std::vector<float> v(static_cast<std::size_t>(p->extents.size()));
    detail::download_to(*p->grad, v.data());
    result.gradients.push_back(v);
  }
  return result;
}

double difference(const outcome& a, const outcome& b) {
  double worst = std::abs(a.loss - b.loss) / std::abs(b.loss);
  for (std::size_t p = 0; p < a.gradients.size(); ++p) {
    double largest = 0, apart = 0;
    for (std::size_t i = 0; i < a.gradients[p].size(); ++i) {
      largest = std::max(largest, std::abs(double(b.gradients[p][i])));
      apart = std::max(apart, std::abs(double(a.gradients[p][i]) - double(b.gradients[p][i])));
    }
    worst = std::max(worst, apart / largest);
  }
  return worst;
}

}  // namespace

TEST_CASE("linear_cross_entropy: by slices, the same value and gradients") {
  const outcome whole = learn<context>(0);
  for (index_t at_once : {1, 391 * 10, 391 * 62, 391 * 63, 1 << 20}) {
    CAPTURE(at_once);
    const outcome part = learn<context>(at_once);
    CHECK(part.gradients.size() == 3);
    CHECK(difference(part, whole) < 2e-6);
  }
  CHECK(learn<context>(391 * 8).peak < whole.peak - 63 * 391 * 4);  // less than one of the two
}

TEST_CASE("linear_cross_entropy: in lower precision") {
  const outcome whole = learn<context>(0);
  CHECK(difference(learn<context_in<precision::bf16>>(391 * 10), whole) < 3e-2);
  CHECK(difference(learn<context_in<precision::f16>>(391 * 10), whole) < 4e-3);
}

TEST_CASE("linear_cross_entropy: evaluated, and on a tape that does not record") {
  const auto x = randn<float>(extents<dyn, 6>{20, 6}, {.seed = 1});
  const parameter<extents<11, 6>> w = make_parameter(extents<11, 6>{}, init::normal(1));
  tensor<std::int32_t, extents<dyn>> y(shape{1, {20}});
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 20; ++i) labels.push_back(i * 7 % 11);
  y.copy_from(labels);
  const float whole = eval(cross_entropy(matmul(x, transpose(w)), y)).item();
  CHECK(eval(linear_cross_entropy(x, w, y, 11 * 3)).item() == doctest::Approx(whole).epsilon(1e-6));
  tape steps;
  const no_grad quiet(steps);
  CHECK(steps.eval(linear_cross_entropy(x, w, y, 11 * 3)).item() == doctest::Approx(whole).epsilon(1e-6));
  CHECK(steps.size() == 0);
}
