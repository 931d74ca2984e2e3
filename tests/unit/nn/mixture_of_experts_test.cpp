// SPDX-License-Identifier: MIT
// A mixture of experts against plain loops over tokens, and its gradients against difference quotients of
// these loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <weft/nn/mixture_of_experts.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

using numbers = std::vector<double>;
using named_numbers = std::map<std::string, numbers>;

numbers numbers_of(const tensor_state& t) {
  std::vector<float> all(static_cast<std::size_t>(t.extents.size()));
  t.where->download(all.data(), t.memory.data(), t.bytes());
  return {all.begin(), all.end()};
}

/// y = W x + b, W [y.size(), x.size()].
numbers mapped(const numbers& w, const numbers* b, const numbers& x) {
  numbers y(w.size() / x.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = b ? (*b)[i] : 0;
    for (std::size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
  }
  return y;
}

/// An expert [C] -> [C] whose parameter names begin with `path`.
using plain_expert =
    std::function<numbers(const named_numbers& all, const std::string& path, const numbers&)>;

numbers two_layers(const named_numbers& all, const std::string& path, const numbers& x) {
  numbers h = mapped(all.at(path + "in.weight"), &all.at(path + "in.bias"), x);
  for (double& v : h) v *= 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
  return mapped(all.at(path + "out.weight"), &all.at(path + "out.bias"), h);
}

/// A mixture's results for tokens, computed by loops.
struct plain_mixture {
  bool renormalises;
  plain_expert expert;
  std::size_t experts = 0, per_row = 0;
  double capacity_factor = 0;

  struct result {
    numbers y;
    double balance = 0, z = 0;
    std::set<std::size_t> used{};  // experts that compute a token
    std::size_t dropped = 0;       // choices
  };

  result operator()(const named_numbers& all, const numbers& x, std::size_t width) const {
    const std::size_t tokens = x.size() / width;
    result r{numbers(x.size(), 0.0)};
    std::vector<numbers> probabilities;
    std::vector<std::vector<std::size_t>> choices;
    numbers share(experts, 0.0), mean(experts, 0.0);
    for (std::size_t n = 0; n < tokens; ++n) {
      numbers p = mapped(all.at("router.weight"), nullptr, token(x, n, width));
      double sum = 0;
      for (double& v : p) sum += v = std::exp(v);
      r.z += std::log(sum) * std::log(sum) / static_cast<double>(tokens);
      for (double& v : p) v /= sum;
      std::vector<std::size_t> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](auto a, auto b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
      order.resize(per_row);
      for (const std::size_t e : order) share[e] += 1 / static_cast<double>(tokens * per_row);
      for (std::size_t e = 0; e < experts; ++e) mean[e] += p[e] / static_cast<double>(tokens);
      probabilities.push_back(p);
      choices.push_back(order);
    }
    for (std::size_t e = 0; e < experts; ++e) r.balance += static_cast<double>(experts) * share[e] * mean[e];
    const double most = capacity_factor > 0
                            ? std::ceil(capacity_factor * static_cast<double>(tokens * per_row) /
                                        static_cast<double>(experts))
                            : 1e9;
    std::vector<double> taken(experts, 0.0);
    for (std::size_t j = 0; j < per_row; ++j)
      for (std::size_t n = 0; n < tokens; ++n) {
        const std::size_t e = choices[n][j];
        if (taken[e] >= most) {
          ++r.dropped;
          continue;
        }
        ++taken[e];
        r.used.insert(e);
        double weight = probabilities[n][e], all_weights = 0;
        for (const std::size_t other : choices[n]) all_weights += probabilities[n][other];
        if (renormalises) weight /= all_weights;
        const numbers y = expert(all, "experts." + std::to_string(e) + ".", token(x, n, width));
        for (std::size_t c = 0; c < width; ++c) r.y[n * width + c] += weight * y[c];
      }
    return r;
  }
  static numbers token(const numbers& x, std::size_t n, std::size_t width) {
    const auto at = x.begin() + static_cast<std::ptrdiff_t>(n * width);
    return {at, at + static_cast<std::ptrdiff_t>(width)};
  }
};

/// The loss whose gradients are compared: a weighted sum of y, and the auxiliary losses.
double loss_of(const plain_mixture::result& r) {
  double loss = 0.3 * r.balance + 0.2 * r.z;
  for (std::size_t i = 0; i < r.y.size(); ++i) loss += std::cos(static_cast<double>(i)) * r.y[i];
  return loss;
}

bool near(double a, double b) { return std::abs(a - b) <= 2e-4 * std::max(1.0, std::abs(b)); }

/// Compares the value and all gradients of `moe` at `x`.
template <class Moe, class X>
plain_mixture::result check_mixture(Moe& moe, const X& x, plain_mixture plain) {
  named_numbers all;
  for (const auto& [name, p] : named_parameters(moe)) all[name] = numbers_of(*p);
  const numbers tokens = numbers_of(*x.state());
  const auto width = static_cast<std::size_t>(x.extents().last());
  plain.experts = moe.experts.size();
  plain.per_row = static_cast<std::size_t>(moe.choice.per_row);
  plain.capacity_factor = moe.choice.capacity_factor;
  const plain_mixture::result expected = plain(all, tokens, width);

  std::vector<float> cosines;
  for (index_t i = 0; i < x.size(); ++i)
    cosines.push_back(static_cast<float>(std::cos(static_cast<double>(i))));
  tensor<float, extents_of<X>> weights(x.extents());
  weights.copy_from(cosines);
  const auto loss = sum(moe(x) * weights) + 0.3f * moe.balance_loss(x) + 0.2f * moe.z_loss(x);
  const auto y = eval(moe(x)).to_vector();
  REQUIRE(y.size() == expected.y.size());
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(near(y[i], expected.y[i]));
  tape steps;
  const auto value = steps.eval(loss);
  CHECK(near(value.item(), loss_of(expected)));
  CHECK(eval(loss).item() == value.item());
  steps.backward(value);

  const auto quotient = [&](numbers& of, std::size_t i, const numbers& at) {
    constexpr double h = 1e-6;
    const double before = of[i];
    of[i] = before + h;
    const double up = loss_of(plain(all, at, width));
    of[i] = before - h;
    const double down = loss_of(plain(all, at, width));
    of[i] = before;
    return (up - down) / (2 * h);
  };
  for (const auto& [name, p] : named_parameters(moe)) {
    CAPTURE(name);
    REQUIRE(p->grad);
    const numbers g = numbers_of(*p->grad);
    for (std::size_t i = 0; i < g.size(); ++i) CHECK(near(g[i], quotient(all[name], i, tokens)));
  }
  numbers moved = tokens;
  const numbers g = numbers_of(*x.grad().state());
  for (std::size_t i = 0; i < g.size(); ++i) CHECK(near(g[i], quotient(moved, i, moved)));
  for (const auto& [name, p] : named_parameters(moe)) p->grad.reset();
  return expected;
}

using tokens_of_4 = variable<float, extents<dyn, 4>>;
tokens_of_4 random_tokens(index_t n, std::uint64_t seed = 1) {
  return tokens_of_4(randn<float>(extents<dyn, 4>{n, 4}, {.seed = seed}));
}

using plain_moe = mixture_of_experts<4, feed_forward<4, 6>>;
plain_moe small(index_t experts, const expert_choice& choice) {
  return plain_moe::create(4, experts, choice, [] { return feed_forward<4, 6>(); });
}

/// A custom expert.
struct bent {
  linear<4, 4> map;
  auto operator()(expression auto x) const { return tanh(map(x)); }
};

}  // namespace

TEST_CASE("without dropping: values and all gradients are those of plain loops") {
  for (const index_t k : {1, 2, 5}) {
    CAPTURE(k);
    auto moe = small(5, {.per_row = k});
    const auto r = check_mixture(moe, random_tokens(11), {.renormalises = true, .expert = two_layers});
    CHECK(r.dropped == 0);
  }
}

TEST_CASE("experts of a user, probabilities as they are, tokens of two dims") {
  using switch_moe = mixture_of_experts<4, bent, false>;
  auto moe = switch_moe::create(4, 3, {.per_row = 1}, [] { return bent(); });
  const plain_expert plain = [](const named_numbers& all, const std::string& path, const numbers& x) {
    numbers y = mapped(all.at(path + "map.weight"), &all.at(path + "map.bias"), x);
    for (double& v : y) v = std::tanh(v);
    return y;
  };
  const variable<float, extents<dyn, 3, 4>> x(randn<float>(extents<dyn, 3, 4>{2, 3, 4}));
  check_mixture(moe, x, {.renormalises = false, .expert = plain});
}

TEST_CASE("capacity: the rows that come last are dropped, first choices before second ones") {
  const std::pair<double, index_t> capacities[] = {
      {0.4, 13}, {1.0, 13}, {1.0, 14}};  // 2.6, 6.5, exactly 7 rows
  for (const auto& [factor, tokens] : capacities) {
    CAPTURE(factor);
    auto moe = small(4, {.per_row = 2, .capacity_factor = factor});
    const auto r = check_mixture(moe, random_tokens(tokens), {.renormalises = true, .expert = two_layers});
    CHECK(r.dropped > 0);
  }
}

TEST_CASE("an expert without tokens has gradients of zeros; no tokens at all") {
  auto moe = small(4, {.per_row = 2});
  auto rows = moe.router.weight.to_vector();
  for (std::size_t c = 0; c < 4; ++c) rows[4 * 2 + c] = -30;  // of expert 2, for positive tokens
  moe.router.weight.copy_from(rows);
  const tokens_of_4 x(generate<float>(
      extents<dyn, 4>{9, 4}, [](index_t i) { return 0.5f + 0.01f * static_cast<float>(i * i % 97); }));
  const auto r = check_mixture(moe, x, {.renormalises = true, .expert = two_layers});
  CHECK_FALSE(r.used.contains(2));
  const auto none = random_tokens(0);
  tape steps;
  steps.backward(steps.eval(sum(moe(none))));
  CHECK(eval(moe(none)).extents() == shape{2, {0, 4}});
  for (const auto& [name, p] : named_parameters(moe)) {
    CAPTURE(name);
    REQUIRE(p->grad);
    for (const double g : numbers_of(*p->grad)) CHECK(g == 0);
  }
}

namespace {
struct block {
  layer_normalization<4> norm;
  plain_moe moe = small(3, {.per_row = 2});
  auto operator()(expression auto x) const {
    auto y = shared(x);
    return y + moe(norm(y));
  }
};
}  // namespace

TEST_CASE("in repeated blocks, recomputed, without a tape: the same") {
  struct {
    repeat<block> blocks{std::vector<block>(2)};
  } model;
  auto x = random_tokens(7);
  const auto weights = randn<float>(extents<dyn, 4>{7, 4}, {.seed = 9});
  const auto gradients = [&](auto loss, context& c) {
    for (const auto& p : parameters_of(model)) p->grad.reset();
    x.zero_grad();
    tape steps(c);
    steps.backward(steps.eval(loss));
    std::vector<numbers> all{numbers_of(*x.grad().state())};
    for (const auto& p : parameters_of(model)) all.push_back(numbers_of(*p->grad));
    return all;
  };
  const auto in_repeat = sum(model.blocks(x) * weights);
  const auto written_out = sum(model.blocks.blocks[1](model.blocks.blocks[0](x)) * weights);
  context plain, recomputing;
  recomputing.recompute_programs = context::every_program;
  const auto expected = gradients(in_repeat, plain);
  CHECK(gradients(in_repeat, recomputing) == expected);
  const auto other = gradients(written_out, plain);
  for (std::size_t t = 0; t < expected.size(); ++t)
    for (std::size_t i = 0; i < expected[t].size(); ++i) CHECK(near(other[t][i], expected[t][i]));
  tape steps;
  const no_grad quiet(steps);
  CHECK(steps.eval(in_repeat).item() == eval(in_repeat).item());
  CHECK(steps.size() == 0);
}

namespace {
struct block_with_losses {
  plain_moe moe = small(3, {.per_row = 2});
  auto operator()(expression auto x) const { return moe.with_losses(x, 0.5f, 0.25f); }
};
}  // namespace

TEST_CASE("losses of a layer in a repeat: the gradients of a sum with them, the value without") {
  struct {
    repeat<block_with_losses> blocks{std::vector<block_with_losses>(1)};
  } model;
  const plain_moe& moe = model.blocks.blocks[0].moe;
  auto x = random_tokens(7);
  const auto weights = randn<float>(extents<dyn, 4>{7, 4}, {.seed = 9});
  const auto gradients = [&](auto loss) {
    for (const auto& p : parameters_of(model)) p->grad.reset();
    x.zero_grad();
    context c;
    c.loss_weight = 3;
    c.loss_scale = 4;
    tape steps(c);
    const auto value = steps.eval(loss);
    steps.backward(value);
    std::vector<numbers> all{numbers_of(*x.grad().state()), {value.item()}};
    for (const auto& p : parameters_of(model)) all.push_back(numbers_of(*p->grad));
    return all;
  };
  const auto seen = gradients(sum(model.blocks(x) * weights));
  const auto plain = gradients(sum(moe(x) * weights));
  const auto added = gradients(sum(moe(x) * weights) + 0.5f * moe.balance_loss(x) + 0.25f * moe.z_loss(x));
  CHECK(seen[1] == plain[1]);
  CHECK(seen[0] != plain[0]);
  for (std::size_t t = 0; t < seen.size(); ++t)
    for (std::size_t i = 0; i < seen[t].size() && t != 1; ++i) CHECK(near(seen[t][i], added[t][i]));
}

TEST_CASE("a mixture behind detach has no gradients, and gives none to what stands before it") {
  const auto moe = small(3, {.per_row = 2});
  variable<float, extents<4>> before(full<float>(extents<4>{}, 2.0f)), after(full<float>(extents<4>{}, 1.0f));
  tape steps;
  const auto value = steps.eval(moe(random_tokens(7) * before));
  steps.backward(steps.eval(sum(detach(value) * after)));
  for (const auto& p : parameters_of(moe)) CHECK(!p->grad);
  CHECK(!before.state()->grad);
  CHECK(after.state()->grad);
}

TEST_CASE("mistakes are named") {
  CHECK_THROWS_WITH_AS(small(3, {.per_row = 4}),
                       "weft: mixture_of_experts: cannot choose 4 of 3 experts for each token", value_error);
  CHECK_THROWS_WITH_AS(small(3, {.capacity_factor = -1}),
                       "weft: mixture_of_experts: the capacity factor must be 0 or more, not -1",
                       value_error);
  using narrowing = mixture_of_experts<4, linear<4, 3>>;
  const auto narrow = narrowing::create(4, 2, {.per_row = 2}, [] { return linear<4, 3>(); });
  context c;
  c.begin_step(3);
  const std::uint64_t step = c.randomness().step;
  CHECK_THROWS_WITH_AS(eval(narrow(random_tokens(5)), c),
                       "weft: experts: expert 0 returned [5, 3] for [5, 4]", shape_error);
  CHECK(c.randomness().step == step);  // and not that of an expert
  auto moe = small(3, {.per_row = 2});
  moe.experts.pop_back();
  CHECK_THROWS_WITH_AS(eval(moe(random_tokens(2))),
                       "weft: experts: there are 2 experts for probabilities of shape [2, 3]", shape_error);
}

TEST_CASE("with_loss: the loss of a value that is used twice is counted once") {
  variable<float, extents<3>> w(full<float>(extents<3>{}, 2.0f)), x(full<float>(extents<3>{}, 1.0f));
  auto y = with_loss(x * 2.0f, sum(w));
  tape steps;
  steps.backward(steps.eval(sum(y + y * y)));
  CHECK(w.grad().to_vector() == std::vector<float>{1, 1, 1});
  CHECK(x.grad().to_vector() == std::vector<float>{10, 10, 10});  // 2 (1 + 2 y) of y = 2
}

TEST_CASE("with_loss: data has no gradient, and the loss has one if it stands beside data") {
  variable<float, extents<3>> w(full<float>(extents<3>{}, 2.0f));
  const auto data = full<float>(extents<3>{}, 1.0f);
  const auto constant = full<float>(extents<>{}, 3.0f);
  tape steps;
  steps.backward(steps.eval(sum(with_loss(w, constant))));
  CHECK(w.grad().to_vector() == std::vector<float>{1, 1, 1});
  CHECK_FALSE(constant.grad().defined());
  w.zero_grad();
  steps.backward(steps.eval(sum(with_loss(data, sum(w * w)))));
  CHECK(w.grad().to_vector() == std::vector<float>{4, 4, 4});
  CHECK_FALSE(data.grad().defined());
}

TEST_CASE("with_loss: a consumed or changed operand is refused") {
  variable<float, extents<3>> w(full<float>(extents<3>{}, 2.0f)), v(full<float>(extents<3>{}, 2.0f));
  tape steps;
  const auto h = steps.eval(w * 2.0f);
  const auto loss = steps.eval(sum(h));
  steps.backward(loss);
  const char* const consumed = "whose backward pass has already run through it";
  CHECK_THROWS_WITH_AS((void)steps.eval(with_loss(h, sum(v))), doctest::Contains(consumed), usage_error);
  CHECK_THROWS_WITH_AS((void)steps.eval(with_loss(v, loss)), doctest::Contains(consumed), usage_error);
  CHECK_THROWS_WITH_AS(steps.remember(full<float>(extents<3>{}, 1.0f).state(), {h.state()},
                                      [](const auto&) { return tensor_list(1); }),
                       doctest::Contains(consumed), usage_error);
  CHECK(eval(with_loss(h, loss)).to_vector() == h.to_vector());
  const auto written = with_loss(w, sum(v) * 0.5f);
  auto constant = full<float>(extents<>{}, 3.0f);
  const auto beside = with_loss(v, constant);
  w.copy_from({1, 2, 3});
  constant.copy_from({1});
  CHECK_THROWS_WITH_AS((void)eval(written), doctest::Contains("operand 0 of shape [3] was changed in place"),
                       value_error);
  CHECK_THROWS_WITH_AS((void)eval(beside), doctest::Contains("operand 1 of shape [] was changed in place"),
                       value_error);
}

TEST_CASE("an unlimited capacity factor drops nothing") {
  const auto x = random_tokens(7);
  auto moe = small(3, {.per_row = 2});
  const auto all = eval(moe(x)).to_vector();
  moe.choice.capacity_factor = std::numeric_limits<double>::infinity();
  CHECK(eval(moe(x)).to_vector() == all);
}
