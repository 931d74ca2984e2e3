// SPDX-License-Identifier: MIT
// L-BFGS: quadratic functions with known minimum, refused settings, functions that throw or are not finite.
// agree/optimizers_test compares its steps with PyTorch's.
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

#include <weft/optim/lbfgs.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

template <element T>
struct point {
  parameter<extents<dyn>, T> a;
  parameter<extents<2, 3>, T> b{ones<T>(extents<2, 3>{})};
};
template <element T>
point<T> far(index_t n) {
  return {parameter<extents<dyn>, T>(full<T>(extents<dyn>{n}, T(3)))};
}

/// An ill-conditioned function with minimum -1 at a = (0, 1, ...), b = 2.
template <element T>
double value_of(const point<T>& p) {
  tape steps;
  const auto place = arange<T>(p.a.size());
  const auto loss =
      steps.eval(sum(square(p.a - place) * (place * T(40) + T(1))) + sum(square(p.b - T(2))) * T(0.1) - T(1));
  steps.backward(loss);
  return static_cast<double>(loss.item());
}

}  // namespace

TEST_CASE_TEMPLATE("L-BFGS: the minimum of a quadratic function", T, float, double) {
  for (const bool search : {false, true})
    for (const index_t n : {1, 2, 7, 60}) {
      CAPTURE(search);
      CAPTURE(n);
      point<T> p = far<T>(n);
      lbfgs optimizer{.lr = search ? 1.0 : 0.9, .max_iter = 60, .line_search = search};
      const double first = optimizer.step(p, [&] { return value_of(p); });
      CHECK(first > 0);
      for (int i = 0; i < 3; ++i) optimizer.step(p, [&] { return value_of(p); });
      const double near = std::is_same_v<T, float> ? 1e-3 : 1e-5;
      for (index_t i = 0; i < n; ++i) CHECK(std::abs(double(p.a(i)) - double(i)) < near);
      for (const T x : p.b.to_vector()) CHECK(std::abs(double(x) - 2) < 10 * near);
      CHECK(p.a.state()->grad == nullptr);
    }
}

TEST_CASE("L-BFGS: settings bound the evaluations and the history") {
  point<float> p = far<float>(7);
  int calls = 0;
  const auto counted = [&] { return ++calls, value_of(p); };
  lbfgs optimizer{.max_iter = 4, .history_size = 2, .line_search = true};
  optimizer.step(p, counted);
  CHECK(calls <= 5 + 1);  // 5 / 4 of max_iter, and one more in a line search that had begun
  for (int i = 0; i < 5; ++i) optimizer.step(p, counted);
  CHECK(optimizer.corrections.size() == 2);
  calls = 0;
  lbfgs fixed{.lr = 1e-3, .max_iter = 3, .history_size = 0};
  fixed.step(p, counted);
  CHECK(calls == 3);  // none after the last update
  CHECK(fixed.corrections.empty());
  calls = 0;
  const auto before = p.a.to_vector();
  lbfgs satisfied{.tolerance_grad = 1e9};
  satisfied.step(p, counted);
  CHECK(calls == 1);
  CHECK(p.a.to_vector() == before);
}

TEST_CASE("L-BFGS: parameters without a gradient stay, tied ones are one") {
  struct model {
    parameter<extents<2>> a{from<float>(extents<2>{}, {3, 4})};
    parameter<extents<2>> idle{from<float>(extents<2>{}, {5, 6})};
    parameter<extents<2>> again = a;
  } m;
  lbfgs optimizer{.line_search = true};
  optimizer.step(m, [&] {
    tape steps;
    const auto loss = steps.eval(sum(square(m.a)) + sum(square(m.again - 2.f)));
    steps.backward(loss);
    return loss.item();
  });
  for (const float x : m.a.to_vector()) CHECK(std::abs(x - 1) < 1e-4f);
  CHECK(m.idle.to_vector() == std::vector<float>{5, 6});
  CHECK(optimizer.direction->extents.size() == 4);
}

TEST_CASE("L-BFGS: what it refuses") {
  lbfgs optimizer;
  point<float> p = far<float>(2);
  CHECK_THROWS_WITH_AS((lbfgs{.lr = -1}.step(p, [&] { return value_of(p); })),
                       "weft: lbfgs: lr is -1, expected 0 or more", value_error);
  CHECK_THROWS_AS((lbfgs{.max_iter = -1}.step(p, [&] { return value_of(p); })), value_error);
  CHECK_THROWS_AS((lbfgs{.tolerance_grad = std::nan("")}.step(p, [&] { return value_of(p); })), value_error);
  CHECK_THROWS_AS(optimizer.step(p, [] { return 1.0; }), usage_error);  // without a backward pass
  struct mixed {
    parameter<extents<2>> a{ones<float>(extents<2>{})};
    parameter<extents<2>, double> b{ones<double>(extents<2>{})};
  } two_types;
  CHECK_THROWS_WITH_AS(optimizer.step(two_types, [] { return 1.0; }),
                       "weft: lbfgs: parameter b is f64, not f32: parameters must be all f32 or all f64",
                       value_error);
  struct {
    parameter<extents<2>, bfloat16> a{ones<bfloat16>(extents<2>{})};
  } narrow;
  CHECK_THROWS_AS(optimizer.step(narrow, [] { return 1.0; }), value_error);
  optimizer.step(p, [&] { return value_of(p); });
  point<float> other = far<float>(2);
  CHECK_THROWS_WITH_AS(optimizer.step(other, [&] { return value_of(other); }),
                       "weft: lbfgs: the history belongs to another model: use an optimizer for each model",
                       value_error);
  point<double> wide = far<double>(2);
  CHECK_THROWS_AS(optimizer.step(wide, [&] { return value_of(wide); }), value_error);
}

TEST_CASE("L-BFGS: a function that throws, or is not finite far away") {
  point<float> p = far<float>(3);
  lbfgs optimizer{.line_search = true};
  int calls = 0;
  CHECK_THROWS_AS(optimizer.step(p,
                                 [&]() -> double {
                                   if (++calls == 2) throw std::runtime_error("no data");
                                   return value_of(p);
                                 }),
                  std::runtime_error);
  CHECK(p.a.to_vector() == std::vector<float>{3, 3, 3});  // not those of the search
  CHECK(!optimizer.direction);
  for (int i = 0; i < 4; ++i) optimizer.step(p, [&] { return value_of(p); });
  CHECK(std::abs(p.a(2) - 2) < 1e-3f);
  struct {
    parameter<extents<2>> x{from<float>(extents<2>{}, {0, 1})};
  } root;
  lbfgs{.line_search = true}.step(root, [&] {
    tape steps;
    const auto loss = steps.eval(sum(sqrt(root.x)));  // whose slope at 0 is infinite: a step of length 0
    steps.backward(loss);
    return loss.item();
  });
  CHECK(root.x.to_vector() == std::vector<float>{0, 1});
  // log is NaN if a step is too long: the search backtracks
  struct {
    parameter<extents<1>> x{from<float>(extents<1>{}, {0.01f})};
  } m;
  lbfgs careful{.line_search = true};
  for (int i = 0; i < 3; ++i)
    careful.step(m, [&] {
      tape steps;
      const auto loss = steps.eval(sum(m.x - log(m.x)));
      steps.backward(loss);
      return loss.item();
    });
  CHECK(std::abs(m.x(0) - 1) < 1e-3f);
}

TEST_CASE("L-BFGS: any number of iterations") {
  point<double> p = far<double>(3), q = far<double>(3);
  lbfgs some{.max_iter = 500}, many{.max_iter = 500'000'000};
  const auto train = [](point<double>& x, lbfgs& optimizer) {
    int calls = 0;
    optimizer.step(x, [&] { return ++calls, value_of(x); });
    return calls;
  };
  const int calls = train(p, some);
  CHECK(calls > 3);
  CHECK(train(q, many) == calls);
  CHECK(p.a.to_vector() == q.a.to_vector());
}
