// SPDX-License-Identifier: MIT
// The training step of gpt_weft.cpp in LibTorch.
//
//   gpt_libtorch LAYERS HEADS WIDTH CONTEXT BATCH VOCABULARY THREADS
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "ops.hpp"

using torch::Tensor;
namespace F = torch::nn::functional;

namespace {

struct block {
  Tensor w1, b1, wa, ba, wp, bp, w2, b2, wf, bf, wo, bo;
};

Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b) {
  return F::layer_norm(x, F::LayerNormFuncOptions({x.size(-1)}).weight(w).bias(b));
}

}  // namespace

int main(int count, char** values) {
  if (count != 8) return 2;
  long n[7];
  for (int i = 0; i < 7; ++i) n[i] = std::atol(values[i + 1]);
  const auto [layers, heads, width, context, batch, vocabulary, threads] = n;
  torch::set_num_threads(static_cast<int>(threads));
  torch::manual_seed(1);
  std::vector<Tensor> decayed, free;
  const auto normal = [&](at::IntArrayRef s) {
    return decayed.emplace_back((torch::randn(s) * 0.02).requires_grad_());
  };
  const auto filled = [&](long size, double x) {
    return free.emplace_back(torch::full({size}, x).requires_grad_());
  };
  const Tensor wte = normal({vocabulary, width}), wpe = normal({context, width});
  std::vector<block> blocks;
  for (long l = 0; l < layers; ++l)
    blocks.push_back({filled(width, 1), filled(width, 0), normal({width, 3 * width}), filled(3 * width, 0),
                      normal({width, width}), filled(width, 0), filled(width, 1), filled(width, 0),
                      normal({width, 4 * width}), filled(4 * width, 0), normal({4 * width, width}),
                      filled(width, 0)});
  const Tensor last_w = filled(width, 1), last_b = filled(width, 0);
  const auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(3e-4).betas({0.9, 0.95}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(0.1));
  groups.emplace_back(free, options(0.0));
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(3e-4));
  std::vector<Tensor> all = decayed;
  all.insert(all.end(), free.begin(), free.end());
  const Tensor tokens = torch::randint(256, {batch, context}), labels = torch::randint(256, {batch, context});
  const Tensor mask = torch::full({context, context}, -INFINITY).triu(1);
  const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
  const auto model = [&] {
    Tensor x = F::embedding(tokens, wte) + wpe;
    for (const block& b : blocks) {
      const Tensor qkv = torch::addmm(b.ba, layer_norm(x, b.w1, b.b1).view({-1, width}), b.wa)
                             .view({batch, context, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
      const Tensor weights =
          torch::softmax(torch::matmul(qkv[0], qkv[1].transpose(-1, -2)) * scale + mask, -1);
      const Tensor mixed = torch::matmul(weights, qkv[2]).transpose(1, 2).reshape({-1, width});
      x = x + torch::addmm(b.bp, mixed, b.wp).view({batch, context, width});
      const Tensor hidden =
          torch::gelu(torch::addmm(b.bf, layer_norm(x, b.w2, b.b2).view({-1, width}), b.wf), "tanh");
      x = x + torch::addmm(b.bo, hidden, b.wo).view({batch, context, width});
    }
    return torch::matmul(layer_norm(x, last_w, last_b), wte.t());
  };
  ops::serve({{"step", [&] {
                 const Tensor loss = F::cross_entropy(model().view({-1, vocabulary}), labels.view({-1}));
                 optimizer.zero_grad();
                 loss.backward();
                 torch::nn::utils::clip_grad_norm_(all, 1.0);
                 optimizer.step();
                 loss.item<float>();
               }}});
}
