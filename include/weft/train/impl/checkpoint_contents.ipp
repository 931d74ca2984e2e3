// SPDX-License-Identifier: MIT
// Definitions of <weft/train/checkpoint_contents.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/train/checkpoint_contents.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void checkpoint_contents::add(const std::string& path, int part, int parts,
                                          const checkpoint_id& id, const io::safetensors_header& header) {
  const auto said = [&](const char* key) {
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? "no checkpoint" : found->second;
  };
  if (said("weft.checkpoint") != id.text())
    throw io_error("weft: " + path + ": belongs to another checkpoint: " + said("weft.checkpoint") +
                   ", not " + id.text() + " (run, attempt, step)");
  const std::string place = std::to_string(part) + "/" + std::to_string(parts);
  if (said("weft.part") != place)
    throw io_error("weft: " + path + ": is part " + said("weft.part") + ", not " + place);
  if (static_cast<int>(paths_.size()) <= part) paths_.resize(static_cast<std::size_t>(part) + 1);
  paths_[static_cast<std::size_t>(part)] = path;
  for (const auto& [name, why] : header.others)
    throw io_error("weft: " + path + ": tensor " + name + " " + why);
  for (const io::tensor_entry& t : header.tensors) add_piece(path, part, header, t);
}

WEFT_DEFINE void checkpoint_contents::require_whole() const {
  for (const auto& [key, t] : tensors_) {
    std::vector<box> boxes;
    for (const checkpoint_piece& p : t.pieces) boxes.push_back(p.where);
    const auto fault = find_tiling_fault(boxes, t.whole.extents);
    if (!fault) continue;
    const std::string where = "tensor " + key + ": " + to_string(fault->where);
    if (fault->missing)
      throw io_error("weft: " + io::parent_of(paths_.front()) + ": " + where + " of " +
                     to_string(t.whole.extents) + " is in no shard");
    throw io_error("weft: " + path_of(t.pieces[fault->first]) + ": " + where + " is also in " +
                   path_of(t.pieces[fault->second]));
  }
}

WEFT_DEFINE void checkpoint_contents::add_piece(const std::string& path, int part,
                                                const io::safetensors_header& header,
                                                const io::tensor_entry& t) {
  const auto fail = [&](const std::string& why) {
    throw io_error("weft: " + path + ": tensor " + t.name + ": " + why);
  };
  const auto text = header.metadata.find(t.name);
  const auto note = text == header.metadata.end() ? std::nullopt : piece_note::parsed(text->second);
  const std::uint64_t bytes = t.end - t.begin;
  if (!note || note->offset.order > t.extents.order ||
      (note->sums.size() != 1 && note->sums.size() != (bytes + io::block_bytes - 1) / io::block_bytes))
    fail("does not say which part of the whole it is");
  box where{{t.extents.order, {}}, t.extents};
  tensor_spec whole{t.type, t.extents};
  for (int d = 0; d < note->offset.order; ++d) {
    where.offset[d] = note->offset[d];
    whole.extents[d] = note->whole[d];
  }
  if (!is_within(where, whole.extents)) fail(to_string(where) + " is outside of " + to_string(whole.extents));
  if (!fits(whole)) fail("the size of " + to_string(whole.extents) + " overflows");
  checkpoint_tensor& to = tensors_[t.name.substr(0, t.name.find('#'))];
  if (!to.pieces.empty() && !(to.whole == whole))
    fail("is a piece of " + std::string(name_of(whole.type)) + " " + to_string(whole.extents) + ", in " +
         path_of(to.pieces.front()) + " of " + name_of(to.whole.type) + " " + to_string(to.whole.extents));
  to.whole = whole;
  to.pieces.push_back({part, where, header.data + t.begin, bytes, note->sums});
}

WEFT_DEFINE checkpoint_contents read_contents(const std::string& folder, checkpoint_index& index, int parts) {
  checkpoint_contents contents;
  const bool known = !index.shards.empty();
  for (int part = 0; part < parts; ++part) {
    const io::input_file file(path_of_shard(folder, part));
    const std::string header = io::safetensors_beginning(file);
    const checkpoint_shard found{static_cast<std::int64_t>(file.size()), xxh64(header)};
    if (known) {
      const checkpoint_shard& expected = index.shards[static_cast<std::size_t>(part)];
      if (found.bytes != expected.bytes)
        throw io_error("weft: " + file.path() + ": has " + std::to_string(found.bytes) + " bytes, not " +
                       std::to_string(expected.bytes));
      if (found.header != expected.header)
        throw io_error(
            "weft: " + file.path() +
            ": is damaged or belongs to another checkpoint: the checksum of its header does not match");
    } else {
      index.shards.push_back(found);
    }
    contents.add(file.path(), part, parts, index.id,
                 io::parse_safetensors_header(header, file.size(), file.path()));
  }
  contents.require_whole();
  return contents;
}

}  // namespace detail
}  // namespace weft
