// SPDX-License-Identifier: MIT
// Rows of the cheat sheets: gradients, modules, training, files. NumPy and Eigen have no equivalents.
#include <filesystem>
#include <iostream>

#include <weft/io/tensor_files.hpp>
#include <weft/optim/clip.hpp>
#include <weft/optim/lbfgs.hpp>
#include <weft/optim/muon.hpp>

#include "expect.hpp"
using namespace weft;

struct mlp {
  linear<3, 8> hidden;
  linear<8, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

int main() {
  const auto f = [](auto at) { return sum(exp(at)); };
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto labels = from(extents<2>{}, std::vector<std::int64_t>{0, 1});
  auto images = zeros<float>(extents<2, 3, 8, 8>{});
  auto sequence = zeros<float>(extents<4, 2, 3>{});
  auto targets = zeros<float>(extents<2, 2>{}), probabilities = full(extents<2, 2>{}, 0.5f);
  const std::string file = std::filesystem::temp_directory_path() / "weft_cheat_sheet.safetensors";
  //| w = torch.ones(3, requires_grad=True) | auto w = torch::ones(3, torch::requires_grad()); | - | -
  variable<float, extents<3>> w(ones<float>(extents<3>{}));
  //| (every op is recorded) | (every op is recorded) | - | -
  tape steps;
  //| y = (w * w).sum() | auto y = (w * w).sum(); | - | -
  auto y = steps.eval(sum(w * w));
  //| y.backward() | y.backward() | - | -
  steps.backward(y);
  //| w.grad | w.grad() | - | -
  expect(w.grad(), {2, 2, 2});
  //| w.grad = None | w.mutable_grad() = {} | - | -
  w.zero_grad();
  //| w.detach() * w | w.detach() * w | - | -
  expect(detach(w) * w, {1, 1, 1});
  //| torch.autograd.grad(f(w), w) | torch::autograd::grad({f(w)}, {w}) | - | -
  expect(grad(f, w), {2.71828, 2.71828, 2.71828});
  //| with torch.no_grad(): f(w) | torch::NoGradGuard guard; f(w); | - | -
  expect(eval(f(w)), {8.15485});

  //| model = MLP() | MLP model; | - | -
  mlp model;
  //| torch.manual_seed(1); model = MLP() | - | - | -
  initialize(model, 1);
  //| model(x) | model->forward(x) | - | -
  auto logits = model(x);
  //| nn.Conv2d(3, 4, 3, padding=1) | torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)) | - | - | convolution2d<3, 4, 3, conv_options{.padding = 1}> filter
  convolution2d<3, 4, 3, conv_options{.padding = 1}> filter;
  //| nn.Conv2d(3, 4, 5, padding="same") | torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 5).padding(torch::kSame)) | - | - | convolution2d<3, 4, 5, conv_options{.padding = same_padding}> keeping
  convolution2d<3, 4, 5, conv_options{.padding = same_padding}> keeping;
  //| nn.Embedding(100, 8, padding_idx=0) | torch::nn::Embedding(torch::nn::EmbeddingOptions(100, 8).padding_idx(0)) | - | - | embedding_table<100, 8, divided::nowhere, 0> words
  embedding_table<100, 8, divided::nowhere, 0> words;
  auto q = randn<float>(extents<2, 7, 4, 8>{});   // [batch, position, head, feature], of qt [.., head, ..]
  auto mask = ones<bool>(extents<2, 1, 1, 7>{});
  //| F.scaled_dot_product_attention(qt, qt, qt, is_causal=True).transpose(1, 2) with qt = q.transpose(1, 2) | torch::scaled_dot_product_attention(qt, qt, qt, {}, 0, true).transpose(1, 2) with qt = q.transpose(1, 2) | - | - | attention<causal>(q, q, q)
  compiles(attention<causal>(q, q, q));
  //| F.scaled_dot_product_attention(qt, qt, qt, mask).transpose(1, 2) | torch::scaled_dot_product_attention(qt, qt, qt, mask).transpose(1, 2) | - | - | attention(q, q, q, mask)
  compiles(attention(q, q, q, mask));
  auto kernel = randn<float>(extents<3, 5, 2, 2>{});
  //| F.conv_transpose2d(images, kernel, stride=2) | torch::conv_transpose2d(images, kernel, {}, 2) | - | - | conv_transpose2d<conv_transpose_options{.stride = 2}>(images, kernel)
  compiles(conv_transpose2d<conv_transpose_options{.stride = 2}>(images, kernel));
  //| F.interpolate(images, scale_factor=2) | F::interpolate(images, options) | - | - | upsample_nearest<2>(images)
  compiles(upsample_nearest<2>(images));
  //| F.max_pool2d(filter(images), 2) | torch::max_pool2d(filter(images), 2) | - | - | max_pool2d<2>(filter(images))
  compiles(max_pool2d<2>(filter(images)));
  //| F.avg_pool2d(images, 3, stride=2, padding=1) | torch::avg_pool2d(images, 3, 2, 1) | - | - | avg_pool2d<3, pool_options{.stride = 2, .padding = 1}>(images)
  compiles(avg_pool2d<3, pool_options{.stride = 2, .padding = 1}>(images));
  //| F.max_pool2d(images, 3, stride=2, ceil_mode=True) | torch::max_pool2d(images, 3, 2, 0, 1, true) | - | - | max_pool2d<3, pool_options{.stride = 2, .ceil_mode = true}>(images)
  compiles(max_pool2d<3, pool_options{.stride = 2, .ceil_mode = true}>(images));
  //| F.avg_pool2d(images, 3, padding=1, count_include_pad=False) | torch::avg_pool2d(images, 3, 3, 1, false, false) | - | - | avg_pool2d<3, pool_options{.padding = 1, .count_include_pad = false}>(images)
  compiles(avg_pool2d<3, pool_options{.padding = 1, .count_include_pad = false}>(images));
  //| F.adaptive_avg_pool2d(images, 1) | torch::adaptive_avg_pool2d(images, 1) | - | - | mean(images, dims<2, 3>, keepdim)
  compiles(mean(images, dims<2, 3>, keepdim));
  //| nn.GroupNorm(2, 4) | torch::nn::GroupNorm(2, 4) | - | -
  group_normalization<2, 4> norm;
  //| nn.InstanceNorm2d(4, affine=True) | torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(4).affine(true)) | - | -
  group_normalization<4, 4> instance_norm;
  //| nn.BatchNorm2d(4) | torch::nn::BatchNorm2d(4) | - | -
  batch_normalization<4> batch_norm;
  //| model.eval() | model->eval() | - | -
  set_training(model, false);
  //| nn.LSTM(3, 5) | torch::nn::LSTM(3, 5) | - | -
  lstm<3, 5> memory;
  //| memory(sequence)[0] | std::get<0>(memory(sequence)) | - | -
  compiles(memory(sequence));
  //| nn.GRUCell(3, 5) | torch::nn::GRUCell(3, 5) | - | -
  gru_cell<3, 5> cell;
  //| for name, p in model.named_parameters() | for (auto& p : model->named_parameters()) | - | -
  for (const auto& [name, p] : named_parameters(model)) compiles(p);
  //| sum(p.numel() for p in model.parameters()) | - | - | -
  expect(parameter_count(model), 50);
  //| print(model) | std::cout << model | - | -
  std::cout << model;
  //| model.state_dict() | model->named_parameters() | - | -
  compiles(state_dict(model));
  //| copy.deepcopy(model) | model->clone() | - | -
  auto best = clone(model);
  //| F.cross_entropy(logits, labels) | torch::nn::functional::cross_entropy(logits, labels) | - | -
  auto loss = steps.eval(cross_entropy(logits, labels));
  //| F.nll_loss(log_probabilities, labels) | torch::nll_loss(log_probabilities, labels) | - | -
  compiles(eval(nll_loss(log_softmax(logits), labels)));
  //| F.triplet_margin_loss(logits, targets, probabilities) | torch::triplet_margin_loss(logits, targets, probabilities) | - | -
  compiles(eval(triplet_margin_loss(logits, targets, probabilities)));
  //| F.cosine_embedding_loss(logits, probabilities, labels * 2 - 1) | torch::cosine_embedding_loss(logits, probabilities, labels * 2 - 1) | - | -
  compiles(eval(cosine_embedding_loss(logits, probabilities, labels * 2 - 1)));
  //| F.mse_loss(logits, targets) | torch::mse_loss(logits, targets) | - | -
  compiles(eval(mse_loss(logits, targets)));
  //| F.l1_loss(logits, targets) | torch::l1_loss(logits, targets) | - | -
  compiles(eval(l1_loss(logits, targets)));
  //| F.huber_loss(logits, targets, delta=0.5) | torch::huber_loss(logits, targets, at::Reduction::Mean, 0.5) | - | -
  compiles(eval(huber_loss(logits, targets, 0.5)));
  //| F.smooth_l1_loss(logits, targets) | torch::smooth_l1_loss(logits, targets) | - | -
  compiles(eval(smooth_l1_loss(logits, targets)));
  //| F.cross_entropy(logits, probabilities) | torch::cross_entropy_loss(logits, probabilities) | - | -
  compiles(eval(cross_entropy(logits, probabilities)));
  //| F.kl_div(log_probabilities, probabilities, reduction="sum") | torch::kl_div(log_probabilities, probabilities, at::Reduction::Sum) | - | -
  compiles(eval(kl_div<reduction_kind::sum>(log_softmax(logits), probabilities)));
  //| F.binary_cross_entropy(probabilities, targets) | torch::binary_cross_entropy(probabilities, targets) | - | -
  compiles(eval(binary_cross_entropy(probabilities, targets)));
  //| F.margin_ranking_loss(logits, probabilities, targets) | torch::margin_ranking_loss(logits, probabilities, targets) | - | -
  compiles(eval(margin_ranking_loss(logits, probabilities, targets)));
  //| F.hinge_embedding_loss(logits, targets) | torch::hinge_embedding_loss(logits, targets) | - | -
  compiles(eval(hinge_embedding_loss(logits, targets)));
  //| optimizer = AdamW(model.parameters(), lr=1e-3) | AdamW optimizer(model->parameters(), 1e-3); | - | -
  adamw optimizer{.lr = 1e-3};
  //| torch.optim.Adam(model.parameters(), lr=1e-3) | Adam(model->parameters(), 1e-3) | - | -
  adam without_decay{.lr = 1e-3};
  //| AdamW(model.parameters(), lr=1e-3, amsgrad=True) | AdamW(model->parameters(), AdamWOptions(1e-3).amsgrad(true)) | - | - | amsgrad of_the_largest{adamw{.lr = 1e-3}}
  amsgrad of_the_largest{adamw{.lr = 1e-3}};
  //| torch.optim.Muon(model.parameters(), lr=0.02) | - | - | -
  muon for_matrices{.lr = 0.02};
  //| torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe") | LBFGS(model->parameters(), LBFGSOptions().line_search_fn("strong_wolfe")) | - | -
  lbfgs without_noise{.line_search = true};
  //| OneCycleLR(optimizer, max_lr=0.01, total_steps=100) | - | - | -
  one_cycle rate{.max_lr = 0.01, .steps = 100};
  //| ReduceLROnPlateau(optimizer, patience=3) | ReduceLROnPlateauScheduler(optimizer) | - | -
  plateau patient{.patience = 3};
  //| loss.backward() | loss.backward() | - | -
  steps.backward(loss);
  //| clip_grad_norm_(model.parameters(), 1.0) | clip_grad_norm_(model->parameters(), 1.0) | - | -
  clip_grad_norm(model, 1.0);
  //| optimizer.step(); optimizer.zero_grad() | optimizer.step(); optimizer.zero_grad(); | - | -
  optimizer.step(model);
  //| model.zero_grad() | model->zero_grad() | - | -
  zero_grad(model);
  //| loss.item() | loss.item<float>() | - | -
  compiles(loss.item());
  //| save_file(model.state_dict(), file) | torch::save(model, file), another format | - | -
  io::save(file, state_dict(model));
  //| model.load_state_dict(load_file(file)) | torch::load(model, file), another format | - | -
  io::load(file, state_dict(model));
  //| model.load_state_dict(torch.load(file)) | - | - | -
  io::load(file, state_dict(model));
  //| best.load_state_dict(model.state_dict()) | - | - | -
  copy_weights(best, model);
  //| AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)).update_parameters(model) | - | - | -
  lerp_weights(best, model, 0.01);
  //| nn.init.kaiming_normal_(w, nonlinearity="relu") | torch::nn::init::kaiming_normal_(w, 0, torch::kFanIn, torch::kReLU) | - | -
  auto he = make_parameter(extents<8, 4>{}, init::kaiming_normal(4));
  //| nn.init.xavier_uniform_(w) | torch::nn::init::xavier_uniform_(w) | - | -
  auto glorot = make_parameter(extents<8, 4>{}, init::xavier_uniform(4, 8));
  //| with torch.autocast("cpu", torch.bfloat16): model(x) | - | - | -
  context_in<precision::bf16> mixed;
  compiles(eval(model(x), mixed));

  std::filesystem::remove(file);
  (void)he, (void)glorot;
  (void)best, (void)norm, (void)cell, (void)for_matrices, (void)without_noise, (void)rate, (void)patient;
}
