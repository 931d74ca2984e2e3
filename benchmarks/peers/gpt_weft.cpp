// SPDX-License-Identifier: MIT
// A training step of GPT-2: forward, backward, clipping by the global norm, AdamW.
//
//   gpt_weft LAYERS HEADS WIDTH CONTEXT BATCH VOCABULARY THREADS f32|bf16|static
//
// static: in f32, with the extents of the smallest step in the types; the arguments must match them.
#include <weft/weft.hpp>

#include "../../examples/gpt2.hpp"
#include "ops.hpp"

using namespace weft;

namespace {

/// `loss_of(model, tokens)` is an expression.
template <class Model, class Context, class Tokens, class LossOf>
void serve(Context& c, const gpt2::config& sizes, const Tokens& tokens, const LossOf& loss_of) {
  auto model = Model::create(sizes, c.where());
  initialize(model, 1);
  adamw optimizer{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1, .decay_from_order = 2};
  ops::serve({{"step", [&] {
                 tape steps(c);
                 auto loss = steps.eval(loss_of(model, tokens));
                 steps.backward(loss);
                 clip_grad_norm(model, 1.0, c);
                 optimizer.step(model, 1, c);
                 loss.item();
               }}});
}

}  // namespace

int main(int count, char** values) {
  if (count != 9) return 2;
  const auto number = [&](int i) { return static_cast<index_t>(std::atoll(values[i])); };
  const gpt2::config sizes{.layers = number(1), .heads = number(2), .width = number(3), .context = number(4),
                           .vocabulary = number(6)};
  const index_t batch = number(5);
  const std::string form = values[8];
  const device where(std::make_shared<cpu::cpu_backend>(static_cast<int>(number(7))));
  const auto words = [&](auto extents) {
    return generate<std::int32_t>(extents, [](index_t i) { return i * 7919 % 256; }, where);
  };
  const auto dynamic = [&](auto c) {
    const tensor<std::int32_t, extents<dyn, dyn>> tokens(words(extents<dyn, dyn>{batch, sizes.context}));
    serve<gpt2::model<>>(c, sizes, tokens, [&](const auto& model, const auto& tokens) {
      return cross_entropy(model(tokens, sizes.context), tokens);
    });
  };
  if (form == "f32") dynamic(context(where));
  else if (form == "bf16") dynamic(context_in<precision::bf16>(where));
  else {
    using model = gpt2::model<128, 4, 256, 64>;
    using tokens = tensor<std::int32_t, extents<12, 64>>;
    if (sizes.layers != 4 || batch != 12) return 2;
    context c(where);
    serve<model>(c, sizes, tokens(words(extents<12, 64>{})),
                 [](const auto& model, const auto& tokens) { return cross_entropy(model(tokens), tokens); });
  }
}
