// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include <weft/weft.hpp>

#include "../../../examples/gpt2.hpp"

using namespace weft;

namespace {
struct mlp {
  linear<4, 8> hidden;
  linear<8, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
struct block {
  causal_self_attention<> attention;
  feed_forward<> mlp;
  layer_normalization<> first, second;
  auto operator()(expression auto x) const {
    return let(x + attention(first(x)), [this](auto h) { return h + mlp(second(h)); });
  }
};
}  // namespace

TEST_CASE("modules: names are PyTorch's") {
  mlp m;
  std::string names;
  for (const auto& [name, p] : state_dict(m)) names += name + " ";
  CHECK(names == "hidden.weight hidden.bias output.weight output.bias ");
  CHECK(parameter_count(m) == 4 * 8 + 8 + 8 * 2 + 2);
  std::ostringstream out;
  out << m;
  CHECK(out.str().find("hidden.weight  [8, 4]              32") != std::string::npos);
}

TEST_CASE("modules: GPT-2 has the names and shapes of Hugging Face's files") {
  const auto m =
      gpt2::model<>::create({.layers = 2, .heads = 2, .width = 8, .context = 16, .vocabulary = 300});
  const auto d = state_dict(m);
  CHECK(d.size() == 2 + 2 * 12 + 2);
  bool found = false;
  for (const auto& [name, p] : d)
    if (name == "h.1.attn.c_attn.weight") found = p->extents == shape{2, {8, 24}};
  CHECK(found);
}

TEST_CASE("initialize: by seed and name alone") {
  mlp a, b;
  initialize(a, 7);
  initialize(b, 7);
  CHECK(a.hidden.weight.to_vector() == b.hidden.weight.to_vector());
  CHECK(a.hidden.bias.to_vector() != a.output.bias.to_vector());
  initialize(b, 8);
  CHECK(a.hidden.weight.to_vector() != b.hidden.weight.to_vector());
  for (float w : a.hidden.weight.to_vector()) CHECK(std::abs(w) <= 0.5f);
}

TEST_CASE("repeat: blocks by one program are the blocks written out") {
  const auto m =
      gpt2::model<>::create({.layers = 3, .heads = 2, .width = 8, .context = 4, .vocabulary = 256});
  auto x = randn<float>(extents<dyn, dyn, dyn>{2, 4, 8});
  auto by_hand = eval(m.h.blocks[2](eval(m.h.blocks[1](eval(m.h.blocks[0](x))))));
  CHECK(eval(m.h(x)).to_vector() == by_hand.to_vector());
  tape steps;
  steps.eval(m.h(x) * 2.0f);
  CHECK(steps.size() == 5);  // the operand, three blocks, the product
}

TEST_CASE("a batch is the sum of its halves: gradient accumulation") {
  mlp m;
  initialize(m, 1);
  auto x = randn<float>(extents<dyn, 4>{6, 4});
  const auto half = [&](index_t from, index_t to) { return eval(slice<0>(x, from, to)); };
  const auto gradient = [&](auto... parts) {
    for (auto& [name, p] : state_dict(m)) p->grad.reset();
    (([&] {
       tape t;
       t.backward(t.eval(sum(square(m(parts)))));
     }()),
     ...);
    return m.hidden.weight.grad().to_vector();
  };
  const auto whole = gradient(x), halves = gradient(half(0, 3), half(3, 6));
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == doctest::Approx(halves[i]).epsilon(1e-5));
}

TEST_CASE("optimisers: one step by hand") {
  const auto after = [](auto optimizer) {
    struct one {
      parameter<extents<2>> w;
    } m{parameter<extents<2>>(from(extents<2>{}, std::vector<float>{1, -2}))};
    for (int i = 0; i < 2; ++i) {
      tape t;
      t.backward(t.eval(sum(square(m.w))));
      optimizer.step(m);
    }
    return m.w.to_vector()[0];
  };
  CHECK(after(sgd{.lr = 0.1}) == doctest::Approx(0.64f));
  CHECK(after(sgd{.lr = 0.1, .momentum = 0.5}) == doctest::Approx(0.8f - 0.1f * (1.6f + 0.5f * 2)));
  CHECK(after(sgd{.lr = 0.1, .momentum = 0.5, .nesterov = true}) ==
        doctest::Approx(0.7f - 0.1f * (1.4f + 0.5f * (1.4f + 0.5f * 2))));
  // Adam's first step is lr whatever the gradient; decay shrinks first.
  CHECK(after(adam{.lr = 0.1}) == doctest::Approx(0.8f).epsilon(1e-3));
  CHECK(after(adamw{.lr = 0.1, .weight_decay = 0.5}) ==
        doctest::Approx((0.95 - 0.1) * 0.95 - 0.1).epsilon(1e-3));
}

TEST_CASE("optimisers: without weight decay, an infinite parameter stays as it is") {
  const auto check = [](auto optimizer) {
    struct two {
      parameter<extents<2>> w;
    } m{parameter<extents<2>>(from(extents<2>{}, std::vector<float>{-INFINITY, 1}))};
    tape t;
    t.backward(t.eval(sum(m.w * from(extents<2>{}, std::vector<float>{0, 1}))));
    optimizer.step(m);
    CHECK(m.w.to_vector()[0] == -INFINITY);
    CHECK(m.w.to_vector()[1] < 1);
  };
  check(sgd{.lr = 0.1});
  check(sgd{.lr = 0.1, .momentum = 0.5, .weight_decay = 1e-50});  // 0 as a float
  check(adam{.lr = 0.1});
  check(adamw{.lr = 0.1, .weight_decay = 0});
  check(rmsprop{.lr = 0.1});
  check(adagrad{.lr = 0.1});
}

TEST_CASE("schedules") {
  const schedule s{schedule::shape::cosine, 1.0, 10, 110};
  CHECK(s.at(0) == doctest::Approx(0.1));
  CHECK(s.at(9) == doctest::Approx(1.0));
  CHECK(s.at(60) == doctest::Approx(0.5));
  CHECK(s.at(110) == 0);
  CHECK(s.at(111) == 0);
  const schedule warms_up{schedule::shape::cosine, 1.0, 10, 10};  // and has no steps left
  CHECK(warms_up.at(9) == 1.0);
  CHECK(warms_up.at(10) == 0);
}

TEST_CASE("clipping: the norm of all gradients") {
  mlp m;
  initialize(m, 1);
  auto x = randn<float>(extents<dyn, 4>{6, 4});
  tape t;
  t.backward(t.eval(sum(square(m(x))) * 100.0f));
  const double norm = clip_grad_norm(m, 1.0);
  CHECK(norm > 1);
  CHECK(gradient_norm(parameters_of(m)) == doctest::Approx(1.0).epsilon(1e-4));
  clip_grad_value(m, 1e-3f);
  for (float g : m.hidden.weight.grad().to_vector()) CHECK(std::abs(g) <= 1e-3f);
}

TEST_CASE("sequential names its modules by number and applies them in order") {
  sequential model{linear<4, 3>{}, [](auto x) { return relu(x); }, linear<3, 2>{}};
  const auto names = state_dict(model);
  REQUIRE(names.size() == 4);
  CHECK(names[0].first == "0.weight");
  CHECK(names[3].first == "2.bias");
  const auto x = randn<float>(extents<dyn, 4>{5, 4});
  const auto& [first, activation, last] = model.modules;
  CHECK(eval(model(x)).to_vector() == eval(last(relu(first(x)))).to_vector());
}

TEST_CASE("causal self-attention is the softmax of masked scores") {
  const index_t B = 2, T = 5, C = 8, H = 2;
  auto layer = causal_self_attention<8>::create(C, H);
  initialize(layer, 3);
  CHECK(state_dict(layer)[0].first == "qkv.weight");
  const auto x = randn<float>(extents<dyn, dyn, 8>{B, T, C});
  const auto y = eval(layer(x)).to_vector();
  const auto all = eval(layer.qkv(x)).to_vector();
  std::vector<float> mixed(static_cast<std::size_t>(B * T * C));
  for (index_t b = 0; b < B; ++b)
    for (index_t t = 0; t < T; ++t)
      for (index_t h = 0; h < H; ++h) {
        const auto part = [&](index_t at, index_t which, index_t d) {
          return static_cast<double>(
              all[static_cast<std::size_t>(((b * T + at) * 3 + which) * C + h * (C / H) + d)]);
        };
        std::vector<double> weight;
        double total = 0;
        for (index_t j = 0; j <= t; ++j) {
          double score = 0;
          for (index_t d = 0; d < C / H; ++d) score += part(t, 0, d) * part(j, 1, d);
          total += weight.emplace_back(std::exp(score / std::sqrt(4.0)));
        }
        for (index_t d = 0; d < C / H; ++d) {
          double sum = 0;
          for (index_t j = 0; j <= t; ++j) sum += weight[static_cast<std::size_t>(j)] / total * part(j, 2, d);
          mixed[static_cast<std::size_t>((b * T + t) * C + h * (C / H) + d)] = static_cast<float>(sum);
        }
      }
  const auto expected = eval(layer.out(from(extents<dyn, dyn, 8>{B, T, C}, mixed))).to_vector();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  CHECK_THROWS_AS(causal_self_attention<>::create(8, 3), value_error);
}

TEST_CASE("feed_forward keeps the form, and moving a model moves every parameter") {
  auto layer = feed_forward<>::create(6, 24);
  const auto x = randn<float>(extents<dyn, dyn, 6>{2, 3, 6});
  CHECK(eval(layer(x)).extents() == shape{3, {2, 3, 6}});
  const auto before = eval(layer(x)).to_vector();
  const device other(std::make_shared<cpu::cpu_backend>(1));
  to(layer, other);
  context c(other);
  CHECK(layer.in.weight.state()->where == other);
  CHECK(eval(layer(x.to(other)), c).to_vector() == before);
}

namespace {
struct counted {
  linear<3, 5> in;
  layer_normalization<5> norm;
  int heads = 2;
};
}  // namespace

TEST_CASE("the number of parameters is a constant where extents are") {
  static_assert(parameter_count<counted>() == 15 + 5 + 5 + 5);
  CHECK(parameter_count(counted{}) == parameter_count<counted>());
}

namespace {
struct with_buffers {
  tensor<std::int32_t, extents<2>> count{shape{1, {2}}};
  counted inner;
  tensor<float, extents<dyn>> unset;
};
}  // namespace

namespace {
struct half_built {
  parameter<extents<3>> scale;  // never given elements
  std::optional<parameter<extents<3>>> shift;
  tensor<float, extents<3>> running;  // a buffer may be without
};
struct half_built_stack {
  std::vector<half_built> h{1};
};
}  // namespace

TEST_CASE("a parameter without elements is named by its path") {
  half_built_stack model;
  const char* what =
      "weft: the parameter h.0.scale of type f32 [3] has no elements: give it some (layers with a dyn size "
      "are made by `create`), "
      "or make it a std::optional if it may be absent";
  CHECK_THROWS_WITH_AS(state_dict(model), what, value_error);
  CHECK_THROWS_WITH_AS(initialize(model, 1), what, value_error);
  model.h[0].scale = parameter<extents<3>>(zeros<float>(extents<3>{}));
  CHECK(state_dict(model).size() == 1);
}

TEST_CASE("buffers are part of the state and are not trained") {
  static_assert(parameter_count<with_buffers>() == parameter_count<counted>());
  with_buffers m;
  m.count.copy_from({3, 4});
  const auto names = [](const state_dict_t& some) {
    std::string all;
    for (const auto& [name, t] : some) all += name + " ";
    return all;
  };
  CHECK(names(state_dict(m)) == "count inner.in.weight inner.in.bias inner.norm.weight inner.norm.bias ");
  CHECK(names(named_parameters(m)) == "inner.in.weight inner.in.bias inner.norm.weight inner.norm.bias ");
  CHECK(names(named_buffers(m)) == "count ");
  CHECK(parameters_of(m).size() == 4);
  initialize(m, 1);
  CHECK(m.count.to_vector() == std::vector<std::int32_t>{3, 4});
  std::ostringstream out;
  out << m;
  CHECK(out.str().find("30\nbuffer  ") != std::string::npos);
  const device other(std::make_shared<cpu::cpu_backend>(1));
  to(m, other);
  CHECK(m.count.state()->where == other);
  CHECK(m.inner.in.weight.state()->where == other);
}

TEST_CASE("optimisers update a parameter and its state in one kernel") {
  struct counted_backend : cpu::cpu_backend {
    int launches = 0;
    void launch(const kernel_call& call) override {
      ++launches;
      cpu_backend::launch(call);
    }
  };
  const auto counts = std::make_shared<counted_backend>();
  const device where(counts);
  context c(where);
  const auto launches_of = [&](auto optimizer) {
    auto layer = linear<>::create(3, 4, where);
    for (const auto& p : parameters_of(layer)) p->grad = make_state(where, p->extents, p->type);
    counts->launches = 0;
    optimizer.step(layer, 0.5, c);
    return counts->launches;
  };
  CHECK(launches_of(adamw{.weight_decay = 0.1}) == 2);  // weight and bias
  CHECK(launches_of(adam{}) == 2);
  CHECK(launches_of(sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}) == 2);
}

TEST_CASE("a transformer block copies nothing, though no extent is known") {
  using program_of =
      decltype(std::declval<block>()(std::declval<tensor<float, extents<dyn, dyn, dyn>, true>>()));
  const auto copies = [](const lower::plan_view& p) {
    return std::count_if(p.values.begin(), p.values.end(),
                         [](const lower::value_entry& v) { return v.op == std::string_view("contiguous"); });
  };
  CHECK(copies(runtime::forward_program<program_of>::plan) == 0);
  CHECK(copies(runtime::backward_program<program_of>::plan) == 0);
}

TEST_CASE("parameters that are made by default: each is drawn anew, and the same on every thread") {
  struct two {
    linear<3, 16> a;
    linear<16, 3> b;  // as many elements as `a`, with another bound
    linear<3, 16> c;
  };
  const auto scaled = [](const auto& weight, double bound) {
    std::vector<float> all = weight.to_vector();
    for (float& x : all) x = static_cast<float>(x / bound);
    return all;
  };
  const auto made = [&] {
    const two m;
    return std::array{scaled(m.a.weight, 1 / std::sqrt(3.0)), scaled(m.b.weight, 0.25),
                      scaled(m.c.weight, 1 / std::sqrt(3.0))};
  };
  std::array<std::vector<float>, 3> first, second;
  std::thread([&] { first = made(); }).join();
  std::thread([&] { second = made(); }).join();
  CHECK(first == second);
  const auto equal = [](const std::vector<float>& x, const std::vector<float>& y) {
    int n = 0;
    for (std::size_t i = 0; i < x.size(); ++i) n += std::abs(x[i] - y[i]) < 1e-6f;
    return n;
  };
  CHECK(equal(first[0], first[1]) < 3);
  CHECK(equal(first[0], first[2]) < 3);
}

namespace {
std::vector<leaf_role> roles_in(const graph::compute_graph& g) {
  std::vector<leaf_role> roles(static_cast<std::size_t>(g.leaves));
  for (const graph::node& n : g.nodes)
    if (n.op == &graph::info_of<op::leaf>) roles[static_cast<std::size_t>(n.at[0])] = n.role;
  return roles;
}
}  // namespace

TEST_CASE("parameters that are made by default share no random numbers with tensors of small seeds") {
  std::vector<std::vector<float>> weights;
  std::thread([&] {  // from the first parameter on
    for (int i = 0; i < 3; ++i)
      weights.push_back(parameter<extents<64>>(make_parameter(extents<64>{}, init::uniform(1))).to_vector());
  }).join();
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
      const auto drawn = eval(2.0f * rand<float>(extents<64>{}, {seed, stream}) - 1.0f).to_vector();
      for (const auto& w : weights) CHECK(w[0] != drawn[0]);
    }
}

TEST_CASE("leaves of graphs know parameters from variables and data, forward and backward") {
  constexpr auto data = leaf_role::untracked, input = leaf_role::variable, parameter = leaf_role::parameter;
  variable<float, extents<dyn, 3>> x(zeros<float>(extents<dyn, 3>{2, 3}));
  const auto target = zeros<float>(extents<dyn, 2>{2, 2});
  const linear<3, 2> layer;
  const auto loss = mean(square(layer(x) - target)) + sum(layer.weight[0]);
  using E = std::remove_const_t<decltype(loss)>;
  graph::compute_graph g;
  graph::flatten<E>(g);
  CHECK(roles_in(g) == std::vector{input, parameter, parameter, data, parameter});
  const graph::compute_graph joint = runtime::detail::joint_graph_of<E, program_options<>>();
  const auto kept = autodiff::saved_values(joint);
  const auto backward = roles_in(autodiff::backward_part(joint, kept));
  REQUIRE(backward.size() > 4);
  CHECK(backward[0] == input);
  CHECK(backward[1] == parameter);
  CHECK(backward.back() == data);  // the cotangent
}

TEST_CASE("a parameter stands wherever a variable does, and the other way round") {
  parameter<extents<2>> p = make_parameter(extents<2>{}, init::constant(3));
  const variable<float, extents<2>> same = p;
  CHECK(same.state() == p.state());
  const auto of_variable = []<class E>(const variable<float, E>& v) { return v.state(); };
  CHECK(of_variable(p) == p.state());
  p = variable<float, extents<2>>(from(extents<2>{}, std::vector<float>{1, 2}));
  CHECK(p.to_vector() == std::vector<float>{1, 2});
  CHECK(same.to_vector() == std::vector<float>{3, 3});
  tape steps;
  const auto before = p;
  p = steps.eval(before * 2.0f);
  steps.backward(p, full<float>(extents<2>{}, 1.0f));
  CHECK(before.grad().to_vector() == std::vector<float>{2, 2});
  static_assert(std::is_same_v<decltype(p.snapshot()), decltype(p)>);
  static_assert(std::is_same_v<decltype(p.to(default_device())), decltype(p)>);
  const auto written = p * 2.0f;
  p.copy_from(std::vector<float>{5, 6});
  CHECK_THROWS_AS(eval(written), value_error);
  const parameter<extents<dyn>> less_exact(p);
  CHECK(less_exact.state() == p.state());
}
