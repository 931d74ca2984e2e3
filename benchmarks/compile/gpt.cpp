// SPDX-License-Identifier: MIT
// One translation unit that trains GPT-2: forward, backward, clipping, AdamW. LAYERS is the depth.
#include <weft/weft.hpp>

#include "../../examples/gpt2.hpp"

using namespace weft;
using tokens = tensor<std::uint8_t, extents<dyn, dyn>>;

float train(tokens inputs, tokens labels) {
  auto model = gpt2::model<>::create({.layers = LAYERS});
  adamw optimizer{.lr = 3e-4};
  tape steps;
  auto loss = steps.eval(cross_entropy(model(inputs, inputs.extent(1)), labels));
  steps.backward(loss);
  clip_grad_norm(model, 1.0);
  optimizer.step(model);
  return loss.item();
}
