// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/weft.hpp>

#include "../../throws_with.hpp"

using namespace weft;
using weft::test::throws_with;

namespace {
using scalar_variable = variable<double, extents<>>;
scalar_variable number(double x) { return scalar_variable(full<double>(extents<>{}, x)); }
}  // namespace

TEST_CASE("tape: loops and branches at run time") {
  auto x = number(1.5);
  tape steps;
  auto y = steps.eval(x * 1.0);
  for (int i = 0; i < 5; ++i) y = i % 2 ? steps.eval(y * x) : steps.eval(sin(y));
  steps.backward(y);
  const double h = 1e-6;
  const auto f = [](double v) {
    double z = v;
    for (int i = 0; i < 5; ++i) z = i % 2 ? z * v : std::sin(z);
    return z;
  };
  CHECK(x.grad().item() == doctest::Approx((f(1.5 + h) - f(1.5 - h)) / (2 * h)).epsilon(1e-6));
}

TEST_CASE("tape: a million entries without recursion") {
#if WEFT_SANITIZED
  const int entries = 100'000;  // sanitizers keep much more for each
#else
  const int entries = 1'000'000;
#endif
  auto x = number(1.0);
  tape steps;
  auto y = steps.eval(x * 1.0);
  for (int i = 0; i < entries; ++i) y = steps.eval(y + 1e-5);
  steps.backward(y);
  CHECK(x.grad().item() == 1);
}

TEST_CASE("tape: a diamond of 2^40 paths visits each entry once") {
  auto x = number(1.0);
  tape steps;
  auto y = steps.eval(x * 1.0);
  for (int i = 0; i < 40; ++i) y = steps.eval(y + y);
  steps.backward(y);
  CHECK(x.grad().item() == std::ldexp(1.0, 40));
}

TEST_CASE("tape: gradients accumulate until they are used up") {
  auto x = number(3.0);
  for (int i = 0; i < 2; ++i) {
    tape steps;
    steps.backward(steps.eval(x * x));
  }
  CHECK(x.grad().item() == 12);
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("tape: a value that backward needs and that was changed is named") {
  auto x = number(3.0);
  tape steps;
  auto y = steps.eval(x * x);
  x.copy_from(std::vector<double>{4.0});
  CHECK_THROWS_WITH_AS(steps.backward(y),
                       doctest::Contains("of shape [] was changed in place after forward read it"),
                       value_error);
}

TEST_CASE("tape: a backward pass that fails leaves nothing on the tape") {
  auto w = number(2), u = number(3);
  tape steps;
  for (const int failing : {0, 1, 2}) {  // a hook of a value, of a parameter, a changed operand
    bool fails = true;
    const auto step = [&] {
      auto a = steps.eval(w * w);
      auto b = steps.eval(u * u);
      const auto fail = [&](auto) {
        if (std::exchange(fails, false)) throw std::runtime_error("a hook");
      };
      if (failing == 0) b.on_gradient(fail);
      if (failing == 1) u.on_gradient(fail);
      if (failing == 2 && std::exchange(fails, false)) u.copy_from(std::vector<double>{3});
      steps.backward(steps.eval(a + b));
    };
    CHECK_THROWS(step());
    CHECK(steps.size() == 0);
    w.zero_grad();
    u.zero_grad();
    step();
    CHECK(w.grad().item() == 4);
    CHECK(u.grad().item() == 6);
    w.zero_grad();
    u.zero_grad();
    u.state()->gradient_hooks.clear();
  }
}

TEST_CASE("tape: the gradient of a value as a seed, by which a second tape goes on") {
  auto w = number(3);
  tape first, second;
  auto h = first.eval(w * w);
  second.backward(second.eval(h * h * h));
  CHECK(h.grad().item() == 3 * 81);
  first.backward(h, h.grad());
  CHECK(w.grad().item() == 3 * 81 * 6);
}

TEST_CASE("tape: a hook changes the gradient, not the seed") {
  auto w = number(3);
  const auto seed = full<double>(extents<>{}, 2);
  for (int i = 0; i < 2; ++i) {
    w.zero_grad();
    tape steps;
    auto y = steps.eval(w * 5.0);
    y.on_gradient([](auto g) { update(g, g * 0.5); });
    steps.backward(y, seed);
    CHECK(w.grad().item() == 5);
    CHECK(seed.item() == 2);
  }
}

TEST_CASE("tape: detach stops gradients, a seed weighs rows") {
  auto x = variable<double, extents<3>>(from(extents<3>{}, std::vector<double>{1, 2, 3}));
  tape steps;
  auto y = steps.eval(x * detach(x));
  steps.backward(y, from(extents<3>{}, std::vector<double>{1, 10, 100}));
  CHECK(x.grad().to_vector() == std::vector<double>{1, 20, 300});
}

TEST_CASE("tape: a backward pass that finds no parameter and no variable is an error") {
  const auto x = ones<float>(extents<2>{});
  linear<2, 3> model;
  initialize(model, 1);
  tape steps;
  const char* const words = "computed from no parameter and no variable";
  CHECK(throws_with<usage_error>([&] { steps.backward(steps.eval(mean(x))); }, {words}));
  CHECK(throws_with<usage_error>(
      [&] {
        const auto a = steps.eval(mean(x));
        steps.backward(steps.eval(a * 2.0f));
      },
      {words}));
  CHECK(throws_with<usage_error>([&] { steps.backward(steps.eval(mean(detach(model(x))))); }, {words}));
  const auto constant = steps.eval(mean(x));  // beside one that is found
  steps.backward(steps.eval(constant + sum(model(x))));
  CHECK(model.weight.grad().to_vector() == std::vector<float>(6, 1));
  tape upper;  // the value of another tape
  const auto h = steps.eval(model(x));
  upper.backward(upper.eval(sum(h)));
  CHECK(h.grad().to_vector() == std::vector<float>(3, 1));
}

TEST_CASE("tape: one tensor used as several leaves gets one gradient") {
  auto x = variable<double, extents<2, 2>>(from(extents<2, 2>{}, std::vector<double>{1, 2, 3, 4}));
  CHECK(gradcheck([&] { return sum(matmul(x, transpose(x)) * x); }, x));
}

TEST_CASE("tape: two contexts know nothing of each other") {
  const device one(std::make_shared<cpu::cpu_backend>(1)), two(std::make_shared<cpu::cpu_backend>(1));
  context a(one), b(two);
  auto x = full<float>(extents<4>{}, 1.0f, one);
  CHECK(eval(x + 1.0f, a).to_vector()[0] == 2);
  CHECK_THROWS_AS(eval(x + 1.0f, b), device_error);
}

TEST_CASE("a steady step takes no memory from the device") {
  const device d(std::make_shared<cpu::cpu_backend>(1));
  context c(d);
  auto x = randn<float>(extents<64, 64>{}, {}, d);
  variable<float, extents<64, 64>> w(randn<float>(extents<64, 64>{}, {.seed = 1}, d));
  std::size_t requests = 0;
  for (int i = 0; i < 5; ++i) {
    tape steps(c);
    steps.backward(steps.eval(mean(square(relu(matmul(x, w))))));
    w.zero_grad();
    if (i == 2) requests = d.memory().figures().requests;
  }
  CHECK(d.memory().figures().requests == requests);
}

TEST_CASE("hooks see gradients: complete before they flow on, and after all was added to a parameter") {
  variable<float, extents<2>> x(from(extents<2>{}, std::vector<float>{1, 2}));
  std::vector<float> at_parameter, at_value;
  x.on_gradient([&](auto g) { at_parameter = g.to_vector(); });
  tape steps;
  auto h = steps.eval(x * 3.0f);
  h.on_gradient([&](auto g) {
    at_value = g.to_vector();
    g.copy_from(std::vector<float>{10, 20});  // replaced on its way
  });
  auto y = steps.eval(sum(h * h));
  auto z = steps.eval(y + sum(x));
  steps.backward(z);
  CHECK(at_value == std::vector<float>{6, 12});
  CHECK(at_parameter == std::vector<float>{31, 61});
  CHECK(x.grad().to_vector() == at_parameter);
}

TEST_CASE("no_grad computes and forgets") {
  variable<float, extents<2>> x(from(extents<2>{}, std::vector<float>{1, 2}));
  tape steps;
  {
    no_grad off(steps);
    CHECK(steps.eval(x * 3.0f).to_vector() == std::vector<float>{3, 6});
    CHECK(steps.size() == 0);
  }
  steps.eval(x * 3.0f);
  CHECK(steps.size() == 1);
}

TEST_CASE("a compiled expression reads what its tensors hold at each call") {
  auto x = from(extents<2>{}, std::vector<float>{1, 2});
  auto step = compile(x * 3.0f);
  CHECK(step().to_vector() == std::vector<float>{3, 6});
  x.copy_from(std::vector<float>{4, 5});
  CHECK(step().to_vector() == std::vector<float>{12, 15});
}

TEST_CASE("tape: products and look-ups add to the gradient that is there, without memory for their own") {
  const auto counts = std::make_shared<counting_backend>();
  const device nowhere(counts);
  context there(nowhere);
  auto w = variable<float, extents<256, 64>>(zeros<float>(extents<256, 64>{}, nowhere));
  auto x = zeros<float>(extents<8, 64>{}, nowhere);
  auto index = zeros<std::int32_t>(extents<8>{}, nowhere);
  tape steps(there);
  auto total = steps.eval(mean(embedding(w, index)));
  for (int i = 0; i < 3; ++i) {
    total = steps.eval(total + mean(matmul(x, transpose(w))));
    total = steps.eval(total + mean(embedding(w, index)));
  }
  nowhere.memory().reset_peak();
  const auto before = nowhere.memory().figures().peak;
  steps.backward(total);
  CHECK(w.grad().defined());
  CHECK(nowhere.memory().figures().peak - before < 256 * 64 * 4 * 3 / 2);
}

TEST_CASE("tape: a gradient used twice by one statement is added up once, whatever adds it") {
  auto w = variable<float, extents<4, 3>>(full<float>(extents<4, 3>{}, 0.5f));
  auto x = full<float>(extents<2, 4>{}, 1.0f);
  auto index = from(extents<2>{}, std::vector<std::int32_t>{1, 1});
  const auto gradient = [&](auto... statements) {
    w.zero_grad();
    tape steps;
    (steps.backward(steps.eval(statements())), ...);
    return w.grad().to_vector();
  };
  const auto product = [&] { return sum(matmul(x, w)); };
  const auto rows = [&] { return sum(embedding(w, index)); };
  const auto both = [&] { return sum(w * 3.0f) + sum(matmul(x, w)) + sum(embedding(w, index)); };
  const std::vector<float> p(12, 2.0f), r{0, 0, 0, 2, 2, 2, 0, 0, 0, 0, 0, 0};
  const auto weighted = [&](float of_p, float of_r, float all) {
    std::vector<float> v(12);
    for (std::size_t i = 0; i < 12; ++i) v[i] = of_p * p[i] + of_r * r[i] + all;
    return v;
  };
  CHECK(gradient(product, product) == weighted(2, 0, 0));
  CHECK(gradient(rows, rows, rows) == weighted(0, 3, 0));
  CHECK(gradient(product, rows, product) == weighted(2, 1, 0));
  CHECK(gradient(both) == weighted(1, 1, 3));
  CHECK(gradient(both, both, rows) == weighted(2, 3, 6));
}

TEST_CASE("tape: a gradient that somebody holds is not changed") {
  auto w = variable<float, extents<4, 3>>(full<float>(extents<4, 3>{}, 0.5f));
  auto x = full<float>(extents<2, 4>{}, 1.0f);
  tape steps;
  steps.backward(steps.eval(sum(matmul(x, w))));
  const auto held = w.grad();
  steps.backward(steps.eval(sum(matmul(x, w))));
  CHECK(held.to_vector() == std::vector<float>(12, 2.0f));
  CHECK(w.grad().to_vector() == std::vector<float>(12, 4.0f));
}

TEST_CASE("tape: backward of a value that it does not hold says why") {
  variable<float, extents<2>> x(from(extents<2>{}, std::vector<float>{1, 2}));
  tape steps, other;
  const auto refused = [&](tape<>& by, const variable<float, extents<>>& y, const char* why) {
    CHECK_THROWS_WITH_AS(by.backward(y), doctest::Contains(why), usage_error);
  };
  auto y = steps.eval(sum(x * x));
  refused(other, y, "another tape recorded it");
  auto second = steps.eval(sum(x));
  steps.backward(y);
  CHECK(x.grad().to_vector() == std::vector<float>{2, 4});
  refused(steps, y, "backward has already run");
  CHECK(x.grad().to_vector() == std::vector<float>{2, 4});
  steps.backward(second);  // which the first pass did not reach
  CHECK(x.grad().to_vector() == std::vector<float>{3, 5});
  refused(steps, second, "backward has already run");
  {
    no_grad off(steps);
    y = steps.eval(sum(x));
  }
  refused(steps, y, "no_grad");
  y = steps.eval(sum(x));
  steps.clear();
  refused(steps, y, "cleared");
  refused(steps, variable<float, extents<>>(full<float>(extents<>{}, 1.0f)), "no tape computed it");
  refused(steps, variable<float, extents<>>(eval(sum(x))), "no tape computed it");
  CHECK_THROWS_AS(steps.backward(x, from(extents<2>{}, std::vector<float>{1, 1})), usage_error);
  CHECK(x.grad().to_vector() == std::vector<float>{3, 5});
}

TEST_CASE("gradcheck leaves its operand as it was, whatever happens") {
  auto x = variable<double, extents<2>>(from(extents<2>{}, std::vector<double>{1, 2}));
  x.state()->grad = full<double>(extents<2>{}, 7.0).state();
  const auto untouched = [&] {
    return x.to_vector() == std::vector<double>{1, 2} && x.grad().to_vector() == std::vector<double>{7, 7};
  };
  CHECK(gradcheck([&] { return sum(x * x); }, x));
  CHECK(untouched());
  int calls = 0;
  const auto throwing = [&] {
    if (++calls == 3) throw std::runtime_error("third");
    return sum(x * x);
  };
  CHECK_THROWS_AS(gradcheck(throwing, x), std::runtime_error);
  CHECK(untouched());
  CHECK_THROWS_AS(gradcheck([&] { return sum(x * detach(x)); }, x), value_error);
  CHECK(untouched());
}

TEST_CASE("gradcheck takes f() and f(x), and tolerates what f32 rounds") {
  auto x = variable<float, extents<3>>(from(extents<3>{}, {0.5f, -20.0f, 3.0f}));
  CHECK(gradcheck([&] { return sum(x * x); }, x));
  CHECK(gradcheck([](auto at) { return mean(exp(at * 0.5f) + sin(at)); }, x));
  CHECK_THROWS_WITH_AS(gradcheck([](auto at) { return sum(at * detach(at)); }, x),
                       doctest::Contains("element 0: gradient 0.5"), value_error);
  CHECK_THROWS_WITH_AS(gradcheck([](auto at) { return sum(at * detach(at)); }, x),
                       doctest::Contains("; f32 is coarse: check in f64"), value_error);
  auto y = variable<double, extents<2>>(from(extents<2>{}, {0.5, -2.0}));
  CHECK(gradcheck([](auto at) { return sum(exp(at) * at); }, y));
  CHECK_THROWS_AS(gradcheck([](auto at) { return sum(exp(at) * at); }, y, {.tolerance = 0}), value_error);
}

TEST_CASE("writes through mutable_data are changes in place; data() is to read") {
  auto x = from(extents<2>{}, std::vector<float>{1, 2});
  static_assert(std::is_same_v<decltype(x.data()), const float*>);
  static_assert(!std::is_invocable_v<decltype(&tensor<float, extents<2>>::mutable_data),
                                     const tensor<float, extents<2>>&>);
  const auto y = x * 2.0f;
  CHECK(x.data()[1] == 2);
  CHECK(eval(y).to_vector() == std::vector<float>{2, 4});
  x.mutable_data()[1] = 5;
  CHECK_THROWS_AS(eval(y), value_error);
  CHECK(eval(x * 2.0f).to_vector() == std::vector<float>{2, 10});
  variable<float, extents<2>> p(x);
  tape steps;
  auto z = steps.eval(sum(p * p));
  p.mutable_data()[0] = 3;
  CHECK_THROWS_AS(steps.backward(z), value_error);
}

namespace {
/// `x` times a number, without a program: the tape records a function.
template <class V>
V scaled(tape<>& on, const V& x, double by, std::vector<std::string>* calls = nullptr) {
  const V value(eval(x * by).state());
  on.remember(value.state(), {x.state()}, [=](const std::shared_ptr<tensor_state>& cotangent) {
    if (calls) calls->push_back(cotangent ? "cotangent" : "none");
    if (!cotangent) return tensor_list(1);
    return tensor_list{eval(typename std::remove_const_t<decltype(x.grad())>(cotangent) * by).state()};
  });
  return value;
}
}  // namespace

TEST_CASE("tape: an entry that is no program stands between programs, with a function as its backward") {
  using vector = variable<double, extents<2>>;
  for (int recompute : {0, context::every_program}) {
    context c;
    c.recompute_programs = recompute;
    vector w(from(extents<2>{}, std::vector<double>{2, 3}));
    std::vector<std::string> calls;
    std::vector<double> seen;
    tape steps(c);
    const auto y = steps.eval(exp(w) * w);
    const auto z = scaled(steps, y, 3, &calls);
    auto hooked = z;
    hooked.on_gradient([&](const auto& g) { seen = g.to_vector(); });
    const auto unused = scaled(steps, y, 7, &calls);
    const auto loss = steps.eval(sum(z * z) + sum(y));
    CHECK(steps.size() == 4);
    steps.backward(loss);
    CHECK(calls == std::vector<std::string>{"none", "cotangent"});
    for (std::size_t i = 0; i < 2; ++i) {
      const double x = w.to_vector()[i], v = std::exp(x) * x;
      CHECK(seen[i] == doctest::Approx(2 * 3 * v));
      CHECK(w.grad().to_vector()[i] == doctest::Approx((2 * 9 * v + 1) * std::exp(x) * (x + 1)));
    }
    CHECK_THROWS_WITH_AS(steps.backward(z, full<double>(extents<2>{}, 1)), doctest::Contains("already run"),
                         usage_error);
    CHECK(calls.size() == 2);
    CHECK_FALSE(unused.grad().defined());
  }
}

TEST_CASE("tape: what a function gives is added to gradients, and held by nobody else") {
  variable<double, extents<2>> w(from(extents<2>{}, std::vector<double>{2, 3}));
  const auto alive = std::make_shared<int>();
  tape steps;
  const auto twice = [&] {
    const variable<double, extents<2>> value(full<double>(extents<2>{}, 1));
    steps.remember(value.state(), {w.state(), w.state()},
                   [alive](const auto& cotangent) { return tensor_list{cotangent, cotangent}; });
    return value;
  };
  const auto a = twice(), b = twice();
  const auto loss = steps.eval(sum(a * 5.0 + b * w));
  steps.backward(loss);
  CHECK(w.grad().to_vector() == std::vector<double>{1 + 10 + 4, 1 + 10 + 6});
  CHECK(alive.use_count() == 1);
  twice();
  CHECK(alive.use_count() == 2);
  steps.clear();
  CHECK(alive.use_count() == 1);
  {
    no_grad off(steps);
    const auto value = twice();
    CHECK(alive.use_count() == 1);
    CHECK_THROWS_WITH_AS(steps.backward(value, full<double>(extents<2>{}, 1)), doctest::Contains("no_grad"),
                         usage_error);
  }
}

TEST_CASE("tape: functions that do not fit are refused") {
  variable<double, extents<2>> w(from(extents<2>{}, std::vector<double>{2, 3}));
  const auto refused = [&]<class Error>(tensor_list given, Error*, const char* why) {
    tape steps;
    const variable<double, extents<>> value(full<double>(extents<>{}, 1));
    steps.remember(value.state(), {w.state()}, [=](const auto&) { return given; });
    CHECK_THROWS_WITH_AS(steps.backward(value), doctest::Contains(why), Error);
  };
  refused({}, static_cast<usage_error*>(nullptr), "0 cotangents for 1 operands");
  refused({full<double>(extents<3>{}, 1).state()}, static_cast<shape_error*>(nullptr), "[2] and [3]");
  refused({full<float>(extents<2>{}, 1).state()}, static_cast<value_error*>(nullptr), "f64 and f32");
  tape steps;
  const auto y = steps.eval(w * 2.0);
  CHECK_THROWS_WITH_AS(steps.remember(y.state(), {}, [](const auto&) { return tensor_list(); }),
                       doctest::Contains("already holds the value of shape [2]"), usage_error);
}

TEST_CASE("tape: a seed is all that reaches a value, whatever another tape has left there") {
  auto w = number(3);
  tape first, second;
  auto h = first.eval(w * 2.0);
  second.backward(second.eval(h * h));
  const double left = h.grad().item();
  first.backward(h, eval(h.grad() * 0.5));
  CHECK(w.grad().item() == left);  // half of it, times 2
}

TEST_CASE("tape: what another tape has left at a value that is not gone back from does not count") {
  auto w = number(3);
  tape lower, upper;
  auto seen = lower.eval(w * 2.0), other = lower.eval(w * 100.0);
  upper.backward(upper.eval(other * 1.0));
  lower.backward(lower.eval(seen * 1.0));
  CHECK(w.grad().item() == 2);
}

TEST_CASE("tape: what a loss depends on through derivatives of 0 alone has no gradient") {
  auto w = number(3), b = number(1), x = number(2);
  tape steps;
  const auto slope = grad([&](auto t) { return t * w + b; }, x);
  steps.backward(steps.eval(slope * slope));
  CHECK(w.grad().item() == 6);
  CHECK_FALSE(b.grad().defined());
}

TEST_CASE("tape: hooks may add hooks, and drop the gradient") {
  auto v = number(2);
  int called = 0, added = 0;
  std::vector<double> seen;
  v.on_gradient([&](const auto&) {
    ++called;
    for (int k = 0; k < 20; ++k)
      v.on_gradient([&, pad = std::array<double, 16>{1}](const auto&) { added += pad[0] == 1; });
    v.zero_grad();
  });
  v.on_gradient([&](const auto& g) { seen.push_back(g.item()); });
  const auto pass = [&] {
    tape steps;
    steps.backward(steps.eval(v * v));
  };
  pass();
  CHECK(called == 1);
  CHECK(added == 0);
  CHECK(seen == std::vector<double>{4});
  pass();
  CHECK(added == 20);
}

TEST_CASE("tape: a hook that uses the tape that is going back is refused, and what was there is gone") {
  for (int how = 0; how < 4; ++how) {
    auto w = number(3), s = number(1);
    tape steps, other;
    auto h = steps.eval(w * 3.0);
    auto y = steps.eval(h * 2.0);
    y.on_gradient([&](const auto&) {
      if (how == 0) steps.clear();
      if (how == 1) (void)steps.eval(s * s);
      if (how == 2) steps.backward(h);
      if (how == 3) other.backward(other.eval(s * s));
    });
    const auto loss = steps.eval(y * y);
    if (how < 3) {
      CHECK_THROWS_WITH_AS(steps.backward(loss), doctest::Contains("in a backward pass"), usage_error);
      CHECK(steps.size() == 0);
      CHECK(h.state()->grad == nullptr);
      CHECK(w.state()->grad == nullptr);
      steps.backward(steps.eval(w * 2.0));  // the tape is still usable
      CHECK(w.grad().item() == 2);
    } else {
      steps.backward(loss);
      CHECK(w.grad().item() == 2 * 18 * 6);
      CHECK(s.grad().item() == 2);
    }
  }
}

TEST_CASE("tape: a value of a tape that has ended is no leaf of another one") {
  auto w = number(3), v = number(2);
  const auto features = [&] {
    tape steps;
    return steps.eval(w * w);
  };
  auto h = features();
  tape steps;
  CHECK_THROWS_WITH_AS((void)steps.eval(h * v), doctest::Contains("was recorded by a tape that has ended"),
                       usage_error);
  CHECK(eval(h * v).item() == 18);
  CHECK(steps.eval(detach(h) * v).item() == 18);
  {
    const no_grad quiet(steps);
    CHECK(steps.eval(h * v).item() == 18);
  }
  CHECK_THROWS_WITH_AS(steps.backward(h), doctest::Contains("the tape that recorded it has ended"),
                       usage_error);
  // cut on purpose: a variable of its own
  tape cut;
  auto constant = cut.eval(w * w);
  cut.clear();
  steps.backward(steps.eval(constant * v));
  CHECK(v.grad().item() == 9);
}

TEST_CASE("tape: a value that a backward pass has gone through is no leaf of a later expression") {
  auto w = number(3), v = number(2);
  tape steps, next;
  auto fake = steps.eval(w * w);
  steps.backward(steps.eval(fake * v));
  const float before = w.grad().item();
  for (tape<>* t : {&steps, &next})
    CHECK_THROWS_WITH_AS((void)t->eval(fake * v),
                         doctest::Contains("whose backward pass has already run through it"), usage_error);
  CHECK(w.grad().item() == before);
  CHECK(eval(fake * v).item() == 18);
  v.zero_grad();
  next.backward(next.eval(detach(fake) * v));
  CHECK(v.grad().item() == 9);
  // of two tapes, the lower one continues with the gradients of the upper one
  auto h = steps.eval(w * w);
  next.backward(next.eval(h * h));
  w.zero_grad();
  steps.backward(h, h.grad());
  CHECK(w.grad().item() == 2 * 9 * 2 * 3);
}

TEST_CASE("tape: a detached value is differentiated later on the same tape") {
  auto w = number(3), d = number(2);
  tape steps;
  for (int i = 0; i < 3; ++i) {
    auto fake = steps.eval(w * w);
    steps.backward(steps.eval(d * detach(fake)));
    CHECK(d.grad().item() == 9);
    CHECK_FALSE(w.grad().defined());
    CHECK(steps.size() == 1);
    update(d, d + 0.0);  // a step of the discriminator: `fake` has not read it
    d.zero_grad();
    steps.backward(steps.eval(fake * d));
    CHECK(w.grad().item() == 2 * 3 * 2);
    CHECK(d.grad().item() == 9);
    CHECK(steps.size() == 0);
    w.zero_grad();
    d.zero_grad();
  }
}

TEST_CASE("tape: what a pass has not reached stays while the program holds it") {
  auto w = number(3);
  tape steps;
  (void)steps.eval(exp(w));
  const auto kept = steps.eval(exp(steps.eval(w * w)));
  const auto other = steps.eval(exp(steps.eval(w + 1.0)));
  steps.backward(steps.eval(w * w));
  CHECK(steps.size() == 4);
  w.zero_grad();
  steps.backward(other);
  CHECK(w.grad().item() == doctest::Approx(std::exp(4)));
  CHECK(steps.size() == 2);
  update(w, w * 2.0);
  w.zero_grad();
  CHECK_THROWS_AS(steps.backward(steps.eval(kept * kept)), value_error);  // it has read w, which has changed
  CHECK(steps.size() == 0);
}

TEST_CASE("tape: what was computed from a value that a pass has run through is refused") {
  auto w = number(3), v = number(2);
  tape steps;
  const auto h = steps.eval(w * w);
  const auto second = steps.eval(h * v), third = steps.eval(second * 2.0);
  steps.backward(steps.eval(h * 5.0));
  CHECK(steps.size() == 0);
  CHECK_THROWS_WITH_AS(steps.backward(third), doctest::Contains("or through what it was computed from"),
                       usage_error);
  CHECK_THROWS_WITH_AS((void)steps.eval(second * v),
                       doctest::Contains("or through what it was computed from"), usage_error);
  CHECK_FALSE(v.grad().defined());
}

TEST_CASE("a handle of a gradient keeps it over a further backward pass") {
  variable<float, extents<3>> w(from(extents<3>{}, std::vector<float>{1, 2, 3}));
  linear<3, 2> layer;
  initialize(layer, 1);
  tape steps;
  const auto pass = [&] { steps.backward(steps.eval(sum(w * w) + sum(layer(reshape<1, 3>(w))))); };
  pass();
  const auto of_w = w.grad();
  const auto of_weight = layer.weight.grad();
  const std::vector<float> first = of_w.to_vector(), first_weight = of_weight.to_vector();
  pass();
  CHECK(of_w.to_vector() == first);
  CHECK(of_weight.to_vector() == first_weight);
  CHECK(layer.weight.grad()(0, 1) == 2 * first_weight[1]);
}

TEST_CASE("a model that moves to another device takes its gradients along") {
  struct {
    parameter<extents<2>, double> weight{from(extents<2>{}, std::vector<double>{2, 3})};
  } model;
  tape steps;
  steps.backward(steps.eval(sum(model.weight * model.weight)));
  const auto held = model.weight.grad();
  const device other(std::make_shared<cpu::cpu_backend>(1));
  to(model, other);
  CHECK(model.weight.grad().state()->where == other);
  CHECK(model.weight.grad().to_vector() == std::vector<double>{4, 6});
  CHECK(held.state()->where == default_device());
  context there(other);
  tape again(there);
  again.backward(again.eval(sum(model.weight)));
  CHECK(model.weight.grad().to_vector() == std::vector<double>{5, 7});
  CHECK(held.to_vector() == std::vector<double>{4, 6});
}

TEST_CASE("more sizes of one program than are kept, forward and backward") {
  context c;
  for (int round = 0; round < 2; ++round)
    for (index_t n = 0; n < 600; ++n) {
      const variable<float, extents<dyn>> x(full<float>(extents<dyn>{n}, 3.0f));
      tape steps(c);
      const auto y = steps.eval(sum(x * x));
      steps.backward(y);
      REQUIRE(y.item() == 9.0f * static_cast<float>(n));
      REQUIRE(x.grad().to_vector() == std::vector<float>(static_cast<std::size_t>(n), 6.0f));
    }
}

TEST_CASE("tape: a hook may change its state") {
  auto w = number(3);
  std::vector<int> calls;
  w.on_gradient([&calls, n = 0](const auto&) mutable { calls.push_back(++n); });
  for (int i = 0; i < 2; ++i) {
    tape steps;
    steps.backward(steps.eval(w * w));
  }
  CHECK(calls == std::vector<int>{1, 2});
}

TEST_CASE("tape: in parts, a hook that uses the tape or throws in the second part leaves nothing behind") {
  using matrix = extents<2, 2>;
  for (const bool evaluates : {true, false}) {
    CAPTURE(evaluates);
    variable<float, matrix> x(full<float>(matrix{}, 1.0f));
    parameter<matrix> p(full<float>(matrix{}, 1.0f).state()), q(full<float>(matrix{}, 1.0f).state());
    int calls = 0, throws = 1;
    q.on_gradient([&](const auto&) { ++calls; });
    tape<program_options<>, true> steps(default_context());
    p.on_gradient([&](const auto&) {
      if (throws && evaluates) (void)steps.eval(sum(p));
      if (throws) throw value_error("of the hook");
    });
    steps.backward(steps.eval(sum(matmul(matmul(x, p), q))));
    CHECK_THROWS_WITH_AS(
        steps.backward_weights(),
        doctest::Contains(evaluates ? "in a backward pass, as in a gradient hook" : "of the hook"), error);
    CHECK(steps.size() == 0);
    CHECK_THROWS_AS(steps.backward_weights(), usage_error);
    calls = throws = 0;
    steps.backward(steps.eval(sum(matmul(x, p))));  // the tape is still usable
    steps.backward_weights();
    CHECK(calls == 0);  // no hook is left over
  }
}
