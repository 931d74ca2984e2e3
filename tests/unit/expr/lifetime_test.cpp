// SPDX-License-Identifier: MIT
// Code with `auto` for which expression templates are known to crash: under the address sanitizer, nothing
// dangles, and no destroyed value is read.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include <weft/weft.hpp>

using namespace weft;

namespace {

using matrix = tensor<float, extents<2, 2>>;
matrix numbers(float first) {
  return from(extents<2, 2>{}, std::vector<float>{first, first + 1, first + 2, first + 3});
}

/// xtensor #1366, #1883 and its own example: locals behind a returned expression.
template <expression X>
auto log_softmax_of(const X& x) {
  auto shifted = x - amax(x, dims<-1>, keepdim);
  auto normal = log(sum(exp(shifted), dims<-1>, keepdim));
  return shifted - normal;
}

/// Eigen's pitfall: products and sums of temporaries kept by `auto`.
auto transposed_sum(float a, float b) {
  auto sum_of_both = numbers(a) + numbers(b);
  return transpose(sum_of_both);
}

struct keeps_expression {
  decltype(relu(matrix() + matrix())) e;
};

}  // namespace

TEST_CASE("an expression of locals is returned and still holds them") {
  const auto y = eval(log_softmax_of(numbers(1))).to_vector();
  CHECK(std::exp(y[0]) + std::exp(y[1]) == doctest::Approx(1));
  CHECK(eval(transposed_sum(1, 10)).to_vector() == std::vector<float>{11, 15, 13, 17});
}

TEST_CASE("an evaluated temporary inside an expression lives as long as the expression") {
  auto e = transpose(eval(numbers(1) + numbers(2)));  // Eigen: ((A + B).eval()).transpose()
  CHECK(eval(e).to_vector() == std::vector<float>{3, 7, 5, 9});
  auto twice = eval(numbers(1)) * 2.0f + eval(numbers(3));  // Fastor #95
  CHECK(eval(twice).to_vector() == std::vector<float>{5, 8, 11, 14});
}

TEST_CASE("a temporary scalar, a view of a view, a conditional: all by value") {
  auto scaled = [] {
    float factor = 3;
    return numbers(1) * factor;  // xtensor #1932: a reference to a local number
  }();
  CHECK(eval(scaled).to_vector() == std::vector<float>{3, 6, 9, 12});
  auto corner = slice<0, 0, 1>(slice<1, 1, 2>(numbers(1)));
  CHECK(eval(corner).to_vector() == std::vector<float>{2});
  const bool first = true;
  auto chosen = first ? numbers(1) : numbers(5);
  CHECK(eval(chosen + 0.0f).to_vector()[0] == 1);
}

TEST_CASE("expressions are stored, copied, moved and assigned like any value") {
  std::optional<keeps_expression> kept;
  {
    const matrix a = numbers(-1), b = numbers(0);
    kept = keeps_expression{relu(a + b)};
  }
  const keeps_expression copy = *kept;
  kept.reset();
  CHECK(eval(copy.e).to_vector() == std::vector<float>{0, 1, 3, 5});
  std::vector<decltype(numbers(0) + numbers(0))> several;
  for (int i = 0; i < 20; ++i) several.push_back(numbers(static_cast<float>(i)) + numbers(1));  // reallocates
  CHECK(eval(several[7]).to_vector()[0] == 8);
}

TEST_CASE("assigning an expression of a tensor to it reads all of it first") {
  auto a = numbers(1);
  a = eval(transpose(a));  // Eigen: a = a.transpose() is an aliasing bug
  CHECK(a.to_vector() == std::vector<float>{1, 3, 2, 4});
  a = eval(matmul(a, a));
  CHECK(a.to_vector() == std::vector<float>{7, 15, 10, 22});
}

TEST_CASE("random values are drawn once and stay") {
  auto r = rand<float>(extents<4>{});
  auto e = r - r;  // xtensor: a lazy generator gives other numbers at each look
  CHECK(eval(e).to_vector() == std::vector<float>(4, 0.0f));
}

TEST_CASE("a tracked value outlives its tape, a tape its operands' names") {
  std::optional<tensor<float, extents<>, true>> loss;
  variable<float, extents<2, 2>> w(numbers(1));
  {
    tape steps;
    {
      auto x = numbers(2);
      auto h = steps.eval(w * x);
      loss = steps.eval(sum(h * h));
    }
    steps.backward(*loss);
  }
  CHECK(loss->item() == 4 + 36 + 144 + 400);
  CHECK(w.grad().to_vector() == std::vector<float>{8, 36, 96, 200});
}
