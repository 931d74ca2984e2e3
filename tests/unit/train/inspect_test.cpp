// SPDX-License-Identifier: MIT
// Inspection: taps, and the replay that finds non-finite values.
#include <doctest/doctest.h>

#include <thread>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/inspect.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {
struct two_layers {
  linear<4, 8> first;
  linear<8, 3> second;
  auto operator()(expression auto x) const { return second(exp(first(x))); }
};
}  // namespace

TEST_CASE("a context runs one program at a time, and says so") {
  context c;
  const auto x = full<float>(extents<2>{}, 3);
  std::string in_tap, on_thread;
  c.on_tap = [&](const tapped&) {
    const auto tried = [&](std::string& said) {
      try {
        eval(x + 1.0f, c);
      } catch (const usage_error& e) {
        said = e.what();
      }
    };
    tried(in_tap);
    std::thread([&] { tried(on_thread); }).join();
    context other;
    CHECK(eval(x + 1.0f, other).to_vector()[0] == 4);
  };
  CHECK(eval(sum(tap(x * 2.0f, "twice")), c).item() == 12);
  for (const std::string& said : {in_tap, on_thread}) CHECK(said.find("one program at a time") != said.npos);
  c.on_tap = [](const tapped&) { throw value_error("enough"); };
  CHECK_THROWS_AS(eval(tap(x * 2.0f, "twice"), c), value_error);
  CHECK(eval(x + 1.0f, c).to_vector()[1] == 4);  // usable after an error
}

TEST_CASE("a tap shows a value on its way and changes nothing") {
  context c;
  std::vector<std::string> names;
  std::vector<double> values;
  c.on_tap = [&](const tapped& t) {
    names.push_back(t.name);
    values = t.to_vector();
  };
  variable<float, extents<3>> x(from(extents<3>{}, std::vector<float>{1, -2, 3}));
  CHECK(eval(sum(tap(relu(tap(x * 2.0f, "twice")), "kept")), c).item() == 8);
  CHECK(names == std::vector<std::string>{"twice", "kept"});
  CHECK(values == std::vector<double>{2, 0, 6});
  tape steps(c);
  auto y = steps.eval(sum(tap(x * x, "squares") * 3.0f));
  steps.backward(y);
  CHECK(x.grad().to_vector() == std::vector<float>{6, -12, 18});
  CHECK(names.size() == 3);  // backward does not tap again
}

TEST_CASE("the first op that leaves the finite numbers is found, with its module") {
  two_layers model;
  initialize(model, 1);
  const auto x = full<float>(extents<dyn, 4>{5, 4}, 1e4f);
  context c;
  const auto replay = [&](context& debug) { eval(softmax(model(x)), debug); };
  auto found = find_non_finite(state_dict(model), c, replay);
  REQUIRE(found.has_value());
  CHECK(found->op == "exp");
  CHECK(found->module == "first");
  CHECK(found->operand > 88);
  const auto small = full<float>(extents<dyn, 4>{5, 4}, 0.1f);
  CHECK_FALSE(
      find_non_finite(state_dict(model), c, [&](context& debug) { eval(softmax(model(small)), debug); }));
  std::vector<float> weights = model.second.weight.to_vector();
  weights[3] = NAN;
  model.second.weight.copy_from(weights);
  CHECK(find_non_finite(state_dict(model), c, replay)->op == "parameter second.weight");
}

TEST_CASE(
    "data that are not finite are found where they are read, unless an op makes such values of finite ones") {
  two_layers model;
  initialize(model, 1);
  const context c;
  for (const double odd : {static_cast<double>(NAN), HUGE_VAL}) {
    std::vector<float> rows(20, 0.5f);
    rows[6] = static_cast<float>(odd);
    const auto x = from(extents<dyn, 4>{5, 4}, rows);
    const auto found = [&](auto e) {
      return find_non_finite(state_dict(model), c, [&](context& d) { eval(e, d); });
    };
    const auto in_product = found(model(x)), in_kernel = found(sum(x * 2.0f + 1.0f)),
               later = found(sum(x) + log(-square(x) - 1.0f));
    REQUIRE((in_product && in_kernel && later));
    CHECK((in_product->is_read && in_product->op == "matmul"));
    CHECK((in_kernel->is_read && in_kernel->op == "multiply"));
    CHECK(in_kernel->text().find("reads") != std::string::npos);
    CHECK(std::isnan(in_kernel->value) == std::isnan(odd));
    CHECK((!later->is_read && later->op == "log"));
    CHECK_FALSE(found(sum(where(x < 1.0f, x, 0.0f))));  // is not passed on
  }
}

TEST_CASE("a replay draws the same random numbers") {
  context c;
  c.seed = 11;
  c.begin_step(4);
  const auto x = full<float>(extents<64>{}, 1.0f);
  const auto at = c.randomness();
  const auto first = eval(dropout(x, 0.5f), c).to_vector();
  CHECK(eval(dropout(x, 0.5f), c).to_vector() != first);
  c.set_randomness(at);
  CHECK(eval(dropout(x, 0.5f), c).to_vector() == first);
}

TEST_CASE("parameters without memory are refused") {
  const auto deferred = create<linear<3, 2>>(default_device().deferred());
  context c;
  const auto nothing = [](context&) {};
  CHECK_THROWS_AS(find_non_finite(state_dict(deferred), c, nothing), value_error);
  run_ranks(2, [&](communicator& ranks) {
    linear<3, 2> model;
    sgd optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    CHECK_THROWS_AS(find_non_finite(state_dict(model), run, nothing), value_error);
  });
}
