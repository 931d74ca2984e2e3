// SPDX-License-Identifier: MIT
// A folder of checkpoints: its files and their names at any moment.
//
//   lock             held by rank 0 of the job that uses the folder
//   step-100.7       a complete checkpoint, never modified
//   step-200.8.partial, step-90.6.removed    being written, being deleted
//   latest           names the checkpoint to resume from
//
// A checkpoint is written under a new name, synced, renamed, and only then named in `latest`; older ones are
// deleted afterwards. So at any interruption `latest` names a complete checkpoint: the new one or the one
// before.
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
  static std::string shard(const std::string& folder, int part) {
    return folder + "/rank-" + std::to_string(part) + ".safetensors";
  }

  /// Locks the folder and deletes what interrupted jobs left. Called by rank 0 before the functions that
  /// modify the folder.
  void hold(std::chrono::milliseconds patience) {
    io::make_folders(*calls_, path_);
    lock_.emplace(path_, patience);
    remove_leftovers();
  }

  /// A serial number above those of all checkpoints in the folder. Throws io_error if there is none left.
  std::int64_t next_serial() const {
    std::int64_t last = 0;
    for (const checkpoint_name& c : all()) last = std::max(last, c.serial);
    if (last >= max_count)
      throw io_error("weft: " + path_ + ": has a checkpoint of number " + std::to_string(last));
    return last + 1;
  }

  /// The verified index of the checkpoint to resume from; none if there is no checkpoint. Throws io_error if
  /// `latest` or the index is damaged. Without `latest`, which is missing if the first save was interrupted,
  /// the newest complete checkpoint is used.
  std::optional<checkpoint_index> newest() const {
    struct stat is{};
    if (::stat(path_.c_str(), &is) != 0 && errno == ENOENT) return {};
    const std::string path = path_ + "/latest";
    if (::lstat(path.c_str(), &is) == 0) {
      const latest_checkpoint latest = latest_checkpoint::parsed(io::input_file(path).text(max_text), path);
      return read_index(latest.name, latest.index);
    }
    if (errno != ENOENT) io::fail_at(path, "cannot be read");
    std::optional<checkpoint_name> last;
    for (const checkpoint_name& c : all())
      if (c.suffix.empty() && (!last || c.serial > last->serial)) last = c;
    if (!last) return {};
    return read_index(*last, std::nullopt);
  }

  void begin(const checkpoint_name& name) const {
    const std::string place = partial_place_of(name);
    if (calls_->make_folder(place) != 0 && errno != EEXIST) io::fail_at(place, "cannot be made");
  }
  /// Writes the shard of a part; it is on the disk when the file has its final name.
  void write_shard(const checkpoint_name& name, int part, const io::file_parts& parts) const {
    const std::string path = shard(partial_place_of(name), part), partial = path + ".partial";
    io::write_new_file(*calls_, partial, parts);
    if (calls_->rename(partial, path) != 0) io::fail_at(path, "cannot be written");
  }
  bool has_shard(const checkpoint_name& name, int part) const {
    struct stat is{};
    return ::lstat(shard(partial_place_of(name), part).c_str(), &is) == 0;
  }

  /// Called when all shards are written: checks that they form one checkpoint, makes it the latest, and
  /// deletes all but the `keep` newest.
  void commit(checkpoint_index index, int parts, int keep) const {
    lock_->require_held();
    const std::string partial = partial_place_of(index.id.name), place = place_of(index.id.name);
    read_contents(partial, index, parts);
    const std::string text = index.text();
    io::write_new_file(*calls_, partial + "/index.json", {text});
    io::sync_folder(*calls_, partial);
    if (calls_->rename(partial, place) != 0) io::fail_at(place, "cannot be made");
    io::sync_folder(*calls_, path_);
    const std::string latest = latest_checkpoint{index.id.name, xxh64(text)}.text();
    io::replace_file(*calls_, path_ + "/latest", {latest});
    delete_older(index.id.name.serial, keep);
  }

  /// Deletes the files of a checkpoint that was not completed.
  void discard(const checkpoint_name& name) const noexcept { remove(partial_place_of(name)); }

 private:
  static constexpr std::uint64_t max_text = std::uint64_t{1} << 28;  // size of the index for a million shards

  std::vector<checkpoint_name> all() const {
    std::vector<checkpoint_name> found;
    for (const std::string& name : io::names_in(path_))
      if (const auto c = checkpoint_name::parsed(name)) found.push_back(*c);
    return found;
  }

  checkpoint_index read_index(const checkpoint_name& name, std::optional<std::uint64_t> sum) const {
    const std::string path = place_of(name) + "/index.json", text = io::input_file(path).text(max_text);
    const checkpoint_index index = checkpoint_index::parsed(text, path);
    if (sum && xxh64(text) != *sum)
      throw io_error("weft: " + path + ": is not the index that `latest` names: its checksum is another");
    if (index.id.name.text() != name.text())
      throw io_error("weft: " + path + ": is of another checkpoint, " + index.id.name.text());
    return index;
  }

  /// Deletes a folder; failures are ignored and retried at a later save.
  void remove(const std::string& place) const noexcept {
    try {
      io::remove_tree(*calls_, place);
    } catch (const std::exception&) {}
  }
  /// Deletes leftovers. A folder is renamed, and the renaming synced, before its files are deleted, so that a
  /// folder with the name of a checkpoint is complete.
  void remove_leftovers() const {
    std::vector<checkpoint_name> leftovers = all();
    std::erase_if(leftovers,
                  [](const checkpoint_name& c) { return c.suffix != ".partial" && c.suffix != ".removed"; });
    if (leftovers.empty() || calls_->sync_folder(path_) != 0) return;
    for (const checkpoint_name& c : leftovers) remove(place_of(c));
  }
  void delete_older(std::int64_t than, int keep) const {
    std::vector<checkpoint_name> older;
    for (const checkpoint_name& c : all())
      if (c.suffix.empty() && c.serial < than) older.push_back(c);
    std::sort(older.begin(), older.end(),
              [](const checkpoint_name& a, const checkpoint_name& b) { return a.serial > b.serial; });
    for (std::size_t i = static_cast<std::size_t>(keep - 1); i < older.size(); ++i)
      calls_->rename(place_of(older[i]), place_of(older[i]) + ".removed");
    remove_leftovers();
  }

  std::string path_;
  io::file_calls* calls_;
  std::optional<io::folder_lock> lock_;
};

}  // namespace weft::detail
