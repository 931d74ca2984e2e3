// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include "tiny.hpp"

int main(int, char** values) {
  torch::set_num_threads(ops::threads_of(values));
  const auto filled = [](std::vector<long> shape) {
    auto t = torch::empty(shape);
    for (long i = 0; i < t.numel(); ++i) t.data_ptr<float>()[i] = ops::element(i);
    return t;
  };

  torch::nn::Sequential classifier(torch::nn::Linear(tiny::features, tiny::hidden), torch::nn::ReLU(),
                                   torch::nn::Linear(tiny::hidden, tiny::classes));
  torch::optim::SGD classifier_sgd(classifier->parameters(), tiny::rate);
  const auto images = filled({tiny::batch, tiny::features});
  const auto labels = torch::arange(tiny::batch, torch::kLong).remainder(tiny::classes);

  torch::nn::LSTMCell cell(torch::nn::LSTMCellOptions(tiny::cell_width, tiny::cell_width));
  torch::optim::SGD cell_sgd(cell->parameters(), tiny::rate);
  const auto x = filled({tiny::cell_batch, tiny::cell_width});

  auto w = torch::full({}, 0.5f, torch::requires_grad());
  torch::optim::SGD scalar_sgd({w}, tiny::rate);

  ops::serve({tiny::repeated("MLP step", [&] {
                 classifier_sgd.zero_grad();
                 auto loss =
                     torch::nn::functional::cross_entropy(classifier->forward(images), labels);
                 loss.backward();
                 classifier_sgd.step();
               }),
             tiny::repeated("LSTM, 32 steps", [&] {
                 cell_sgd.zero_grad();
                 auto h = torch::zeros({tiny::cell_batch, tiny::cell_width}), s = h;
                 for (int i = 0; i < tiny::sequence; ++i)
                   std::tie(h, s) = cell->forward(x, std::make_tuple(h, s));
                 (h * h).mean().backward();
                 cell_sgd.step();
               }),
             tiny::repeated("100 scalar statements", [&] {
                 scalar_sgd.zero_grad();
                 auto y = torch::ones({});
                 for (int i = 0; i < tiny::scalar_steps; ++i) y = torch::sin(y) * w + y;
                 y.backward();
                 scalar_sgd.step();
               })});
}
