// SPDX-License-Identifier: MIT
// Layers forward and backward, attention, the optimizer: the tasks of layers_pytorch.py.
#include <weft/weft.hpp>

#include "ops.hpp"

using namespace weft;

namespace {

using matrix = variable<float, extents<dyn, dyn>>;
using vector = variable<float, extents<dyn>>;
using heads = variable<float, extents<dyn, dyn, dyn, dyn>>;

struct table {
  parameter<extents<dyn, dyn>> weight;
};

}  // namespace

int main(int, char** values) {
  const device where(std::make_shared<cpu::cpu_backend>(ops::threads_of(values)));
  context c(where);
  const auto numbers = [&](index_t rows, index_t columns) {
    return matrix(randn<float>(extents<dyn, dyn>{rows, columns}, {}, where));
  };
  // f(x) forward and backward; the gradient of the result is another matrix.
  const auto both_ways = [&](auto f, auto x, auto g) {
    return [=, &c] {
      x.state()->grad.reset();
      tape steps(c);
      steps.backward(steps.eval(f(x)), g);
    };
  };
  std::vector<ops::task> tasks;
  for (const auto& [name, rows, columns] :
       {std::tuple{"in cache", 128, 1024}, {"out of cache", 16384, 1024}}) {
    const matrix x = numbers(rows, columns);
    const tensor<float, extents<dyn, dyn>> g(
        randn<float>(extents<dyn, dyn>{rows, columns}, {.stream = 1}, where));
    const vector weight(ones<float>(extents<dyn>{columns}, where)),
        bias(zeros<float>(extents<dyn>{columns}, where));
    tasks.push_back({std::string("softmax, ") + name, both_ways([](auto x) { return softmax(x); }, x, g)});
    tasks.push_back({std::string("layer_norm, ") + name,
                     both_ways([=](auto x) { return layer_norm(x, weight, bias); }, x, g)});
    tasks.push_back(
        {std::string("rms_norm, ") + name, both_ways([=](auto x) { return rms_norm(x, weight); }, x, g)});
    tasks.push_back({std::string("gelu, ") + name, both_ways([](auto x) { return gelu(x); }, x, g)});
  }
  const matrix logits = numbers(1024, 50304);
  const tensor<std::int64_t, extents<dyn>> labels(generate<std::int64_t>(
      extents<dyn>{1024}, [](index_t i) { return i * 37 % 50304; }, where));
  tasks.push_back({"cross_entropy, 1024 x 50304", [&] {
                     logits.state()->grad.reset();
                     tape steps(c);
                     steps.backward(steps.eval(cross_entropy(logits, labels)));
                   }});
  for (const index_t size : {64, 128})
    for (const index_t context_size : {256, 1024, 4096}) {
      const extents<dyn, dyn, dyn, dyn> e{4096 / context_size, context_size, 768 / size, size};
      const heads q(randn<float>(e, {.stream = 1}, where)), k(randn<float>(e, {.stream = 2}, where)),
          v(randn<float>(e, {.stream = 3}, where));
      const tensor<float, extents<dyn, dyn, dyn, dyn>> g = randn<float>(e, {.stream = 4}, where);
      tasks.push_back(
          {"attention, T " + std::to_string(context_size) + " D " + std::to_string(size), [=, &c] {
             for (const heads* x : {&q, &k, &v}) x->state()->grad.reset();
             tape steps(c);
             steps.backward(steps.eval(attention<causal>(q, k, v)), g);
           }});
    }
  const auto convolution = [&]<index_t In, index_t Out, index_t Size, conv_options O>(const char* name,
                                                                                      index_t side) {
    using weights = extents<Out, In / O.groups, Size, Size>;
    const variable<float, extents<dyn, In, dyn, dyn>> x(
        randn<float>(extents<dyn, In, dyn, dyn>{8, In, side, side}, {}, where));
    const variable<float, weights> weight(randn<float>(weights{}, {.stream = 1}, where));
    const auto g = eval(conv2d<O>(x, weight), c);
    tasks.push_back({std::string("conv2d ") + name, [=, &c] {
                       x.state()->grad.reset();
                       weight.state()->grad.reset();
                       tape steps(c);
                       steps.backward(steps.eval(conv2d<O>(x, weight)), g);
                     }});
  };
  constexpr conv_options same{.padding = 1};
  convolution.operator()<64, 64, 3, same>("64 to 64, 3 x 3, of 56 x 56", 56);
  convolution.operator()<128, 128, 3, same>("128 to 128, 3 x 3, of 28 x 28", 28);
  convolution.operator()<256, 256, 3, same>("256 to 256, 3 x 3, of 14 x 14", 14);
  convolution.operator()<512, 512, 3, same>("512 to 512, 3 x 3, of 7 x 7", 7);
  convolution.operator()<256, 64, 1, conv_options{}>("256 to 64, 1 x 1, of 56 x 56", 56);
  convolution.operator()<64, 128, 3, conv_options{.stride = 2, .padding = 1}>(
      "64 to 128, 3 x 3 by 2, of 56 x 56", 56);
  convolution.operator()<3, 64, 7, conv_options{.stride = 2, .padding = 3}>(
      "3 to 64, 7 x 7 by 2, of 224 x 224", 224);
  convolution.operator()<64, 64, 3, conv_options{.padding = 1, .groups = 64}>(
      "64 in groups of 1, 3 x 3, of 56 x 56", 56);
  table model{make_parameter(extents<dyn, dyn>{1 << 15, 1 << 10}, init::normal(1), where)};
  adamw optimizer{.weight_decay = 0.1};
  const auto gradient = randn<float>(extents<dyn, dyn>{1 << 15, 1 << 10}, {}, where);
  tasks.push_back({"clipping and AdamW, 32 million", [&] {
                     model.weight.state()->grad = gradient.state();
                     const double norm = gradient_norm(parameters_of(model), c);
                     optimizer.step(model, clip_factor(norm, 1.0), c);
                   }});
  ops::serve(tasks);
}
