// SPDX-License-Identifier: MIT
// Chapter 6 of the tutorial, docs/tutorial/saving.md: saving, loading and resuming.
#include <filesystem>
#include <iostream>

#include <weft/io/tensor_files.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

#include "../section.hpp"
using namespace weft;

struct mlp {
  linear<4, 8> hidden;
  linear<8, 2> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

// [train]
using plan = policy<strategy::single>;

/// Trains from the last checkpoint in `folder`, or from the start, up to step `last`; returns the loss.
float train(const std::string& folder, int last) {
  mlp model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-2};
  auto run = bind<plan>(model, optimizer);
  checkpointer saves(folder, run, {.keep = 2});
  run_position at = saves.load().value_or(run_position{});
  float last_loss = 0;
  while (at.step < last) {
    auto x = randn<float>(extents<8, 4>{}, {.seed = static_cast<std::uint64_t>(at.step)});
    run.begin_step(static_cast<std::uint64_t>(at.step));
    tape steps(run);
    auto loss = steps.eval(mean(square(model(x) - 1.0f)));
    steps.backward(loss);
    run.step();
    last_loss = loss.item();
    ++at.step;
    if (at.step % 10 == 0) saves.save(at);               // copies now, writes in the background
  }
  saves.finish();
  return last_loss;
}
// [/train]

int main() {
  const std::filesystem::path at = std::filesystem::temp_directory_path() / "weft_tutorial_saving";
  std::filesystem::remove_all(at);
  std::filesystem::create_directories(at);
  std::filesystem::current_path(at);

  section("save");
  // [save]
  mlp model;
  initialize(model, 1);
  io::save("model.safetensors", state_dict(model));

  mlp other;
  io::load("model.safetensors", state_dict(other));
  std::cout << eval(sum(abs(model.hidden.weight - other.hidden.weight))).item() << '\n';
  // [/save]

  section("inside");
  // [inside]
  const auto file = io::read_tensors("model.safetensors");
  for (const auto& [name, t] : file.tensors)
    std::cout << name << ' ' << name_of(t.type) << ' ' << to_string(t.extents) << '\n';
  // [/inside]

  section("some");
  // [some]
  // Of another model's weights, load those whose names both models have.
  state_dict_t known;
  for (const auto& entry : state_dict(other))
    if (file.tensors.contains(entry.first) && entry.first.starts_with("hidden.")) known.push_back(entry);
  io::load("model.safetensors", known);
  std::cout << known.size() << " tensors loaded\n";
  // [/some]

  section("errors");
  // [errors]
  try {
    linear<3, 3> wrong;
    io::load("model.safetensors", state_dict(wrong));
  } catch (const io_error& error) {
    std::cout << error.what() << '\n';
  }
  // [/errors]

  section("resume");
  // [resume]
  const float straight = train("straight", 40);
  train("resumed", 20);                                  // stops halfway
  const float resumed = train("resumed", 40);            // resumes from the checkpoint of step 20
  std::cout << std::boolalpha << (straight == resumed) << '\n';
  // [/resume]
  std::filesystem::remove_all(at);
}
