// SPDX-License-Identifier: MIT
// Generation with a Llama of 134 million parameters: the tasks of llama_pytorch.py.
#include "../../examples/llama.hpp"
#include "ops.hpp"

using namespace weft;

int main(int, char** values) {
  const device where(std::make_shared<cpu::cpu_backend>(ops::threads_of(values)));
  context c(where);
  auto model = llama::causal_lm<>::create(
      {.layers = 12, .heads = 12, .key_heads = 12, .width = 768, .hidden = 2048, .vocabulary = 32000}, where);
  initialize(model, 1);
  std::vector<ops::task> tasks;
  for (const index_t batch : {1, 8}) {
    const auto prompt =
        generate<std::int32_t>(extents<dyn, dyn>{batch, 128}, [](index_t i) { return i * 7 % 1000; }, where);
    const std::string of = ", batch of " + std::to_string(batch);
    tasks.push_back({"128 tokens at once" + of, [&, prompt] { llama::decoding(model, c)(prompt); }});
    // Predicts the most likely next token.
    auto next = std::make_shared<llama::decoding<10'000, per_million<10>, rope_scaling{}>>(model, c);
    auto logits = std::make_shared<tensor<float, extents<dyn, dyn>>>((*next)(prompt));
    tasks.push_back({"one token" + of, [&, next, logits] {
                       *logits = (*next)(eval(cast<std::int32_t>(argmax<1>(*logits, keepdim)), c));
                     }});
  }
  ops::serve(tasks);
}
