// SPDX-License-Identifier: MIT
// Chapter 3 of the tutorial, docs/tutorial/gradients.md: gradients.
#include <iostream>

#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

int main() {
  section("first");
  // [first]
  variable<float, extents<3>> w(from(extents<3>{}, std::vector<float>{1, 2, 3}));
  tape steps;
  auto loss = steps.eval(sum(w * w));
  steps.backward(loss);
  std::cout << "loss " << loss.item() << "\ngradient " << w.grad() << '\n';
  // [/first]

  section("accumulate");
  // [accumulate]
  steps.backward(steps.eval(sum(w)));  // a second pass adds to the gradient
  std::cout << w.grad() << '\n';
  w.zero_grad();
  std::cout << std::boolalpha << w.grad().defined() << '\n';
  // [/accumulate]

  section("statements");
  // [statements]
  auto h = steps.eval(tanh(w));                       // a statement: its value is available at once
  for (int i = 0; i < 3; ++i)
    if (eval(sum(h)).item() > 1.0f) h = steps.eval(h * 0.5f);   // loops and branches are ordinary C++
  steps.backward(steps.eval(sum(h)));
  std::cout << w.grad() << '\n';
  // [/statements]
  w.zero_grad();

  section("seed");
  // [seed]
  auto y = steps.eval(w * w);
  steps.backward(y, from(extents<3>{}, std::vector<float>{1, 0, 0}));   // a vector needs a seed
  std::cout << w.grad() << '\n';
  // [/seed]
  w.zero_grad();

  section("no_grad");
  // [no_grad]
  auto frozen = steps.eval(sum(detach(w * w) * w));    // no gradient flows through detach
  steps.backward(frozen);
  std::cout << w.grad() << '\n';
  {
    const no_grad quiet(steps);
    steps.eval(sum(w * w));                            // computed but not recorded
  }
  std::cout << steps.size() << " statements on the tape\n";
  // [/no_grad]

  section("grad");
  // [grad]
  auto cube = [](auto x) { return sum(x * x * x); };
  auto slope = grad(cube, w);                          // an expression, like any other
  auto direction = ones<float>(extents<3>{});
  std::cout << eval(slope) << '\n'
            << eval(hvp(cube, w, direction)) << '\n'   // second derivative times a vector
            << eval(grad([&](auto x) { return sum(grad(cube, x)); }, w)) << '\n';
  // [/grad]

  section("check");
  // [check]
  variable<double, extents<2>> z(from(extents<2>{}, std::vector<double>{0.3, -0.8}));
  std::cout << gradcheck([&] { return sum(sin(z) * exp(z)); }, z) << '\n';
  // [/check]

  section("errors");
  // [errors]
  try {
    auto value = eval(sum(w * w));                     // not on the tape
    steps.backward(variable<float, extents<>>(value));
  } catch (const usage_error& error) {
    std::cout << error.what() << '\n';
  }
  try {
    auto value = steps.eval(sum(w * w));
    w.copy_from({0, 0, 0});                            // backward needs the old elements
    steps.backward(value);
  } catch (const value_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/errors]
}
