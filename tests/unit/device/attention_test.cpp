// SPDX-License-Identifier: MIT
// Attention in blocks gives what its definition gives, with its gradients, at sizes that fill no block.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <weft/weft.hpp>

using namespace weft;

namespace {

template <class T>
using heads = variable<T, extents<dyn, dyn, dyn, dyn>>;

/// The definition, with a matrix of scores for each head.
template <bool Causal, class T>
auto by_definition(const heads<T>& q, const heads<T>& k, const heads<T>& v) {
  const index_t positions = q.extent(1), features = q.extent(3);
  const auto hidden = generate<T>(extents<dyn, dyn>{positions, positions}, [=](index_t i) {
    return Causal && i % positions > i / positions ? -std::numeric_limits<T>::infinity() : T(0);
  });
  const auto by_head = [](const auto& x) { return permute<0, 2, 1, 3>(x); };
  const auto scores = matmul(by_head(q), transpose(by_head(k))) / std::sqrt(static_cast<T>(features)) + hidden;
  return permute<0, 2, 1, 3>(matmul(softmax(scores), by_head(v)));
}

template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double far = 0, large = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    far = std::max(far, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    large = std::max(large, std::abs(static_cast<double>(b[i])));
  }
  return far / large;
}

template <class T, bool Causal>
void compare(index_t positions, index_t features, double tolerance) {
  CAPTURE(positions); CAPTURE(features); CAPTURE(Causal);
  const auto drawn = [&](std::uint64_t seed) {
    return heads<T>(randn<T>(extents<dyn, dyn, dyn, dyn>{2, positions, 3, features}, {.seed = seed}));
  };
  heads<T> of[] = {drawn(1), drawn(2), drawn(3)};
  const auto weight = drawn(4);
  const auto outcome = [&](auto y) {
    std::vector<std::vector<T>> all{eval(y).to_vector()};
    tape steps;
    steps.backward(steps.eval(sum(y * weight)));
    for (auto& x : of) {
      all.push_back(x.grad().to_vector());
      x.zero_grad();
    }
    return all;
  };
  const auto blocks = outcome(attention<Causal>(of[0], of[1], of[2])), whole = outcome(by_definition<Causal, T>(of[0], of[1], of[2]));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CAPTURE(i);
    CHECK(distance(blocks[i], whole[i]) < tolerance);
  }
}

}  // namespace

TEST_CASE("attention in blocks is attention") {
  constexpr std::pair<index_t, index_t> sizes[] = {{1, 1}, {7, 3}, {64, 16}, {65, 20}, {130, 33}, {200, 64}};
  for (const auto& [positions, features] : sizes) {
    compare<float, true>(positions, features, 1e-5);
    compare<float, false>(positions, features, 1e-5);
    compare<double, true>(positions, features, 1e-13);
    compare<double, false>(positions, features, 1e-13);
  }
}

TEST_CASE("scores that are large, equal or not numbers") {
  const auto ones = full<float>(extents<1, 70, 1, 8>{}, 100.0f);  // all scores 28284, beyond exp
  const auto y = eval(attention<causal>(ones, ones, ones));
  for (float e : y.to_vector()) CHECK(e == doctest::Approx(100));
  auto bad = generate<float>(extents<1, 70, 1, 8>{}, [](index_t i) { return i == 40 * 8 ? NAN : 0.5f; });
  const auto z = eval(attention<causal>(bad, ones, ones)).to_vector();  // query 40
  for (std::size_t i = 0; i < z.size(); ++i) CHECK(std::isnan(z[i]) == (i / 8 == 40));
}
