// SPDX-License-Identifier: MIT
// A folder of checkpoints: its files and their names at every moment.
//
//   lock             held by rank 0 of the job that uses the folder
//   step-100.7       a complete checkpoint, never modified
//   step-200.8.partial, step-90.6.removed    being written, being deleted
//   latest           names the checkpoint to resume from
//
// A checkpoint is written under a new name, synced, renamed, and only then named in `latest`; older ones are
// deleted afterwards. So after an interruption at any moment, `latest` names a complete checkpoint: the new
// one or the previous one.
#pragma once

#include <optional>
#include <string>

#include <weft/io/folder_lock.hpp>
#include <weft/train/checkpoint_contents.hpp>

namespace weft::detail {

class checkpoint_folder {
 public:
  checkpoint_folder(std::string path, io::file_calls& calls) : path_(std::move(path)), calls_(&calls) {}

  const std::string& path() const { return path_; }
  std::string place_of(const checkpoint_name& name) const { return path_ + "/" + name.text(); }
  /// The folder in which a checkpoint is written before it is complete.
  std::string partial_place_of(const checkpoint_name& name) const { return place_of(name) + ".partial"; }

  /// Locks the folder and deletes leftovers of interrupted jobs. Must be called by rank 0 before functions
  /// that modify the folder.
  void hold(std::chrono::milliseconds patience) {
    io::make_folders(*calls_, path_);
    lock_.emplace(path_, patience);
    remove_leftovers();
  }

  /// A serial number above those of all checkpoints in the folder. Throws io_error if no number is left.
  std::int64_t next_serial() const;

  /// The verified index of the checkpoint to resume from; nullopt if there is no checkpoint. Throws io_error
  /// if `latest` or the index is damaged. Without `latest`, which is missing if the first save was
  /// interrupted, the newest complete checkpoint is used. Another job may write in the folder meanwhile.
  std::optional<checkpoint_index> newest() const;
  /// Number of attempts to find a checkpoint while another job deletes those that are found.
  static constexpr int most_tries = 20;

  void begin(const checkpoint_name& name) const;
  /// Writes the shard of a part, which is on the disk once the file has its final name.
  void write_shard(const checkpoint_name& name, int part, const io::file_parts& parts) const;
  bool has_shard(const checkpoint_name& name, int part) const {
    struct stat is{};
    return ::lstat(path_of_shard(partial_place_of(name), part).c_str(), &is) == 0;
  }

  /// Called when all shards are written: checks that they form one checkpoint, makes it the latest, and
  /// deletes all but the `keep` newest. If it cannot become the latest, it is deleted.
  void commit(checkpoint_index index, int parts, int keep) const;

  /// Deletes the files of a checkpoint that was not completed.
  void discard(const checkpoint_name& name) const noexcept { remove(partial_place_of(name)); }

 private:
  static constexpr std::uint64_t max_text = std::uint64_t{1} << 28;  // size of the index for a million shards

  std::vector<checkpoint_name> all() const;

  /// False only if `latest` certainly has a different text.
  bool may_be_latest(const std::string& text) const noexcept;

  checkpoint_index read_index(const checkpoint_name& name, std::optional<std::uint64_t> sum) const;

  /// Deletes a folder; failures are ignored and retried at a later save.
  void remove(const std::string& place) const noexcept {
    try {
      io::remove_tree(*calls_, place);
    } catch (const std::exception&) {}
  }
  /// Deletes leftovers. A folder is renamed, and the renaming synced, before its files are deleted, so that a
  /// folder with the name of a checkpoint is complete.
  void remove_leftovers() const;
  void delete_older(std::int64_t than, int keep) const;

  std::string path_;
  io::file_calls* calls_;
  std::optional<io::folder_lock> lock_;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/train/impl/checkpoint_folder.ipp>
#endif
