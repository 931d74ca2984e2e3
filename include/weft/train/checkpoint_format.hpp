// SPDX-License-Identifier: MIT
// The byte formats of a checkpoint (docs/checkpoints.md), without file access.
//
// Every byte is covered by a checksum: `latest` and index.json begin with their own, the index contains those
// of the shards' headers, and a header those of its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/xxh64.hpp>
#include <weft/io/json.hpp>
#include <weft/shape/shape.hpp>

namespace weft::detail {

/// The version that is written, and the oldest that is read. Version 2 has only boxes of rows, with one
/// checksum each.
inline constexpr std::int64_t checkpoint_version = 3, oldest_checkpoint_version = 2;
/// The largest number in a checkpoint, which every JSON reader represents exactly.
inline constexpr std::int64_t max_count = std::int64_t{1} << 53;
inline constexpr std::int64_t max_parts = 1 << 20;

std::string hex_of(std::uint64_t n);
/// Parses 16 lower-case hexadecimal digits, as `hex_of` writes them.
std::optional<std::uint64_t> parse_hex(std::string_view text);
/// Parses a decimal number in [0, most], without sign, leading zeros or other characters.
std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most = max_count);

/// "step-100.7": the checkpoint after step 100, the 7th that was begun in its folder. A suffix follows while
/// it is written or deleted; without one it is complete.
struct checkpoint_name {
  std::int64_t step = 0, serial = 0;
  std::string suffix{};

  std::string text() const { return "step-" + std::to_string(step) + "." + std::to_string(serial) + suffix; }
  static std::optional<checkpoint_name> parsed(std::string_view text);
};

/// A JSON object whose first member is the checksum of the rest. `members` has the form ", \"a\": 1".
std::string sealed(const std::string& members);
/// The parsed text of `sealed`; throws io_error, naming `path`, if the checksum or the format is wrong.
io::json unsealed(const std::string& text, const std::string& path);

/// The integer member `key` of an object; throws io_error unless it is within [least, most].
std::int64_t number_of(const io::json_value& object, const char* key, const std::string& path,
                       std::int64_t least = 0, std::int64_t most = max_count);
std::string text_of(const io::json_value& object, const char* key, const std::string& path);
/// The member `key` of an object, 16 hexadecimal digits.
std::uint64_t sum_of(const io::json_value& object, const char* key, const std::string& path);

/// A space and 16 hexadecimal digits for each number.
inline std::string hex_text_of(const std::vector<std::uint64_t>& numbers) {
  std::string t;
  for (const std::uint64_t n : numbers) t += " " + hex_of(n);
  return t;
}
/// Parses the text of `hex_text_of`; nullopt if it is not such a text.
std::optional<std::vector<std::uint64_t>> hex_numbers_in(std::string_view text);

/// Identifies the checkpoint to which a file belongs. A run starts from newly initialised parameters; an
/// attempt is one process group working on it.
struct checkpoint_id {
  std::uint64_t run = 0, attempt = 0;
  checkpoint_name name{};

  std::string text() const { return hex_of(run) + " " + hex_of(attempt) + " " + name.text(); }
};

/// The shard of one part: size in bytes, checksum of its header.
struct checkpoint_shard {
  std::int64_t bytes = 0;
  std::uint64_t header = 0;  // XXH64 of the bytes before the data
};

struct checkpoint_index {
  checkpoint_id id;
  std::int64_t samples = 0, optimizer_steps = 0;
  std::int64_t loss_scale_log2 = 0, growth_tracker = 0;
  std::string optimizer;                 // its name; empty if it has none, or if an earlier weft wrote this
  std::vector<checkpoint_shard> shards;  // by part
  std::vector<std::uint64_t> random;     // position of each rank's random numbers: step, programs

  std::string text() const;

  /// Throws io_error, naming `path`, if `text` is not a complete index, or a number is out of range.
  static checkpoint_index parsed(const std::string& text, const std::string& path);
};

/// The content of `latest`: the folder of the checkpoint to resume from, and the checksum of its index.
struct latest_checkpoint {
  checkpoint_name name;
  std::uint64_t index = 0;

  std::string text() const;
  static latest_checkpoint parsed(const std::string& text, const std::string& path);
};

/// The key of box number `part` of a tensor of which a shard has several boxes.
inline std::string key_of_part(const std::string& key, std::size_t part) {
  return part == 0 ? key : key + "#" + std::to_string(part);
}

/// The note on a tensor in the header of a shard, "3,0/11,8 0123456789abcdef ...": the offset of the box in
/// the shard, the extents of the whole tensor, and XXH64 of each block (io::block_sums) of its bytes. The box
/// is whole in all dims after those listed, of which there is at least one.
struct piece_note {
  shape offset, whole;
  std::vector<std::uint64_t> sums;

  std::string text() const { return text_of(offset) + "/" + text_of(whole) + hex_text_of(sums); }
  static std::optional<piece_note> parsed(std::string_view text);

 private:
  static std::string text_of(const shape& s);
  static std::optional<shape> numbers_in(std::string_view text);
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/train/impl/checkpoint_format.ipp>
#endif
