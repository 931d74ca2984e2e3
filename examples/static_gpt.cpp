// SPDX-License-Identifier: MIT
// The model of train_gpt with static extents, in its smallest configuration. The compiler knows all shapes: a
// wrong shape anywhere in the model does not compile.
//
//   static_gpt [--data FILE_OR_DIR...] [--steps 200] [--threads N]
//
// Prints the milliseconds of each step.
#include <chrono>
#include <cstdio>

#include <weft/train/text.hpp>
#include <weft/weft.hpp>

#include "arguments.hpp"
#include "gpt2.hpp"

using namespace weft;

constexpr index_t B = 12, T = 64, C = 128, H = 4, V = 256, layers = 4;

void train(const std::vector<std::string>& data, index_t steps, int threads) {
  const device where(std::make_shared<cpu::cpu_backend>(threads));
  context c(where);
  auto model = gpt2::model<C, H, V, T>::create({layers, H, C, T, V}, where);
  initialize(model, 1);
  adamw optimizer{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1, .decay_from_order = 2};
  loader batches(text_samples(read_text(data), T), {.batch = B}, where);
  for (index_t step = 0; step < steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    auto [inputs, labels] = batches.next();
    using tokens = tensor<std::uint8_t, extents<B, T>>;
    tape record(c);
    auto loss = record.eval(cross_entropy(model(tokens(inputs)), tokens(labels)));
    record.backward(loss);
    clip_grad_norm(model, 1.0, c);
    optimizer.step(model, 1, c);
    const float value = loss.item();
    std::printf("%.3f\n",
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    if (step + 1 == steps) std::fprintf(stderr, "loss %.4f\n", value);
  }
}

int main(int count, char** values) try {
  std::vector<std::string> data;
  index_t steps = 200;
  int threads = 0;
  arguments a;
  a.list("data", data);
  a.number<index_t>("steps", steps, 1);
  a.number<int>("threads", threads, 1);
  a.parse(count, values);
  if (data.empty()) data = {"/usr/share/common-licenses"};
  train(data, steps, threads);
} catch (const std::exception& e) {
  std::fprintf(stderr, "static_gpt: %s\n", e.what());
  return 2;
}
