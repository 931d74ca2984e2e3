// SPDX-License-Identifier: MIT
// The tensors of a checkpoint: which shard has which boxes of each.
//
//   checkpoint_contents all;
//   for (...) all.add(path, part, parts, id, header);
//   all.require_whole();     // every element of every tensor exactly once
#pragma once

#include <map>
#include <string>
#include <vector>

#include <weft/io/box_file.hpp>
#include <weft/io/safetensors_header.hpp>
#include <weft/train/checkpoint_format.hpp>

namespace weft::detail {

/// The file of shard `part` in the folder of a checkpoint.
inline std::string path_of_shard(const std::string& folder, int part) {
  return folder + "/rank-" + std::to_string(part) + ".safetensors";
}

/// A box of a tensor in a shard.
struct checkpoint_piece {
  int part = 0;
  box where;
  std::uint64_t at = 0, bytes = 0;  // position and size in the file
  std::vector<std::uint64_t> sums;  // checksums of its blocks
};

struct checkpoint_tensor {
  tensor_spec whole;  // a scalar has shape [1]
  std::vector<checkpoint_piece> pieces;
};

class checkpoint_contents {
 public:
  /// Adds the tensors in the header of a shard. Throws io_error, naming file and tensor, if it belongs to
  /// another checkpoint than `id` or to another part, or contradicts other shards.
  void add(const std::string& path, int part, int parts, const checkpoint_id& id,
           const io::safetensors_header& header);

  /// Throws io_error if elements of a tensor are missing or occur in two pieces.
  void require_whole() const;

  /// Tensors by key: "model.<name>" or "optimizer.<kind>.<name>".
  const std::map<std::string, checkpoint_tensor>& tensors() const { return tensors_; }

 private:
  void add_piece(const std::string& path, int part, const io::safetensors_header& header,
                 const io::tensor_entry& t);

  static bool fits(const tensor_spec& t) {
    try {
      bytes_of(t.extents, t.type);
      return true;
    } catch (const shape_error&) { return false; }
  }
  const std::string& path_of(const checkpoint_piece& p) const {
    return paths_[static_cast<std::size_t>(p.part)];
  }

  std::map<std::string, checkpoint_tensor> tensors_;
  std::vector<std::string> paths_;  // by part
};

/// The contents of all parts of the checkpoint in `folder`. Throws io_error, naming file and tensor, unless
/// they are complete. Headers must have the checksums in `index.shards`; if that is empty, it is filled in.
checkpoint_contents read_contents(const std::string& folder, checkpoint_index& index, int parts);

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/train/impl/checkpoint_contents.ipp>
#endif
