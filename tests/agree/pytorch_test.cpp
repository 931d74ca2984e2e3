// SPDX-License-Identifier: MIT
// Agreement with PyTorch on stored tensors, which tests/agree/make_data.py writes.
//
// Tolerances are relative to the largest element of a tensor.
#include <doctest/doctest.h>

#include <weft/io/safetensors.hpp>
#include <weft/weft.hpp>

#include "../../examples/gpt2.hpp"
#include "../compare.hpp"

using namespace weft;
namespace oracle = test::oracle;

namespace {

io::stored_tensors data(const std::string& name) {
  return io::read_safetensors(std::string(WEFT_TEST_DATA) + "/" + name + ".safetensors");
}

template <class T, class Extents>
tensor<T, Extents> stored(const io::stored_tensors& file, const std::string& name) {
  const io::stored_tensor& s = file.tensors.at(name);
  tensor<T, Extents> t(s.extents);
  io::restore("data", name, s, *t.state());
  return t;
}

/// Compares with a tolerance relative to the largest element; NaN and infinities are in the same places.
template <class T, class Extents, bool Tracked>
test::comparison near(const tensor<T, Extents, Tracked>& ours, const oracle::array& theirs,
                      double part = 1e-5) {
  return test::matches(ours, theirs, {.of_largest = part});
}

using order0 = extents<>;
using order1 = extents<dyn>;
using order2 = extents<dyn, dyn>;
using order3 = extents<dyn, dyn, dyn>;
using order4 = extents<dyn, dyn, dyn, dyn>;

/// Checks that value and gradients of `f` agree with the file within 1e-5.
template <class F, class... Variables>
void agrees(const io::stored_tensors& file, F f, const std::pair<const char*, Variables>&... named) {
  tape steps;
  auto y = steps.eval(f());
  using result = decltype(y);
  CHECK(near(y, oracle::read(stored<float, typename result::extents_type>(file, "y"))));
  steps.backward(y, stored<float, typename result::extents_type>(file, "weights"));
  const auto check = [&](const auto& v) {
    CAPTURE(v.first);
    using variable_type = std::remove_cvref_t<decltype(v.second)>;
    const auto expected =
        stored<float, typename variable_type::extents_type>(file, std::string("grad.") + v.first);
    CHECK(near(v.second.grad(), oracle::read(expected)));
  };
  (check(named), ...);
}

template <class Extents>
variable<float, Extents> input(const io::stored_tensors& file, const std::string& name) {
  return variable<float, Extents>(stored<float, Extents>(file, name));
}

}  // namespace

TEST_CASE("linear") {
  const auto file = data("linear");
  auto x = input<order3>(file, "x");
  auto w = input<order2>(file, "w");
  auto b = input<order1>(file, "b");
  agrees(
      file, [&] { return matmul(x, transpose(w)) + b; }, std::pair{"x", x}, std::pair{"w", w},
      std::pair{"b", b});
}

TEST_CASE("norms") {
  {
    const auto file = data("layer_norm");
    auto x = input<order3>(file, "x");
    auto w = input<order1>(file, "w"), b = input<order1>(file, "b");
    agrees(
        file, [&] { return layer_norm(x, w, b); }, std::pair{"x", x}, std::pair{"w", w}, std::pair{"b", b});
  }
  const auto file = data("rms_norm");
  auto x = input<order3>(file, "x");
  auto w = input<order1>(file, "w");
  agrees(file, [&] { return rms_norm<default_epsilon>(x, w); }, std::pair{"x", x}, std::pair{"w", w});
}

#define AGREES_UNARY(name)                                                \
  TEST_CASE(#name) {                                                      \
    const auto file = data(#name);                                        \
    auto x = input<order3>(file, "x");                                    \
    agrees(file, [&] { return weft::name(x); }, std::pair{"x", x});       \
  }
AGREES_UNARY(softmax)
AGREES_UNARY(log_softmax)
AGREES_UNARY(gelu)
AGREES_UNARY(gelu_tanh)
AGREES_UNARY(silu)
AGREES_UNARY(softplus)

TEST_CASE("embedding") {
  const auto file = data("embedding");
  auto w = input<order2>(file, "w");
  auto i = stored<std::int64_t, order2>(file, "i");
  agrees(file, [&] { return embedding(w, i); }, std::pair{"w", w});
}

TEST_CASE("losses") {
  {
    const auto file = data("cross_entropy");
    auto x = input<order3>(file, "x");
    auto t = stored<std::int64_t, order2>(file, "t");
    agrees(file, [&] { return cross_entropy(x, t); }, std::pair{"x", x});
  }
  {
    const auto file = data("cross_entropy_smooth");
    auto x = input<order3>(file, "x");
    auto t = stored<std::int64_t, order2>(file, "t");
    agrees(
        file, [&] { return cross_entropy<reduction_kind::sum, ignored_label, per_million<100'000>>(x, t); },
        std::pair{"x", x});
  }
  {
    const auto file = data("mse");
    auto x = input<order3>(file, "x"), t = input<order3>(file, "t");
    agrees(file, [&] { return mse_loss(x, t); }, std::pair{"x", x}, std::pair{"t", t});
  }
  const auto file = data("bce");
  auto x = input<order3>(file, "x"), t = input<order3>(file, "t");
  agrees(file, [&] { return bce_with_logits(x, t); }, std::pair{"x", x}, std::pair{"t", t});
}

TEST_CASE("causal attention over more than one block of positions") {
  const auto file = data("attention");
  auto q = input<order4>(file, "q"), k = input<order4>(file, "k"), v = input<order4>(file, "v");
  agrees(
      file, [&] { return attention<causal>(q, k, v); }, std::pair{"q", q}, std::pair{"k", k},
      std::pair{"v", v});
}

TEST_CASE("GPT-2: logits, all gradients, ten steps of AdamW with clipping") {
  const auto file = data("gpt2");
  auto model = gpt2::model<>::create({.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary = 30});
  const auto parameters = state_dict(model);
  for (const auto& [name, p] : parameters) io::restore("data", name, file.tensors.at("start." + name), *p);
  auto tokens = stored<std::int32_t, order2>(file, "tokens"),
       targets = stored<std::int32_t, order2>(file, "targets");
  CHECK(near(eval(model(tokens, 12)), oracle::read(stored<float, order3>(file, "logits"))));
  const auto losses = stored<double, order1>(file, "losses").to_vector();
  adamw optimizer{.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1, .decay_from_order = 2};
  for (int step = 0; step < 10; ++step) {
    tape steps;
    auto loss = steps.eval(cross_entropy(model(tokens, 12), targets));
    CHECK(loss.item() == doctest::Approx(losses[static_cast<std::size_t>(step)]).epsilon(1e-5));
    steps.backward(loss);
    if (step == 0)
      for (const auto& [name, p] : parameters) {
        CAPTURE(name);
        const auto& expected = file.tensors.at("grad." + name);
        tensor_state e(p->where, p->extents, dtype::f32);
        io::restore("data", name, expected, e);
        CHECK(test::matches(oracle::read(*p->grad), oracle::read(e), {.of_largest = 1e-5}));
      }
    clip_grad_norm(model, 1.0);
    optimizer.step(model);
  }
  for (const auto& [name, p] : parameters) {
    CAPTURE(name);
    tensor_state e(p->where, p->extents, dtype::f32);
    io::restore("data", name, file.tensors.at("end." + name), e);
    CHECK(test::matches(oracle::read(*p), oracle::read(e), {.of_largest = 2e-3}));
  }
}
