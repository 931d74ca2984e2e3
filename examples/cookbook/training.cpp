// SPDX-License-Identifier: MIT
// Recipes of docs/cookbook/training.md.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <weft/io/tensor_files.hpp>
#include <weft/onnx/save.hpp>
#include <weft/optim/clip.hpp>
#include <weft/optim/loss_scale.hpp>
#include <weft/train/line_log.hpp>
#include <weft/train/loader.hpp>
#include <weft/train/profiler.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

struct mlp {
  linear<4, 16> hidden;
  linear<16, 1> output;
  auto operator()(expression auto x) const { return output(gelu(hidden(x))); }
};

// [memory]
/// Samples that are in memory.
struct samples {
  using fields = std::tuple<tensor<float, extents<dyn, 4>>, tensor<float, extents<dyn, 1>>>;
  std::vector<float> inputs, targets;   // 4 and 1 for each sample

  index_t size() const { return static_cast<index_t>(targets.size()); }
  void read(index_t i, float* input, float* target) const {
    std::copy_n(inputs.data() + 4 * i, 4, input);
    *target = targets[static_cast<std::size_t>(i)];
  }
};
// [/memory]

// [optimizer]
/// Sign descent with momentum. An optimizer has the members `state`, `steps` and `update`.
struct sign_descent {
  double lr = 1e-3;
  double momentum = 0.9;
  optimizer_state state{};
  std::int64_t steps = 0;

  template <element T>
  void update(const parameter_update<T>& u) const {
    const auto velocity = u.state("velocity");   // shaped like the parameter, initially zero
    const auto value = u.value();
    u.assign(let(velocity * u.number(momentum) + u.gradient(), [&](auto v) {
               return u.results(value - sign(v) * u.number(lr), v);   // one kernel, in place
             }),
             velocity);
  }
};
// [/optimizer]

samples made(std::uint64_t seed) {
  samples all;
  auto x = randn<float>(extents<dyn, 4>{64}, {.seed = seed});
  all.inputs = x.to_vector();
  all.targets = eval(sum(sin(x), dims<1>)).to_vector();
  return all;
}

// [share]
/// The batches of rank `rank` of `ranks`: disjoint; together, the batches that one rank alone would read.
loader<samples> part_of(const samples& data, int rank, int ranks) {
  return {data, {.batch = 8, .shuffle = true, .share = {.rank = rank, .ranks = ranks}}};
}
// [/share]

int main() {
  const std::filesystem::path at = std::filesystem::temp_directory_path() / "weft_cookbook_training";
  std::filesystem::create_directories(at);
  std::filesystem::current_path(at);
  loader batches(made(1), {.batch = 16, .shuffle = true});
  loader validation(made(2), {.batch = 64});
  mlp model;
  initialize(model, 1);

  section("own");
  // [use_optimizer]
  sign_descent descent{.lr = 2e-3};
  float first = 0, last = 0;
  for (int epoch = 0; epoch < 100; ++epoch)
    for (auto [x, y] : batches) {
      tape steps;
      auto loss = steps.eval(mse_loss(model(x), y));
      steps.backward(loss);
      update_parameters(descent, model);
      if (first == 0) first = loss.item();
      last = loss.item();
    }
  std::cout << std::boolalpha << (last < first / 2) << '\n';
  // [/use_optimizer]

  section("groups");
  // [groups]
  mlp tuned = clone(model);
  parameter_groups grouped{adamw{.lr = 3e-3}, [](const std::string& name, adamw& of) {
                             if (name.starts_with("hidden.")) of.lr *= 0.1;        // for example, pretrained
                             if (name.ends_with(".bias")) of.weight_decay = 0;
                           }};
  for (auto [x, y] : batches) {
    tape steps;
    steps.backward(steps.eval(mse_loss(tuned(x), y)));
    grouped.step(tuned);
  }
  grouped.settings.lr = 1e-3;   // for all groups, as a schedule does
  std::cout << grouped.steps << '\n';
  // [/groups]

  section("early");
  // [early]
  // Keep the best model, stop when it has not improved for five epochs.
  adamw optimizer{.lr = 3e-3};
  auto [inputs, targets] = validation.next();
  auto best = clone(model);
  float least = eval(mse_loss(model(inputs), targets)).item();
  for (int epoch = 0, since = 0; epoch < 50 && since < 5; ++epoch) {
    for (auto [x, y] : batches) {
      tape steps;
      steps.backward(steps.eval(mse_loss(model(x), y)));
      optimizer.step(model);
    }
    const float now = eval(mse_loss(model(inputs), targets)).item();
    since = now < least ? 0 : since + 1;
    if (now < least) least = now, copy_weights(best, model);
  }
  copy_weights(model, best);  // not model = best: the optimizer, and a run, know the tensors of `model`
  std::cout << (eval(mse_loss(model(inputs), targets)).item() == least) << '\n';
  // [/early]

  section("bf16");
  // [bf16]
  // bf16 products with f32 sums; parameters, gradients and optimizer state stay f32.
  context_in<precision::bf16> mixed;
  for (auto [x, y] : batches) {
    tape steps(mixed);
    auto loss = steps.eval(mse_loss(model(x), y));
    steps.backward(loss);
    clip_grad_norm(model, 1.0, mixed);
    optimizer.step(model, 1, mixed);
  }
  // [/bf16]

  section("f16");
  // [f16]
  // f16 products: the loss is scaled so that small gradients do not become 0; steps that overflow are
  // skipped.
  context_in<precision::f16> half;
  loss_scaler scaler;
  for (auto [x, y] : batches) {
    half.loss_scale = scaler.scale;
    tape steps(half);
    steps.backward(steps.eval(mse_loss(model(x), y)));
    const double unscale = 1 / scaler.scale, norm = unscale * gradient_norm(parameters_of(model), half);
    if (scaler.update(std::isfinite(norm))) optimizer.step(model, unscale * clip_factor(norm, 1.0), half);
    else zero_grad(model);  // otherwise the next backward pass adds to gradients that are not finite
  }
  // [/f16]
  if (!std::isfinite(eval(mse_loss(model(inputs), targets)).item())) return 1;

  section("average");
  // [average]
  // A moving average of the weights, which is often better than the last weights.
  auto average = clone(model);
  for (auto [x, y] : batches) {
    tape steps;
    steps.backward(steps.eval(mse_loss(model(x), y)));
    optimizer.step(model);
    lerp_weights(average, model, 0.01);  // average = 0.99 average + 0.01 model
  }
  // [/average]

  section("bf16_file");
  // [bf16_file]
  io::save("model.bf16.safetensors", state_dict(model), {.as = dtype::bf16});
  mlp loaded;
  io::load("model.bf16.safetensors", state_dict(loaded), {.convert = true});   // into f32
  auto difference = amax(abs(model.hidden.weight - loaded.hidden.weight));
  std::cout << (eval(difference).item() < 0.01f) << '\n';
  // [/bf16_file]

  section("optimizer_file");
  // [optimizer_file]
  // Without bind: an optimizer's state is named tensors, KIND.PARAMETER, and the number of its steps.
  const auto trained = full<std::int64_t>(extents<>{}, optimizer.steps);
  io::named_tensors saved = optimizer.state.tensors();
  saved.push_back({"steps", trained.state()});
  io::save("optimizer.safetensors", saved);
  io::save("model.safetensors", state_dict(model));

  mlp resumed;
  io::load("model.safetensors", state_dict(resumed));
  adamw resuming{.lr = optimizer.lr};  // the program sets the settings again
  for (const auto& [name, stored] : io::read_tensors("optimizer.safetensors").tensors) {
    const auto t = make_state(default_device(), stored.extents, stored.type);
    io::restore("optimizer.safetensors", name, stored, *t);
    if (name == "steps") resuming.steps = tensor<std::int64_t, extents<>>(t).item();
    else resuming.state.set(name.substr(0, name.find('.')), name.substr(name.find('.') + 1), t);
  }
  // [/optimizer_file]
  // [resumed_step]
  const auto train_step = [&](const mlp& of, adamw& by) {
    default_context().begin_step(static_cast<std::uint64_t>(by.steps));  // random numbers of this step
    tape steps;
    steps.backward(steps.eval(mse_loss(of.output(dropout(gelu(of.hidden(inputs)), 0.1f)), targets)));
    by.step(of);
  };
  // [/resumed_step]
  for (int i = 0; i < 3; ++i) train_step(model, optimizer);
  for (int i = 0; i < 3; ++i) train_step(resumed, resuming);
  std::cout << (resumed.hidden.weight.to_vector() == model.hidden.weight.to_vector()) << '\n';

  section("numpy");
  // [numpy]
  auto table = from<float>(extents<2, 3>{}, {1, 2, 3, 4, 5, 6});
  io::save("table.npy", table);                                  // numpy.load("table.npy")
  auto rows = io::load<float, extents<dyn, 3>>("table.npy");     // numpy.save("table.npy", rows)
  std::cout << to_string(rows.extents()) << '\n';

  io::save("model.npz", state_dict(model));                      // numpy.load("model.npz")["hidden.weight"]
  io::load("model.npz", state_dict(loaded));                     // numpy.savez("model.npz", **arrays)
  for (const auto& [name, t] : io::read_tensors("model.npz").tensors)
    std::cout << name << ' ' << to_string(t.extents) << '\n';
  // [/numpy]

  section("onnx");
  // [onnx]
  auto batch = zeros<float>(extents<dyn, 4>{1});                 // its elements are not used
  save_onnx("model.onnx", model(batch),
            {.inputs = {{"x", batch, {"batch"}}}, .outputs = {"y"}, .tensors = state_dict(model)});
  std::cout << std::filesystem::exists("model.onnx") << '\n';
  // [/onnx]

  section("share");
  std::cout << to_string(std::get<0>(part_of(made(1), 1, 2).next()).extents()) << '\n';

  section("log");
  // [log]
  line_log log("run.jsonl", false);                    // each line is written at once, as a whole
  log.line("{\"step\": 1, \"loss\": 0.5}");
  // [/log]

  section("profile");
  {
    // [profile]
    profiler p;
    for (auto [x, y] : batches) {
      const record_function range("batch");              // a custom range
      tape steps;
      steps.backward(steps.eval(mse_loss(model(x), y)));
      optimizer.step(model);
    }
    p.stop();
    std::cerr << p.table({.rows = 10});                  // by op: count, times, GFLOP/s, GB/s
    p.save_trace("trace.json");                          // chrome://tracing, ui.perfetto.dev
    std::cout << (p.ranges().size() > 5) << '\n';
    // [/profile]
    std::filesystem::remove("trace.json");
  }

  section("memory");
  // [peak]
  // The memory of a training step, to the byte, before anything is allocated: a dry run on a device that
  // computes nothing.
  const std::size_t bytes = peak_bytes([&](const device& nowhere) {
    context c(nowhere);
    mlp there;
    to(there, nowhere);
    adamw its_optimizer;
    tape steps(c);
    steps.backward(steps.eval(mse_loss(there(zeros<float>(extents<dyn, 4>{16}, nowhere)),
                                       zeros<float>(extents<dyn, 1>{16}, nowhere))));
    its_optimizer.step(there, 1, c);
  });
  std::cout << (bytes > 4 * 4 * static_cast<std::size_t>(parameter_count(model))) << '\n';
  // [/peak]

  section("recompute");
  // [recompute]
  // Trades time for memory: statements keep only their operands and recompute the rest in the backward pass.
  context saving;
  saving.recompute_programs = context::every_program;
  tape steps(saving);
  auto hidden = steps.eval(gelu(model.hidden(inputs)));
  steps.backward(steps.eval(mse_loss(model.output(hidden), targets)));
  optimizer.step(model, 1, saving);
  // [/recompute]

  section("fits");
  // [fits]
  // what_fits runs each choice, a step, on a device that only counts memory.
  const auto step_of = [](index_t rows, int recomputed) {
    return [=](const device& nowhere) {
      context c(nowhere);
      c.recompute_programs = recomputed;
      const auto there = create<mlp>(nowhere);
      tape pass(c);
      auto x = pass.eval(gelu(there.hidden(zeros<float>(extents<dyn, 4>{rows}, nowhere))));
      pass.backward(pass.eval(mse_loss(there.output(x), zeros<float>(extents<dyn, 1>{rows}, nowhere))));
    };
  };
  const memory_choice choices[] = {{"64 rows", step_of(64, 0)},
                                   {"64 rows, recomputed", step_of(64, context::every_program)},
                                   {"16 rows", step_of(16, 0)}};
  const device small(std::make_shared<cpu::cpu_backend>(1));
  try {
    buffer most = small.allocate(4096, "table"), more = small.allocate(std::size_t{1} << 60);
  } catch (const out_of_memory_error& e) {                // lists the largest blocks in use
    std::cout << (e.shortage.in_use == 4096) << '\n';
    for (const memory_need& n : what_fits(8192, choices)) // or e.shortage.attainable()
      std::cout << n.name << " would fit\n";
  }
  std::cout << memory_summary(small).substr(0, 13) << '\n';  // a table: in use, cached, by name
  // [/fits]
  std::filesystem::remove_all(at);
}
