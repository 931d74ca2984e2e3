// SPDX-License-Identifier: MIT
// Definitions of <weft/train/checkpoint_folder.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/train/checkpoint_folder.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::int64_t checkpoint_folder::next_serial() const {
  std::int64_t last = 0;
  for (const checkpoint_name& c : all()) last = std::max(last, c.serial);
  if (last >= max_count)
    throw io_error("weft: " + path_ + ": already has a checkpoint of number " + std::to_string(last));
  return last + 1;
}

WEFT_DEFINE std::optional<checkpoint_index> checkpoint_folder::newest() const {
  struct stat is{};
  if (::stat(path_.c_str(), &is) != 0 && errno == ENOENT) return {};
  const std::string path = path_ + "/latest";
  if (::lstat(path.c_str(), &is) == 0) {
    const auto read = [&] { return io::input_file(path).text(max_text); };
    std::string text = read();
    for (int left = most_tries;;) {
      const latest_checkpoint latest = latest_checkpoint::parsed(text, path);
      try {
        return read_index(latest.name, latest.index);
      } catch (const io_error&) {
        const std::string newer = --left > 0 ? read() : text;
        if (newer == text) throw;
        text = newer;
      }
    }
  }
  if (errno != ENOENT) io::fail_at(path, "cannot be read");
  std::optional<checkpoint_name> last;
  for (const checkpoint_name& c : all())
    if (c.suffix.empty() && (!last || c.serial > last->serial)) last = c;
  if (!last) return {};
  return read_index(*last, std::nullopt);
}

WEFT_DEFINE void checkpoint_folder::begin(const checkpoint_name& name) const {
  const std::string place = partial_place_of(name);
  if (calls_->make_folder(place) != 0 && errno != EEXIST) io::fail_at(place, "cannot be created");
}

WEFT_DEFINE void checkpoint_folder::write_shard(const checkpoint_name& name, int part,
                                                const io::file_parts& parts) const {
  const std::string path = path_of_shard(partial_place_of(name), part), partial = path + ".partial";
  io::write_new_file(*calls_, partial, parts);
  if (calls_->rename(partial, path) != 0) io::fail_at(path, "cannot be written");
}

WEFT_DEFINE void checkpoint_folder::commit(checkpoint_index index, int parts, int keep) const {
  lock_->require_held();
  const std::string partial = partial_place_of(index.id.name), place = place_of(index.id.name);
  read_contents(partial, index, parts);
  const std::string text = index.text();
  io::write_new_file(*calls_, partial + "/index.json", {text});
  io::sync_folder(*calls_, partial);
  if (calls_->rename(partial, place) != 0) io::fail_at(place, "cannot be created");
  const std::string latest = latest_checkpoint{index.id.name, xxh64(text)}.text();
  try {
    io::sync_folder(*calls_, path_);
    io::replace_file(*calls_, path_ + "/latest", {latest});
  } catch (const std::exception&) {
    if (!may_be_latest(latest)) {  // it may be `latest` if `latest` was replaced but not synced
      calls_->rename(place, place + ".removed");
      remove_leftovers();
    }
    throw;
  }
  delete_older(index.id.name.serial, keep);
}

WEFT_DEFINE bool checkpoint_folder::may_be_latest(const std::string& text) const noexcept {
  const std::string path = path_ + "/latest";
  struct stat is{};
  if (::lstat(path.c_str(), &is) != 0) return errno != ENOENT;
  try {
    return io::input_file(path).text(max_text) == text;
  } catch (const std::exception&) { return true; }
}

WEFT_DEFINE std::vector<checkpoint_name> checkpoint_folder::all() const {
  std::vector<checkpoint_name> found;
  for (const std::string& name : io::names_in(path_))
    if (const auto c = checkpoint_name::parsed(name)) found.push_back(*c);
  return found;
}

WEFT_DEFINE checkpoint_index checkpoint_folder::read_index(const checkpoint_name& name,
                                                           std::optional<std::uint64_t> sum) const {
  const std::string path = place_of(name) + "/index.json", text = io::input_file(path).text(max_text);
  const checkpoint_index index = checkpoint_index::parsed(text, path);
  if (sum && xxh64(text) != *sum)
    throw io_error("weft: " + path + ": is not the index that `latest` names: its checksum does not match");
  if (index.id.name.text() != name.text())
    throw io_error("weft: " + path + ": belongs to another checkpoint, " + index.id.name.text());
  return index;
}

WEFT_DEFINE void checkpoint_folder::remove_leftovers() const {
  std::vector<checkpoint_name> leftovers = all();
  std::erase_if(leftovers,
                [](const checkpoint_name& c) { return c.suffix != ".partial" && c.suffix != ".removed"; });
  if (leftovers.empty() || calls_->sync_folder(path_) != 0) return;
  for (const checkpoint_name& c : leftovers) remove(place_of(c));
}

WEFT_DEFINE void checkpoint_folder::delete_older(std::int64_t than, int keep) const {
  std::vector<checkpoint_name> older;
  for (const checkpoint_name& c : all())
    if (c.suffix.empty() && c.serial < than) older.push_back(c);
  std::sort(older.begin(), older.end(),
            [](const checkpoint_name& a, const checkpoint_name& b) { return a.serial > b.serial; });
  for (std::size_t i = static_cast<std::size_t>(keep - 1); i < older.size(); ++i)
    calls_->rename(place_of(older[i]), place_of(older[i]) + ".removed");
  remove_leftovers();
}

}  // namespace detail
}  // namespace weft
