// SPDX-License-Identifier: MIT
#include <weft/weft.hpp>

#include "tiny.hpp"

using namespace weft;

struct mlp {
  linear<tiny::features, tiny::hidden> first;
  linear<tiny::hidden, tiny::classes> second;
  auto operator()(expression auto x) const { return second(relu(first(x))); }
};

struct four_gates {
  linear<tiny::cell_width, 4 * tiny::cell_width> input, state;
};

struct recurrence {
  parameter<extents<>> w;
};

int main(int, char** values) {
  const device where(std::make_shared<cpu::cpu_backend>(ops::threads_of(values)));
  context c(where);
  const auto filled = [&](auto extents) { return generate<float>(extents, ops::element, where); };
  sgd optimizer{.lr = tiny::rate};

  mlp classifier;
  to(classifier, where);
  initialize(classifier, 1);
  const auto images = filled(extents<dyn, tiny::features>{tiny::batch, tiny::features});
  const auto labels = generate<std::int32_t>(
      extents<dyn>{tiny::batch}, [](index_t i) { return i % tiny::classes; }, where);

  four_gates cell;
  to(cell, where);
  initialize(cell, 1);
  const auto x = filled(extents<tiny::cell_batch, tiny::cell_width>{});
  const auto zero = zeros<float>(extents<tiny::cell_batch, tiny::cell_width>{}, where);

  recurrence scalar;
  scalar.w = parameter<extents<>>(full<float>(extents<>{}, 0.5f, where));
  const auto one = ones<float>(extents<>{}, where);

  ops::serve({tiny::repeated("MLP step", [&] {
                 tape steps(c);
                 auto loss = steps.eval(cross_entropy(classifier(images), labels));
                 steps.backward(loss);
                 optimizer.step(classifier, 1, c);
               }),
             tiny::repeated("LSTM, 32 steps", [&] {
                 tape steps(c);
                 auto h = variable<float, extents<tiny::cell_batch, tiny::cell_width>>(zero);
                 auto s = h;
                 for (int i = 0; i < tiny::sequence; ++i) {
                   auto gates = steps.eval(cell.input(x) + cell.state(h));
                   const auto gate = [&](int n) {
                     return slice<1>(gates, n * tiny::cell_width, (n + 1) * tiny::cell_width);
                   };
                   s = steps.eval(sigmoid(gate(0)) * s + sigmoid(gate(1)) * tanh(gate(2)));
                   h = steps.eval(sigmoid(gate(3)) * tanh(s));
                 }
                 auto loss = steps.eval(mean(h * h));
                 steps.backward(loss);
                 optimizer.step(cell, 1, c);
               }),
             tiny::repeated("100 scalar statements", [&] {
                 tape steps(c);
                 auto y = variable<float, extents<>>(one);
                 for (int i = 0; i < tiny::scalar_steps; ++i) y = steps.eval(sin(y) * scalar.w + y);
                 steps.backward(y);
                 optimizer.step(scalar, 1, c);
               })});
}
