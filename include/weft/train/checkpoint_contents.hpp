// SPDX-License-Identifier: MIT
// The tensors of a checkpoint: which rows of each are in which shard.
//
//   checkpoint_contents all;
//   for (...) all.add(path, part, header);
//   all.require_whole();     // every row of every tensor exactly once
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <weft/io/safetensors_header.hpp>
#include <weft/train/checkpoint_format.hpp>

namespace weft::detail {

inline index_t rows_of(const shape& s) { return s.order > 0 ? s[0] : 1; }

/// Rows of a tensor that a shard holds.
struct checkpoint_piece {
  int part = 0;
  index_t first_row = 0, rows = 0;
  std::uint64_t at = 0, bytes = 0, sum = 0;  // position and size in the file, XXH64 of the bytes
};

struct checkpoint_tensor {
  tensor_spec whole;
  std::vector<checkpoint_piece> pieces;  // in the order of rows, after require_whole
};

class checkpoint_contents {
 public:
  /// Adds the tensors in the header of a shard. Throws io_error, naming file and tensor, if it belongs to
  /// another checkpoint than `id` or to another part, or contradicts other shards.
  void add(const std::string& path, int part, int parts, const checkpoint_id& id,
           const io::safetensors_header& header) {
    const auto said = [&](const char* key) {
      const auto found = header.metadata.find(key);
      return found == header.metadata.end() ? "no checkpoint" : found->second;
    };
    if (said("weft.checkpoint") != id.text())
      throw io_error("weft: " + path + ": is of another checkpoint: " + said("weft.checkpoint") + ", not " +
                     id.text() + " (run, attempt, step)");
    const std::string place = std::to_string(part) + "/" + std::to_string(parts);
    if (said("weft.part") != place)
      throw io_error("weft: " + path + ": is part " + said("weft.part") + ", not " + place);
    if (static_cast<int>(paths_.size()) <= part) paths_.resize(static_cast<std::size_t>(part) + 1);
    paths_[static_cast<std::size_t>(part)] = path;
    for (const io::tensor_entry& t : header.tensors) add_piece(path, part, header, t);
  }

  /// Throws io_error if rows of a tensor are missing or duplicated.
  void require_whole() {
    for (auto& [key, t] : tensors_) {
      std::sort(t.pieces.begin(), t.pieces.end(), [](const checkpoint_piece& a, const checkpoint_piece& b) {
        return std::pair(a.first_row, a.rows) < std::pair(b.first_row, b.rows);
      });
      index_t next = 0;
      for (const checkpoint_piece& p : t.pieces) {
        if (p.first_row > next) refuse_rows(p.part, key, next, p.first_row, "are missing");
        if (p.rows > 0 && p.first_row < next)
          refuse_rows(p.part, key, p.first_row, next, "are in two shards");
        next = std::max(next, p.first_row + p.rows);
      }
      if (next != rows_of(t.whole.extents))
        refuse_rows(t.pieces.back().part, key, next, rows_of(t.whole.extents), "are missing");
    }
  }

  /// Tensors by key: "model.<name>" or "optimizer.<kind>.<name>".
  const std::map<std::string, checkpoint_tensor>& tensors() const { return tensors_; }

 private:
  void add_piece(const std::string& path, int part, const io::safetensors_header& header,
                 const io::tensor_entry& t) {
    const auto text = header.metadata.find(t.name);
    const auto note = text == header.metadata.end() ? std::nullopt : piece_note::parsed(text->second);
    if (!note) throw io_error("weft: " + path + ": tensor " + t.name + ": does not say which rows it has");
    const index_t rows = rows_of(t.extents);
    if (t.extents.order < 1 || rows > note->rows || note->first_row > note->rows - rows)
      throw io_error("weft: " + path + ": tensor " + t.name + ": " + to_string(t.extents) + " from row " +
                     std::to_string(note->first_row) + " is outside of " + std::to_string(note->rows) +
                     " rows");
    tensor_spec whole{t.type, t.extents};
    whole.extents[0] = note->rows;
    checkpoint_tensor& to = tensors_[t.name];
    if (!to.pieces.empty() && !(to.whole == whole))
      throw io_error("weft: " + path + ": tensor " + t.name + " is a piece of " + name_of(whole.type) + " " +
                     to_string(whole.extents) + ", in " +
                     paths_[static_cast<std::size_t>(to.pieces.front().part)] + " of " +
                     name_of(to.whole.type) + " " + to_string(to.whole.extents));
    to.whole = whole;
    to.pieces.push_back({part, note->first_row, rows, header.data + t.begin, t.end - t.begin, note->sum});
  }

  [[noreturn]] void refuse_rows(int part, const std::string& key, index_t from, index_t to,
                                const char* why) const {
    throw io_error("weft: " + paths_[static_cast<std::size_t>(part)] + ": tensor " + key + ": rows " +
                   std::to_string(from) + " to " + std::to_string(to) + " " + why);
  }

  std::map<std::string, checkpoint_tensor> tensors_;
  std::vector<std::string> paths_;  // by part
};

/// The contents of all parts of the checkpoint in `folder`. Throws io_error, naming file and tensor, unless
/// they are complete. Headers must have the checksums in `index.shards`; if that is empty, it is filled.
inline checkpoint_contents read_contents(const std::string& folder, checkpoint_index& index, int parts) {
  checkpoint_contents contents;
  const bool known = !index.shards.empty();
  for (int part = 0; part < parts; ++part) {
    const io::input_file file(folder + "/rank-" + std::to_string(part) + ".safetensors");
    const std::string header = io::safetensors_beginning(file);
    const checkpoint_shard found{static_cast<std::int64_t>(file.size()), xxh64(header)};
    if (known) {
      const checkpoint_shard& expected = index.shards[static_cast<std::size_t>(part)];
      if (found.bytes != expected.bytes)
        throw io_error("weft: " + file.path() + ": has " + std::to_string(found.bytes) + " bytes, not " +
                       std::to_string(expected.bytes));
      if (found.header != expected.header)
        throw io_error("weft: " + file.path() +
                       ": is damaged, or of another checkpoint: the checksum of its header is another");
    } else {
      index.shards.push_back(found);
    }
    contents.add(file.path(), part, parts, index.id,
                 io::parse_safetensors_header(header, file.size(), file.path()));
  }
  contents.require_whole();
  return contents;
}

}  // namespace weft::detail
