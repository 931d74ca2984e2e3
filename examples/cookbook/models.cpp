// SPDX-License-Identifier: MIT
// Recipes of docs/cookbook/models.md.
#include <cmath>
#include <iostream>

#include <weft/optim/clip.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

// [lstm]
/// Running sums of a sequence, [time, batch, 2] -> [time, batch, 1].
struct adding {
  lstm<2, 16> first;
  gru<16, 16> second;   // layers are stacked by applying one to the outputs of another
  linear<16, 1> head;
  auto operator()(expression auto x) const { return head(second(first(x))); }
};
// [/lstm]

// [gru]
/// One step of a gated recurrent unit, with the parameters of torch.nn.GRUCell in two linear layers.
template <index_t In, index_t Hidden>
struct own_gru_cell {
  linear<In, 3 * Hidden> input;
  linear<Hidden, 3 * Hidden> hidden;

  auto operator()(expression auto x, expression auto h) const {
    auto from_x = shared(input(x));   // read three times, like from_h
    auto from_h = shared(hidden(h));
    auto reset = sigmoid(chunk<1, 3, 0>(from_x) + chunk<1, 3, 0>(from_h));
    auto keep = shared(sigmoid(chunk<1, 3, 1>(from_x) + chunk<1, 3, 1>(from_h)));
    auto fresh = tanh(chunk<1, 3, 2>(from_x) + reset * chunk<1, 3, 2>(from_h));
    return (1 - keep) * fresh + keep * h;
  }
};
struct summing {   // [batch, time, 2] -> [batch, 1]
  own_gru_cell<2, 16> cell;
  linear<16, 1> head;
};
// [/gru]

// [cnn]
/// Two convolutions and a linear layer: images [B, 1, 16, 16] -> two classes.
struct convolutional {
  convolution2d<1, 8, 3, conv_options{.padding = 1}> first;
  convolution2d<8, 16, 3, conv_options{.padding = 1}> second;
  linear<16 * 4 * 4, 2> head;

  auto operator()(expression auto x) const {
    auto h = max_pool2d<2>(relu(first(x)));      // [B, 8, 8, 8]
    auto y = max_pool2d<2>(relu(second(h)));     // [B, 16, 4, 4]
    return head(flatten<1, 3>(y));
  }
};
// [/cnn]

// [vae]
/// A variational autoencoder with 8 latent numbers.
struct vae {
  linear<64, 128> encoder;
  linear<128, 8> mean, log_variance;
  linear<8, 128> decoder;
  linear<128, 64> pixels;

  auto encode(expression auto x) const { return relu(encoder(x)); }
  auto decode(expression auto z) const { return pixels(relu(decoder(z))); }
};
// [/vae]

// [unet]
template <index_t In, index_t Out>
struct two_convolutions {
  convolution2d<In, Out, 3, conv_options{.padding = 1}> first;
  convolution2d<Out, Out, 3, conv_options{.padding = 1}> second;
  auto operator()(expression auto x) const { return relu(second(relu(first(x)))); }
};

/// Images [B, 1, 16, 16] -> a logit for each pixel. Each level is a statement.
struct unet {
  two_convolutions<1, 8> down;
  two_convolutions<8, 16> middle;
  two_convolutions<24, 8> up;
  convolution2d<8, 1, 1> head;

  auto operator()(auto& steps, expression auto x) const {
    auto skip = steps.eval(down(x));                              // [B, 8, 16, 16]
    auto low = steps.eval(middle(max_pool2d<2>(skip)));           // [B, 16, 8, 8]
    auto high = steps.eval(up(concat<1>(upsample_nearest<2>(low), skip)));
    return steps.eval(head(high));
  }
};
// [/unet]

int main() {
  section("cnn");
  {
    // [train_cnn]
    // Rings and discs, anywhere in the image.
    const index_t images = 256, side = 16;
    auto place = rand<float>(extents<dyn, 2>{images, 2});
    auto x = generate<float>(extents<dyn, 1, 16, 16>{images, 1, side, side}, [&](index_t i) {
      const index_t n = i / (side * side);
      const double down = static_cast<double>(i / side % side) - 4 - 7 * place(n, 0);
      const double across = static_cast<double>(i % side) - 4 - 7 * place(n, 1);
      const double distance = std::hypot(down, across);
      return distance < 4 && (n % 2 == 0 || distance > 2.5) ? 1.0 : 0.0;
    });
    auto labels = generate<std::int32_t>(extents<dyn>{images}, [](index_t n) { return n % 2; });

    convolutional model;
    initialize(model, 1);
    adamw optimizer{.lr = 3e-3};
    for (int step = 0; step < 60; ++step) {
      tape steps;
      auto loss = steps.eval(cross_entropy(model(x), labels));
      steps.backward(loss);
      optimizer.step(model);
    }
    auto right = eval(mean(cast<float>(equal(argmax<1>(model(x)), labels))));
    std::cout << (right.item() > 0.98f ? "learnt" : "not learnt") << '\n';
    // [/train_cnn]
  }
  section("lstm");
  {
    // [train_lstm]
    adding model;
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    float loss_of_step = 0;
    for (int step = 0; step < 150; ++step) {
      const index_t length = 4 + step % 3;   // any length
      auto x = rand<float>(extents<dyn, dyn, 2>{length, 32}, {.seed = static_cast<std::uint64_t>(step)});
      auto y = eval(cumsum<0>(slice<2, 0, 1>(x)));
      tape steps;
      auto loss = steps.eval(mse_loss(model(x), y));
      steps.backward(loss);
      optimizer.step(model);
      loss_of_step = loss.item();
    }
    std::cout << (loss_of_step < 0.1f ? "learnt" : "not learnt") << '\n';
    // [/train_lstm]
    auto x = rand<float>(extents<dyn, dyn, 2>{8, 1});
    // [lstm_state]
    auto part = slice<0>(x, 0, 5), rest = slice<0>(x, 5, 8);
    auto states = eval(model.first.states(part));            // [5, 2, batch, 16]: h and c after each step
    auto outputs = select<1>(states, 0);                     // equals model.first(part)
    auto later = eval(model.first(rest, states[4]));         // continues from the last state
    lstm_cell<2, 16> cell{model.first.weight_ih_l0, model.first.weight_hh_l0, model.first.bias_ih_l0,
                          model.first.bias_hh_l0};           // one step at a time
    auto state = eval(cell(x[5], states[4]));                // [2, batch, 16]
    // [/lstm_state]
    const auto h = eval(outputs[0]).to_vector(), whole = eval(model.first(x)).to_vector();
    const bool same = std::abs(h[3] - whole[3]) < 1e-5f &&
                      std::abs(later.to_vector()[2 * 16] - whole[7 * 16]) < 1e-5f &&
                      std::abs(eval(state[0]).to_vector()[1] - whole[5 * 16 + 1]) < 1e-5f;
    std::cout << (same ? "the same" : "different") << '\n';
  }

  section("gru");
  {
    // [train_gru]
    summing model;
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    float loss_of_step = 0;
    for (int step = 0; step < 200; ++step) {
      const index_t length = 4 + step % 3;                        // any length: the loop is C++
      auto x = rand<float>(extents<dyn, dyn, 2>{32, length}, {.seed = static_cast<std::uint64_t>(step)});
      auto y = eval(sum(select<2>(x, 0), dims<1>, keepdim));      // the sum of the first feature
      tape steps;
      auto h = steps.eval(zeros<float>(extents<dyn, 16>{32}));
      for (index_t t = 0; t < length; ++t) h = steps.eval(model.cell(select<1>(x, t), h));
      auto loss = steps.eval(mse_loss(model.head(h), y));
      steps.backward(loss);
      clip_grad_norm(model, 1.0);
      optimizer.step(model);
      loss_of_step = loss.item();
    }
    std::cout << (loss_of_step < 0.2f ? "learnt" : "not learnt") << '\n';
    // [/train_gru]
  }

  section("vae");
  {
    // [train_vae]
    vae model;
    initialize(model, 1);
    adamw optimizer{.lr = 2e-3};
    // Pictures of 8 by 8: column i % 8 is white.
    auto x =
        generate<float>(extents<dyn, 64>{32}, [](index_t i) { return i % 8 == i / 64 % 8 ? 1.0f : 0.0f; });
    float first = 0, last = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      tape steps;
      auto hidden = steps.eval(model.encode(x));
      auto mean = steps.eval(model.mean(hidden));
      auto log_variance = steps.eval(model.log_variance(hidden));
      auto noise = randn_like(mean, {.seed = step});              // different numbers in each step
      auto z = steps.eval(mean + exp(log_variance * 0.5f) * noise);
      auto likelihood = bce_with_logits<reduction_kind::sum>(model.decode(z), x);
      auto divergence = sum(square(mean) + exp(log_variance) - log_variance - 1.0f) * 0.5f;
      auto loss = steps.eval((likelihood + divergence) / 32.0f);
      steps.backward(loss);
      optimizer.step(model);
      if (step == 0) first = loss.item();
      last = loss.item();
    }
    auto picture = eval(sigmoid(model.decode(randn<float>(extents<1, 8>{}, {.seed = 7}))));
    std::cout << std::boolalpha << (last < first / 2) << ' ' << to_string(picture.extents()) << '\n';
    // [/train_vae]
  }

  section("unet");
  {
    // [train_unet]
    // Noisy images of squares; the model finds the pixels of the square.
    const index_t side = 16;
    auto place = rand<float>(extents<dyn, 2>{32, 2});
    auto mask = generate<float>(extents<dyn, 1, 16, 16>{32, 1, side, side}, [&](index_t i) {
      const index_t n = i / (side * side);
      const double down = static_cast<double>(i / side % side) - 10 * place(n, 0);
      const double across = static_cast<double>(i % side) - 10 * place(n, 1);
      return down >= 0 && down < 6 && across >= 0 && across < 6 ? 1.0f : 0.0f;
    });
    auto x = eval(mask + randn_like(mask, {.seed = 1}) * 0.3f);

    unet model;
    initialize(model, 1);
    adamw optimizer{.lr = 1e-2};
    for (int step = 0; step < 120; ++step) {
      tape steps;                                                 // or tape steps(run), after bind
      auto loss = steps.eval(bce_with_logits(model(steps, x), mask));
      steps.backward(loss);
      optimizer.step(model);
    }
    tape steps;
    no_grad inference(steps);                                     // nothing is recorded
    auto found = eval(mean(cast<float>((model(steps, x) > 0.0f) == (mask > 0.5f)))).item();
    std::cout << (found > 0.95f ? "found" : "not found") << '\n';
    // [/train_unet]
  }
}
