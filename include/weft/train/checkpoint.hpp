// SPDX-License-Identifier: MIT
// Checkpoints: parameters, optimiser state and the place in the data, in one safetensors file.
//
// The file is written beside the old one and then takes its place, so a run that is killed leaves
// the last good one. A run resumed from it computes the same bits as one that never stopped.
#pragma once

#include <filesystem>
#include <string>

#include <weft/io/safetensors.hpp>
#include <weft/nn/module.hpp>
#include <weft/optim/optimizer.hpp>

namespace weft {

/// Where a run stands, besides its tensors.
struct run_position {
  std::int64_t step = 0;  // steps done
  index_t samples = 0;    // samples taken from the loader
};

inline std::string checkpoint_file(const std::string& folder) { return folder + "/checkpoint.safetensors"; }

template <class Optimizer>
void save_checkpoint(const std::string& folder, const state_dict_t& parameters, const Optimizer& optimizer,
                     const run_position& at) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw io_error("weft: " + folder + ": " + failed.message());
  io::stored_tensors file;
  for (const auto& [name, p] : parameters) file.tensors["model." + name] = io::stored(*p);
  for (const auto& [key, t] : optimizer.state.tensors()) file.tensors["optimizer." + key] = io::stored(*t);
  file.metadata = {{"format", "pt"},
                   {"weft.checkpoint", "1"},
                   {"step", std::to_string(at.step)},
                   {"samples", std::to_string(at.samples)},
                   {"optimizer.steps", std::to_string(optimizer.steps)}};
  io::write_safetensors(checkpoint_file(folder), file);
}

/// Restores what save_checkpoint wrote. Throws io_error if it is of another model.
template <class Optimizer>
run_position load_checkpoint(const std::string& folder, const state_dict_t& parameters, Optimizer& optimizer) {
  const std::string path = checkpoint_file(folder);
  const io::stored_tensors file = io::read_safetensors(path);
  const auto number = [&](const char* key) -> std::int64_t {
    const auto found = file.metadata.find(key);
    std::int64_t n = 0;
    if (found == file.metadata.end() ||
        std::from_chars(found->second.data(), found->second.data() + found->second.size(), n).ec != std::errc())
      throw io_error("weft: " + path + ": is not a checkpoint (no " + key + ")");
    return n;
  };
  std::size_t in_file = 0;
  for (const auto& [name, t] : file.tensors) in_file += name.starts_with("model.");
  if (in_file != parameters.size())
    throw io_error("weft: " + path + ": is of another model: it has " + std::to_string(in_file) +
                   " parameters, this one has " + std::to_string(parameters.size()));
  for (const auto& [name, p] : parameters) {
    const auto found = file.tensors.find("model." + name);
    if (found == file.tensors.end()) throw io_error("weft: " + path + ": is of another model: no " + name);
    io::restore(path, name, found->second, *p);
    for (const char* kind : {"exp_avg", "exp_avg_sq", "momentum"}) {
      const std::string key = std::string(kind) + "." + name;
      const auto state = file.tensors.find("optimizer." + key);
      if (state == file.tensors.end()) continue;
      auto t = std::make_shared<tensor_state>(p->where, p->extents, p->type);
      io::restore(path, key, state->second, *t);
      optimizer.state.set(key, std::move(t));
    }
  }
  optimizer.steps = number("optimizer.steps");
  return {number("step"), number("samples")};
}

}  // namespace weft
