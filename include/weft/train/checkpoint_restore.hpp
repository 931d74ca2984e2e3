// SPDX-License-Identifier: MIT
// Restoring a rank from a checkpoint: of each tensor the rows that the rank holds, whichever rank wrote them.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/parallel/bind.hpp>
#include <weft/train/checkpoint_folder.hpp>

namespace weft::detail {

template <class Run>
class checkpoint_restorer {
 public:
  /// `from` is the folder of a complete checkpoint.
  checkpoint_restorer(Run& run, std::string from) : run_(&run), from_(std::move(from)) {}

  /// Sets the tensors of this rank, the loss scale and the step count. Throws io_error, naming file and
  /// tensor, if the checkpoint is damaged, incomplete or of another model; the run may be partly restored
  /// then.
  void restore(checkpoint_index& index) const {
    const checkpoint_contents contents = read_contents(from_, index, static_cast<int>(index.shards.size()));
    std::size_t of_model = 0;
    for (const auto& [key, t] : contents.tensors()) of_model += key.starts_with("model.");
    const std::size_t expected = run_->local().size() + run_->parallel().buffers().size();
    if (of_model != expected)
      throw io_error("weft: " + from_ + ": is of another model: it has " + std::to_string(of_model) +
                     " parameters and buffers, this one has " + std::to_string(expected));
    run_->optimizer().state.clear();
    for (const auto& [key, t] : contents.tensors()) {
      const std::optional<wanted> w = wanted_as(key);
      if (!w) throw io_error("weft: " + from_ + ": is of another model: this one has no " + key);
      fill(*w, key, t);
    }
    run_->optimizer().steps = index.optimizer_steps;
    loss_scaler scaler = run_->scaler();
    scaler.scale = std::ldexp(1.0, static_cast<int>(index.loss_scale_log2));
    scaler.growth_tracker = std::min(index.growth_tracker, scaler.growth_interval - 1);
    run_->set_scaler(scaler);
  }

 private:
  /// A local tensor to be filled, from row `first_row` of the whole.
  struct wanted {
    std::shared_ptr<tensor_state> to;
    index_t first_row;
  };

  /// The local tensor for the key `key` of a checkpoint: a parameter, a buffer, or new optimizer state; none
  /// if the model has no such tensor.
  std::optional<wanted> wanted_as(const std::string& key) const {
    const auto named = [&](const state_dict_t& all,
                           const std::string& name) -> std::shared_ptr<tensor_state> {
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == name; });
      return found == all.end() ? nullptr : found->second;
    };
    if (key.starts_with("model.")) {
      const std::string name = key.substr(6);
      auto t = named(run_->local(), name);
      if (!t) t = named(run_->parallel().buffers(), name);
      if (!t) return {};
      return wanted{t, run_->parallel().place_of(name).first};
    }
    const std::size_t dot = key.find('.', 10);
    if (!key.starts_with("optimizer.") || dot == key.npos)
      throw io_error("weft: " + from_ + ": holds " + key + ", which is no tensor of a run");
    const std::string kind = key.substr(10, dot - 10), name = key.substr(dot + 1);
    const auto p = named(run_->local(), name);
    if (!p) return {};
    auto t = make_state(p->where, p->extents, p->type);
    run_->optimizer().state.set(kind, name, t);
    return wanted{t, run_->parallel().place_of(name).first};
  }

  /// Copies the rows of this rank, after verifying the checksums of the tensors in the shards.
  void fill(const wanted& w, const std::string& key, const checkpoint_tensor& t) const {
    const std::string name = key.starts_with("model.") ? key.substr(6) : key.substr(key.find('.', 10) + 1);
    const shape whole = run_->parallel().place_of(name).second;
    if (!(t.whole == tensor_spec{w.to->type, whole}))
      throw io_error("weft: " + from_ + ": is of another model: tensor " + key + " is of " +
                     name_of(t.whole.type) + " " + to_string(t.whole.extents) + ", the model wants " +
                     name_of(w.to->type) + " " + to_string(whole));
    const index_t last = w.first_row + rows_of(w.to->extents);
    std::vector<char> bytes;
    for (const checkpoint_piece& p : t.pieces) {
      const index_t begin = std::max(p.first_row, w.first_row), end = std::min(p.first_row + p.rows, last);
      if (begin >= end) continue;
      const io::input_file file(checkpoint_folder::shard(from_, p.part));
      bytes.resize(static_cast<std::size_t>(p.bytes));
      file.read(p.at, bytes.data(), bytes.size());
      if (xxh64({bytes.data(), bytes.size()}) != p.sum)
        throw io_error("weft: " + file.path() + ": tensor " + key + " is damaged: its checksum is another");
      const auto row = bytes.size() / static_cast<std::size_t>(p.rows);
      w.to->where->upload(
          static_cast<char*>(w.to->memory.data()) + static_cast<std::size_t>(begin - w.first_row) * row,
          bytes.data() + static_cast<std::size_t>(begin - p.first_row) * row,
          static_cast<std::size_t>(end - begin) * row);
    }
    ++w.to->version;
  }

  Run* run_;
  std::string from_;
};

}  // namespace weft::detail
