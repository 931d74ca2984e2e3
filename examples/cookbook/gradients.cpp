// SPDX-License-Identifier: MIT
// Recipes of docs/cookbook/gradients.md.
#include <iostream>

#include <weft/run/debug.hpp>
#include <weft/train/inspect.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

struct mlp {
  linear<4, 8> hidden;
  linear<8, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

int main() {
  auto x = randn<float>(extents<8, 4>{}, {.seed = 1});
  auto y = randn<float>(extents<8, 2>{}, {.seed = 2});
  mlp model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};

  section("newton");
  // [newton]
  // The minimum of f by Newton's method; its Hessian is diagonal, so one product with ones gives all of it.
  auto f = [](auto v) { return sum(exp(v) - 2.0 * v); };
  variable<double, extents<2>> v(from(extents<2>{}, std::vector<double>{0, 2}));
  for (int i = 0; i < 8; ++i)
    update(v, v - grad(f, v) / hvp(f, v, ones<double>(extents<2>{})));
  std::cout << v << '\n';                              // log 2, twice
  // [/newton]

  section("freeze");
  // [freeze]
  // Trains only the output layer: no gradient is computed for detached operands.
  tape steps;
  const float before = model.hidden.weight.data()[0];
  steps.backward(steps.eval(mse_loss(model.output(detach(relu(model.hidden(x)))), y)));
  std::cout << std::boolalpha << model.hidden.weight.grad().defined() << ' '
            << model.output.weight.grad().defined() << '\n';
  optimizer.step(model);                               // updates parameters that have a gradient
  std::cout << (model.hidden.weight.data()[0] == before) << '\n';
  // [/freeze]

  section("freeze_some");
  // [freeze_some]
  steps.backward(steps.eval(mse_loss(model(x), y)));
  for_each_parameter(model, [](const std::string& name, auto& p) {
    if (name.ends_with("bias")) p.zero_grad();         // parameters without a gradient are not updated
  });
  optimizer.step(model);
  // [/freeze_some]

  section("no_grad");
  // [no_grad]
  auto valid = eval(mse_loss(model(x), y));            // eval never records
  {
    const no_grad quiet(steps);                        // for code that takes a tape
    steps.eval(mse_loss(model(x), y));
  }
  std::cout << steps.size() << " statements\n";
  // [/no_grad]

  section("two_losses");
  // [two_losses]
  // Two losses, one backward pass.
  auto first = steps.eval(mse_loss(model(x), y));
  auto second = steps.eval(sum(square(model.output.weight)));
  steps.backward(steps.eval(first + second * 1e-3f));
  optimizer.step(model);
  // [/two_losses]

  section("adversarial");
  // [adversarial]
  // A GAN on one tape: the first pass does not reach `fake`, which the second one differentiates.
  linear<2, 4> generator;
  adamw of_generator;
  auto fake = steps.eval(generator(randn<float>(extents<8, 2>{}, {.seed = 3})));
  steps.backward(steps.eval(mean(softplus(-model(x))) + mean(softplus(model(detach(fake))))));
  optimizer.step(model);  // the discriminator
  steps.backward(steps.eval(mean(softplus(-model(fake)))));
  of_generator.step(generator);
  zero_grad(model);  // drops what the second pass left there
  // [/adversarial]
  std::cout << steps.size() << ' ' << of_generator.steps << '\n';

  section("penalty");
  // [penalty]
  // A gradient in the loss: a penalty on the model's gradient with respect to its input. Two statements,
  // because the penalty is a program of its own.
  auto score = [&](auto at) { return sum(model(at)); };
  auto penalty = steps.eval(mean(square(grad(score, x))));
  auto value = steps.eval(mse_loss(model(x), y));
  steps.backward(steps.eval(value + penalty * 0.1f));
  std::cout << model.hidden.weight.grad().defined() << '\n';
  zero_grad(model);
  // [/penalty]

  section("hook");
  // [hook]
  model.output.bias.on_gradient([](auto gradient) {
    std::cout << "gradient of " << to_string(gradient.extents()) << '\n';
  });
  auto h = steps.eval(model.hidden(x));
  h.on_gradient([](auto gradient) {                    // the value's complete gradient, before it flows on
    update(gradient, clamp(gradient, -0.01f, 0.01f));
  });
  steps.backward(steps.eval(mse_loss(model.output(relu(h)), y)));
  zero_grad(model);
  // [/hook]

  section("tap");
  // [tap]
  context watched;
  watched.on_tap = [](const tapped& t) {               // default: range and mean to stderr
    std::cout << t.name << ' ' << to_string(t.extents) << '\n';
  };
  eval(model.output(relu(tap(model.hidden(x), "before relu"))), watched);
  // [/tap]

  section("nan");
  // [debug]
  debug(relu(model.output.bias));                      // file and line, type, shape, elements to stderr
  // [/debug]

  // [nan]
  model.output.weight.mutable_data()[0] = 1e30f;
  auto found = find_non_finite(state_dict(model), default_context(), [&](context& checked) {
    eval(sum(exp(model(x))), checked);
  });
  if (found) std::cout << found->module << ": " << found->op << '\n';
  // [/nan]
  (void)valid;
}
