// SPDX-License-Identifier: MIT
// Clipping and optimizers on parameters of every floating type, alone and mixed, against plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include <weft/comm/threads.hpp>
#include <weft/optim/muon.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/optim/parameter_groups.hpp>
#include <weft/optim/rmsprop.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

/// Parameters of four types; their elements and gradients have so few bits that they are exact in each type.
struct mixed {
  parameter<extents<3, 5>> a;
  parameter<extents<7>, double> b;
  parameter<extents<9>, bfloat16> c;
  parameter<extents<11>, float16> d;
};

template <class P>
void fill(P& p, double first) {
  using T = typename P::value_type;
  std::vector<T> v;
  for (index_t i = 0; i < p.size(); ++i)
    v.push_back(static_cast<T>(static_cast<float>(first + 0.125 * static_cast<double>(i))));
  p.copy_from(v);
}
template <class P>
void set_gradient(P& p, double first) {
  using T = typename P::value_type;
  tensor<T, typename P::extents_type> g(p.extents());
  fill(g, first);
  p.state()->grad = g.state();
}
mixed make() {
  mixed m{parameter<extents<3, 5>>(extents<3, 5>{}), parameter<extents<7>, double>(extents<7>{}),
          parameter<extents<9>, bfloat16>(extents<9>{}), parameter<extents<11>, float16>(extents<11>{})};
  for_each_parameter(m, [](const std::string&, auto& p) {
    fill(p, 1);
    set_gradient(p, -0.5);
  });
  return m;
}

/// Calls f(element, its old value, its gradient) for all parameters of `m`, changed from make().
template <class F>
void for_each_change(mixed& m, F f) {
  for_each_parameter(m, [&](const std::string& name, auto& p) {
    CAPTURE(name);
    using T = typename std::remove_cvref_t<decltype(p)>::value_type;
    const auto now = p.to_vector();
    for (std::size_t i = 0; i < now.size(); ++i)
      f(T(now[i]), 1 + 0.125 * static_cast<double>(i), -0.5 + 0.125 * static_cast<double>(i));
  });
}
template <class T>
double step_of() {
  return std::is_same_v<T, double>     ? 1e-14
         : std::is_same_v<T, float>    ? 3e-7
         : std::is_same_v<T, bfloat16> ? 0x1p-8
                                       : 0x1p-11;
}
template <class T>
bool near(T got, double want) {
  return std::abs(static_cast<double>(got) - want) <= step_of<T>() * (1 + std::abs(want));
}

/// The 2-norm of the gradients of make().
double norm_of_gradients() {
  double squares = 0;
  for (int size : {15, 7, 9, 11})
    for (int i = 0; i < size; ++i) squares += (-0.5 + 0.125 * i) * (-0.5 + 0.125 * i);
  return std::sqrt(squares);
}

template <class F>
void for_each_gradient(mixed& m, F f) {
  for_each_parameter(m, [&](const std::string& name, auto& p) {
    CAPTURE(name);
    const auto g = p.grad().to_vector();
    for (std::size_t i = 0; i < g.size(); ++i) f(g[i], -0.5 + 0.125 * static_cast<double>(i));
  });
}

/// A custom optimizer, as a user would write it: Lion (Chen et al., 2023).
struct lion {
  double lr = 1e-2, beta1 = 0.9, beta2 = 0.99;
  optimizer_state state{};
  std::int64_t steps = 0;

  template <element T>
  void update(const parameter_update<T>& u) const {
    const auto average = u.state("exp_avg");
    const auto value = u.value();
    const auto old = average * u.number(beta1), decayed = average * u.number(beta2);
    const auto rest1 = u.number(1 - beta1), rest2 = u.number(1 - beta2), rate = u.number(lr);
    u.assign(let(u.gradient(), [&](auto g) {
               return u.results(value - sign(old + g * rest1) * rate, decayed + g * rest2);
             }),
             average);
  }
  void check() const {
    if (!(lr > 0)) throw value_error("lion: lr is not above 0");
  }
};
static_assert(optimizer_like<lion> && optimizer_like<sgd> && optimizer_like<adamw>);
static_assert(!optimizer_like<mixed>);

struct line {
  linear<5, 3> layer;
  auto operator()(expression auto x) const { return layer(x); }
};

}  // namespace

TEST_CASE("an optimizer of one's own: every type, settings checked before anything has changed") {
  mixed m = make();
  lion optimizer{.lr = 0};
  CHECK_THROWS_WITH_AS(update_parameters(optimizer, m), "lion: lr is not above 0", value_error);
  CHECK((optimizer.steps == 0 && m.a.grad().defined()));
  optimizer.lr = 1.0 / 64;
  update_parameters(optimizer, m);
  for_each_change(m, [&]<class T>(T now, double p, double g) {
    CHECK(near(now, p - (g > 0 ? 1.0 : g < 0 ? -1.0 : 0.0) / 64));
  });
  CHECK(optimizer.state.find("exp_avg", "b")->type == dtype::f64);
  const tensor<float, extents<3, 5>> average(optimizer.state.find("exp_avg", "a"));
  CHECK(average.to_vector()[0] == doctest::Approx(-0.005));
  set_gradient(m.b, 0.0625);  // the average has another sign than the gradient
  update_parameters(optimizer, m);
  CHECK(m.b.to_vector()[0] == 1 + 2.0 / 64 - (0.9 * -0.005 + 0.1 * 0.0625 > 0 ? 2.0 : 0.0) / 64);
}

TEST_CASE("an optimizer of one's own: bound, its state is part of what is saved") {
  line model;
  lion optimizer;
  auto run = bind<policy<strategy::fully_sharded<2>>>(model, optimizer);
  tape steps(run);
  const auto loss = steps.eval(sum(model(full<float>(extents<2, 5>{}, 1.0f))));
  const auto before = model.layer.bias.to_vector();
  steps.backward(loss);
  run.step();
  CHECK(model.layer.bias.to_vector()[0] == doctest::Approx(before[0] - 0.01));
  CHECK(run.full_optimizer().size() == 2);
  CHECK(optimizer.steps == 1);
}

TEST_CASE("one optimizer does not train two models whose state would be mixed") {
  sgd optimizer{.momentum = 0.9};
  const auto train = [&](line& model) {
    tape steps;
    steps.backward(steps.eval(sum(model(full<float>(extents<2, 5>{}, 1.0f)))));
    optimizer.step(model);
  };
  line first;
  {
    line second;
    train(first);
    const auto before = second.layer.bias.to_vector();
    CHECK_THROWS_WITH_AS(train(second),
                         "weft: optimizer: step: parameter layer.weight is not the one of earlier steps, "
                         "whose model is still alive: to continue with other weights, copy_weights(model, "
                         "from) instead of model = from; otherwise make an optimizer for each model, and for "
                         "each run; checkpoints carry its state from one run to the next",
                         usage_error);
    CHECK(second.layer.bias.to_vector() == before);
    CHECK_THROWS_AS(train(second), usage_error);  // as long as the other model is alive
  }
  train(first);
  line moved = std::move(first);  // the same parameters
  train(moved);
  moved = line{};  // at the address of the previous model
  train(moved);
  struct two {
    line a, b;
  } both;
  sgd whole{.momentum = 0.9};
  const auto backward = [&] {
    tape steps;
    steps.backward(steps.eval(sum(both.a(full<float>(extents<2, 5>{}, 1.0f)))));
  };
  backward();
  whole.step(both);
  backward();
  CHECK_THROWS_WITH_AS(
      whole.step(both.a),  // its momentum is that of a.layer.weight
      "weft: optimizer: step: parameter layer.weight was a.layer.weight in earlier steps: pass the same "
      "model "
      "to every step (parameters without a gradient do not change), or make an optimizer for each part",
      usage_error);
}

TEST_CASE("an optimizer remembers the models of all steps, and keeps none of them alive") {
  const auto train = [](auto& part, auto& model, auto& optimizer) {
    tape steps;
    steps.backward(steps.eval(sum(part(full<float>(extents<2, 5>{}, 1.0f)))));
    optimizer.step(model);
  };
  struct two {
    line a, b;
  } both;
  sgd optimizer{.momentum = 0.9};
  train(both.a, both.a, optimizer);  // "layer.weight" is that of a
  struct other {
    line other;
  } between;
  train(between.other, between, optimizer);
  CHECK_THROWS_AS(train(both.b, both.b, optimizer), usage_error);

  line model;
  adamw adam;
  train(model, model, adam);
  line best = clone(model);
  adamw best_of_adam = adam, copied;
  copied = adam;
  train(model, model, adam);
  model = clone(best);
  train(model, model, adam);  // a model that replaces the first, which no copy of the optimizer keeps alive
  CHECK(adam.steps == 3);
}

TEST_CASE("parameter groups see the names of the model that is passed") {
  struct outer {
    line layer;
  } model;
  std::vector<std::string> seen;
  parameter_groups optimizer{sgd{}, [&](const std::string& name, sgd&) { seen.push_back(name); }};
  const auto backward = [&] {
    tape steps;
    steps.backward(steps.eval(sum(model.layer(full<float>(extents<2, 5>{}, 1.0f)))));
  };
  backward();
  optimizer.step(model);
  CHECK(seen.at(0) == "layer.layer.weight");
  backward();
  CHECK_THROWS_AS(optimizer.step(model.layer), usage_error);
}

namespace {

/// A CPU whose memory ends after some allocations.
class ending_backend : public cpu::cpu_backend {
 public:
  ending_backend() : cpu_backend(1) {}
  int left = -1;  // allocations before one that fails; none fails if it is negative

  void* allocate(std::size_t bytes) override {
    if (left == 0) throw out_of_memory_error("no memory is left");
    if (left > 0) --left;
    return cpu_backend::allocate(bytes);
  }
};

struct square_layer {
  parameter<extents<dyn, dyn>> weight;
};

/// The weight after two steps, each of which fails after `left` allocations (never if it is negative) and is
/// repeated. `failed`: whether one failed.
template <class Optimizer>
std::vector<float> trained_with_failures(Optimizer optimizer, int left, bool& failed) {
  const auto backend = std::make_shared<ending_backend>();
  const device where(backend);
  context c(where);
  square_layer model{make_parameter(extents<dyn, dyn>{611, 600}, init::uniform(0.5), where)};
  initialize(model, 1);
  failed = false;
  for (float scale : {3.0f, 5.0f}) {
    {
      tape steps(c);
      steps.backward(steps.eval(sum(square(model.weight) * scale)));
    }
    where.memory().empty_cache();
    backend->left = left;
    try {
      optimizer.step(model, 1, c);
    } catch (const out_of_memory_error&) {
      failed = true;
      backend->left = -1;
      optimizer.step(model, 1, c);
    }
    backend->left = -1;
  }
  CHECK(optimizer.steps == 2);
  return model.weight.to_vector();
}

}  // namespace

TEST_CASE_TEMPLATE("a step that fails and is repeated is one step", Optimizer, sgd, adam, adamw, rmsprop,
                   adagrad, muon) {
  Optimizer optimizer{.lr = 0.1};
  if constexpr (requires { optimizer.momentum; }) optimizer.momentum = 0.9;
  if constexpr (requires { optimizer.centered; }) optimizer.centered = true;
  if constexpr (requires { optimizer.initial_accumulator_value; }) optimizer.initial_accumulator_value = 1;
  if constexpr (requires { optimizer.ns_steps; }) optimizer.ns_steps = 1;
  bool failed = false;
  const auto expected = trained_with_failures(optimizer, -1, failed);
  int failures = 0;
  for (int left = 0; left == 0 || failed; ++left) {
    INFO("the memory ends after " << left << " allocations");
    CHECK(trained_with_failures(optimizer, left, failed) == expected);
    failures += failed;
  }
  CHECK(failures > 0);
}

TEST_CASE("bound: one optimizer does not train two models whose state would be mixed") {
  sgd optimizer{.momentum = 0.9};
  const auto train = [](line& model, auto& run) {
    tape steps(run);
    steps.backward(steps.eval(sum(model(full<float>(extents<2, 5>{}, 1.0f)))));
    run.step();
  };
  line first, second;
  {
    auto of_first = bind<policy<strategy::fully_sharded<2>>>(first, optimizer);
    train(first, of_first);
    CHECK_THROWS_WITH_AS(bind<policy<strategy::single>>(second, optimizer),
                         doctest::Contains("make an optimizer for each run"), usage_error);
    train(first, of_first);
  }
  {
    auto of_second = bind<policy<strategy::single>>(second, optimizer);
    const auto before = second.layer.bias.to_vector();
    CHECK_THROWS_WITH_AS(train(second, of_second), doctest::Contains("make an optimizer for each model"),
                         usage_error);
    CHECK(second.layer.bias.to_vector() == before);
    CHECK(optimizer.steps == 2);
  }
  auto again = bind<policy<strategy::single>>(first, optimizer);  // the same model
  train(first, again);
  CHECK(optimizer.steps == 3);
}

TEST_CASE("bound: a step without a gradient of any parameter is an error, and the run goes on") {
  line model, copy;
  sgd optimizer;
  self_communicator alone;
  auto run = bind<policy<strategy::single>>(model, optimizer, alone, parallel_options{.deterministic = true});
  const auto backward = [&](line& of) {
    tape steps(run);
    steps.backward(steps.eval(sum(of(full<float>(extents<2, 5>{}, 1.0f)))));
  };
  const auto before = model.layer.bias.to_vector();
  backward(copy);
  CHECK_THROWS_WITH_AS(run.step(), doctest::Contains("no parameter has a gradient"), usage_error);
  CHECK_THROWS_WITH_AS(run.step(1, [&](index_t) { return sum(copy(full<float>(extents<2, 5>{}, 1.0f))); }),
                       doctest::Contains("no parameter has a gradient"), usage_error);
  CHECK(model.layer.bias.to_vector() == before);
  CHECK(optimizer.steps == 0);
  backward(model);
  run.step();
  CHECK(model.layer.bias.to_vector() != before);
}

TEST_CASE("clip_grad_norm: gradients of mixed types have one norm") {
  mixed m = make();
  const double norm = norm_of_gradients();
  CHECK(gradient_norm(parameters_of(m)) == doctest::Approx(norm).epsilon(1e-6));
  CHECK(clip_grad_norm(m, 2 * norm) == doctest::Approx(norm).epsilon(1e-6));
  for_each_gradient(m, [](auto g, double whole) { CHECK(static_cast<double>(g) == whole); });
  CHECK(clip_grad_norm(m, 0.25) == doctest::Approx(norm).epsilon(1e-6));
  for_each_gradient(m, [&](auto g, double whole) { CHECK(near(g, whole * 0.25 / (norm + 1e-6))); });
}

TEST_CASE("clip_grad_norm: limits and norms at the edge are as in PyTorch") {
  mixed m = make();
  clip_grad_norm(m, 0);
  for_each_gradient(m, [](auto g, double) { CHECK(static_cast<double>(g) == 0); });
  m = make();
  CHECK_THROWS_AS(clip_grad_norm(m, -1.0), value_error);
  CHECK_THROWS_AS(clip_grad_norm(m, NAN), value_error);
  CHECK_THROWS_AS(clip_grad_value(m, -1.0), value_error);
  for_each_gradient(m, [](auto g, double whole) { CHECK(static_cast<double>(g) == whole); });
  m.d.state()->grad = full<float16>(extents<11>{}, float16(NAN)).state();
  CHECK(std::isnan(clip_grad_norm(m, 1.0)));
  for_each_gradient(m, [](auto g, double) { CHECK(std::isnan(static_cast<double>(g))); });
  CHECK(std::isnan(clip_factor(NAN, 1.0)));
  CHECK(clip_factor(1.0, 0.0) == 0);
  CHECK(clip_factor(0.0, 1.0) == 1);
}

TEST_CASE("clip_grad_norm: a gradient that stands twice in a model counts once") {
  struct tied {
    parameter<extents<2>> a, b;
  } m{parameter<extents<2>>(full<float>(extents<2>{}, 1.0f)), {}};
  m.b = m.a;
  m.a.state()->grad = full<float>(extents<2>{}, 3.0f).state();
  CHECK(clip_grad_norm(m, 1.0) == doctest::Approx(3 * std::sqrt(2.0)));
  CHECK(m.a.grad().to_vector()[0] == doctest::Approx(1 / std::sqrt(2.0)));
}

TEST_CASE("clip_grad_value and scale_gradients: every type") {
  mixed m = make();
  clip_grad_value(m, 0.25);
  for_each_gradient(
      m, [](auto g, double whole) { CHECK(static_cast<double>(g) == std::clamp(whole, -0.25, 0.25)); });
  m = make();
  scale_gradients(parameters_of(m), 0.5);
  for_each_gradient(m, [](auto g, double whole) { CHECK(static_cast<double>(g) == 0.5 * whole); });
}

TEST_CASE("sgd: every type, with and without momentum") {
  for (const bool nesterov : {false, true}) {
    mixed m = make();
    sgd optimizer{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov};
    optimizer.step(m);
    for_each_change(m, [&]<class T>(T now, double p, double grad) {
      const double g = grad + 0.01 * p;
      CHECK(near(now, p - 0.1 * (nesterov ? g + 0.9 * g : g)));
    });
  }
  mixed m = make();
  sgd{.lr = 0.5}.step(m);
  for_each_change(m, [&]<class T>(T now, double p, double grad) { CHECK(near(now, p - 0.5 * grad)); });
}

TEST_CASE("adamw: every type; two steps, with state in the type that is computed with") {
  mixed m = make();
  adamw optimizer{.lr = 0.01};
  optimizer.step(m);
  const double after_one = m.b.to_vector()[0];
  for_each_change(m, [&]<class T>(T now, double p, double g) {
    CHECK(near(now, p * (1 - 0.01 * 0.01) - 0.01 * g / (std::abs(g) + 1e-8)));
  });
  CHECK(optimizer.state.find("exp_avg", "b")->type == dtype::f64);
  CHECK(optimizer.state.find("exp_avg", "c")->type == dtype::f32);
  set_gradient(m.b, 0.25);
  optimizer.step(m);
  const double m2 = 0.9 * 0.1 * -0.5 + 0.1 * 0.25, v2 = 0.999 * 0.001 * 0.25 + 0.001 * 0.0625;
  const double step = 0.01 / (1 - 0.81) * m2 / (std::sqrt(v2 / (1 - 0.999 * 0.999)) + 1e-8);
  CHECK(m.b.to_vector()[0] == doctest::Approx(after_one * (1 - 1e-4) - step).epsilon(1e-13));
}

TEST_CASE("adamw: biases are corrected by the steps of the optimizer, of parameters that come late too") {
  mixed m = make();
  adamw optimizer{.lr = 0.01, .weight_decay = 0, .steps = 9};
  const double before = m.b.to_vector()[0];
  optimizer.step(m);
  const double corrected1 = (1 - 0.9) / (1 - std::pow(0.9, 10)),
               corrected2 = (1 - 0.999) / (1 - std::pow(0.999, 10));
  CHECK(m.b.to_vector()[0] == doctest::Approx(before + 0.01 * corrected1 / std::sqrt(corrected2)));
}

TEST_CASE("optimisers: what cannot be updated is named before anything has changed") {
  mixed m = make();
  adamw optimizer;
  const std::vector<float> before = m.a.to_vector();
  const state_dict_t named = named_parameters(m);
  CHECK_THROWS_WITH_AS(update_parameters(optimizer, named, 1, default_context()),
                       "weft: optimizer: parameter b is f64, not f32", value_error);
  CHECK(m.a.to_vector() == before);
  CHECK(m.a.grad().defined());
  CHECK(optimizer.steps == 0);
  optimizer.state.set("exp_avg", "a", full<double>(extents<3, 5>{}, 0.0).state());
  CHECK_THROWS_WITH_AS(optimizer.step(m), "weft: optimizer: exp_avg of a is f64 [3, 5], not f32 [3, 5]",
                       value_error);
}

TEST_CASE("a kind of state is a word by which files and messages can name it") {
  optimizer_state state;
  const auto t = full<float>(extents<2>{}, 0.0f).state();
  for (const char* kind : {"", "avg.grad", "avg#1", "avg\n"}) {
    CHECK_THROWS_WITH_AS(state.set(kind, "w", t), doctest::Contains("is not a valid kind of state"),
                         value_error);
    CHECK_THROWS_AS(state.get(kind, "w", *t, dtype::f32), value_error);
  }
  CHECK(state.tensors().empty());
  state.set("exp_avg", "w.a", t);
  CHECK(state.tensors().at(0).first == "exp_avg.w.a");
}

namespace {

/// Parameters and states by name, of AMSGrad on `count` ranks after steps `from` to 6; if `from` is not 0, of
/// a run that goes on from the checkpoint in `folder`, otherwise that writes it after three steps.
std::map<std::string, std::vector<float>> amsgrad_on(int count, const parallel_options& o, int from,
                                                     const std::string& folder) {
  std::map<std::string, std::vector<float>> all;
  run_ranks(count, [&](communicator& ranks) {
    line model;
    initialize(model, from ? 9 : 3);
    amsgrad optimizer{adamw{.lr = 0.05, .beta2 = 0.5}};
    auto run = bind(model, optimizer, ranks, o);
    checkpointer saves(folder, run, {.read_only = from != 0});
    if (from) REQUIRE(saves.load());
    for (int i = from; i < 6; ++i) {
      if (i == 3 && !from) saves.save({3, 0});
      tape steps(run);
      const auto x = randn<float>(extents<6, 5>{}, {.seed = static_cast<std::uint64_t>(i)});
      steps.backward(steps.eval(mean(square(model(x) - 1.0f)) * (i < 2 ? 3.0f : 0.1f)));
      run.step();
    }
    saves.finish();
    for (const state_dict_t& tensors : {run.full(), run.full_optimizer()})
      for (const auto& [name, t] : tensors) {
        std::vector<float> v(static_cast<std::size_t>(t->extents.size()));
        detail::download_to(*t, v.data());
        if (ranks.rank() == 0) all[name] = v;
      }
  });
  return all;
}

}  // namespace

TEST_CASE("amsgrad: the bits of one rank under every stage, and from checkpoints on other ranks") {
  const auto folder = std::filesystem::temp_directory_path() / "weft_amsgrad";
  const auto in = [&](const auto& body) {
    std::filesystem::remove_all(folder);
    body();
    std::filesystem::remove_all(folder);
  };
  std::map<std::string, std::vector<float>> one;
  in([&] { one = amsgrad_on(1, {.deterministic = true}, 0, folder); });
  REQUIRE(one.count("max_exp_avg_sq.layer.weight") == 1);
  const auto &largest = one["max_exp_avg_sq.layer.weight"], &last = one["exp_avg_sq.layer.weight"];
  for (std::size_t i = 0; i < largest.size(); ++i) CHECK(largest[i] > last[i]);
  for (const sharding divide :
       {sharding::none, sharding::optimizer, sharding::gradients, sharding::parameters})
    in([&] {
      CAPTURE(static_cast<int>(divide));
      const parallel_options o{.divide = divide, .deterministic = true};
      CHECK(amsgrad_on(2, o, 0, folder) == one);
      CHECK(amsgrad_on(4, o, 3, folder) == one);
      CHECK(amsgrad_on(1, {.deterministic = true}, 3, folder) == one);
    });
}
