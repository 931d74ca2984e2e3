// SPDX-License-Identifier: MIT
// Restoring a rank from a checkpoint: reads the boxes that the rank holds, whichever ranks wrote them.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <weft/parallel/bind.hpp>
#include <weft/train/checkpoint_folder.hpp>

namespace weft::detail {

/// The note on a box of a tensor, without checksums.
inline piece_note note_of(const tensor_spec& whole, const box& part) {
  piece_note note{part.offset, parallel::in_rows(whole.extents), {}};
  const auto is_whole = [&](int d) { return part.extents[d] == note.whole[d]; };
  while (note.whole.order > 1 && is_whole(note.whole.order - 1))
    note.whole[--note.whole.order] = 0, note.offset[--note.offset.order] = 0;
  return note;
}

template <class Run>
class checkpoint_restorer {
 public:
  /// `from` is the folder of a complete checkpoint.
  checkpoint_restorer(Run& run, std::string from) : run_(&run), from_(std::move(from)) {}

  /// Sets the tensors of this rank, the loss scale and the step count. Throws io_error, naming file and
  /// tensor, if the checkpoint is damaged, incomplete or of another model, in which case the run may be
  /// partly restored; or, with nothing changed, if it is of an optimizer with another name.
  void restore(checkpoint_index& index) const {
    const std::string optimizer = name_of_optimizer<std::remove_cvref_t<decltype(run_->optimizer())>>;
    if (!optimizer.empty() && !index.optimizer.empty() && optimizer != index.optimizer)
      throw io_error("weft: " + from_ + ": has the state of optimizer " + index.optimizer +
                     ", but this run has " + optimizer);
    const checkpoint_contents contents = read_contents(from_, index, static_cast<int>(index.shards.size()));
    const std::vector<held_tensor> held = run_->held_tensors();
    tensors_of_model model;
    for (const held_tensor& t : held) model[t.name] = &t;
    require_same_number(contents, model);
    run_->optimizer().state.clear();
    for (const auto& [key, t] : contents.tensors()) {
      const key_parts k = parts_of(key);
      const auto found = model.find(k.name);
      if (found == model.end() || (!k.kind.empty() && found->second->is_buffer))
        throw io_error("weft: " + from_ + ": belongs to another model: this one has no " + key);
      restore_tensor(*found->second, k, key, t);
    }
    run_->optimizer().steps = index.optimizer_steps;
    loss_scaler scaler = run_->scaler();
    scaler.scale = std::ldexp(1.0, static_cast<int>(index.loss_scale_log2));
    scaler.growth_tracker = std::min(index.growth_tracker, scaler.growth_interval - 1);
    run_->set_scaler(scaler);
  }

 private:
  using tensors_of_model = std::map<std::string_view, const held_tensor*>;

  /// Throws io_error, with the first name that only one of them has, if the checkpoint and the model differ
  /// in the number of parameters and buffers.
  void require_same_number(const checkpoint_contents& contents, const tensors_of_model& model) const {
    std::set<std::string_view> names;
    for (const auto& [key, t] : contents.tensors())
      if (key.starts_with("model.")) names.insert(std::string_view(key).substr(6));
    if (names.size() == model.size()) return;
    std::string difference;
    for (const std::string_view name : names)
      if (difference.empty() && !model.contains(name)) difference = "this one has no " + std::string(name);
    for (const auto& [name, of] : model)
      if (difference.empty() && !names.contains(name)) difference = "it has no " + std::string(name);
    throw io_error("weft: " + from_ + ": belongs to another model: it has " + std::to_string(names.size()) +
                   " parameters and buffers, but this one has " + std::to_string(model.size()) + ": " +
                   difference);
  }

  /// The key of a tensor of the checkpoint: "model.NAME" or "optimizer.KIND.NAME".
  struct key_parts {
    std::string_view kind, name;  // `kind` of optimizer state; empty for the model
  };
  key_parts parts_of(const std::string& key) const {
    const std::string_view all = key;
    if (all.starts_with("model.")) return {{}, all.substr(6)};
    const std::size_t dot = all.find('.', 10);
    if (!all.starts_with("optimizer.") || dot == all.npos ||
        !optimizer_state::is_kind(all.substr(10, dot - 10)))
      throw io_error("weft: " + from_ + ": holds " + key + ", which is not a tensor of a run");
    return {all.substr(10, dot - 10), all.substr(dot + 1)};
  }

  /// Sets this rank's parts of a parameter or buffer, or of new optimizer state with the same parts, from the
  /// pieces that overlap them.
  void restore_tensor(const held_tensor& of, const key_parts& k, const std::string& key,
                      const checkpoint_tensor& t) const {
    const tensor_spec expected{of.whole.type, parallel::in_rows(of.whole.extents)};
    if (!(t.whole == expected))
      throw io_error("weft: " + from_ + ": belongs to another model: tensor " + key + " is " +
                     name_of(t.whole.type) + " " + to_string(t.whole.extents) + ", but the model expects " +
                     name_of(expected.type) + " " + to_string(expected.extents));
    if (!of.local) return;
    std::shared_ptr<tensor_state> to = of.local;
    if (!k.kind.empty()) {
      to = make_state(to->where, to->extents, to->type);
      run_->optimizer().state.set(k.kind, k.name, to);
    }
    for (const checkpoint_piece& p : t.pieces) {
      const auto shares = [&](const stored_box& own) { return intersection(p.where, own.where).size() > 0; };
      if (std::none_of(of.parts.begin(), of.parts.end(), shares)) continue;
      const io::input_file file(path_of_shard(from_, p.part));
      for (const stored_box& own : of.parts) io::read_shared({file, p.at, p.where, p.sums, key}, own, *to);
    }
  }

  Run* run_;
  std::string from_;
};

}  // namespace weft::detail
