// SPDX-License-Identifier: MIT
// A hand-written training loop of a dozen lines.
#include <cstdio>

#include <weft/train/text.hpp>
#include <weft/weft.hpp>

#include "gpt2.hpp"

int main(int count, char** values) {
  using namespace weft;
  const gpt2::config sizes{.layers = 2, .heads = 2, .width = 64, .context = 32};
  auto model = gpt2::model<>::create(sizes);
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  loader batches(
      text_samples(read_text({count > 1 ? values[1] : "/usr/share/common-licenses/GPL-3"}), sizes.context),
      {.batch = 16});
  for (int step = 0; step < 50; ++step) {
    auto [inputs, labels] = batches.next();
    tape steps;
    auto loss = steps.eval(cross_entropy(model(inputs, sizes.context), labels));
    steps.backward(loss);
    clip_grad_norm(model, 1.0);
    optimizer.step(model);
    if (step % 10 == 9) std::printf("step %d  loss %.4f\n", step + 1, loss.item());
  }
}
