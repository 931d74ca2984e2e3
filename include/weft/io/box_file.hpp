// SPDX-License-Identifier: MIT
// Reading a box of a tensor from a file that holds another box of it: no more of the file than is needed,
// through a buffer of 1 MiB.
//
//   read_shared({file, at, whole_box(extents), {}, "h.0.weight"}, own_rows, *local);
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/xxh64.hpp>
#include <weft/io/files.hpp>
#include <weft/shape/box.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// The size in bytes of the blocks of which each has a checksum; the last one of a tensor may be shorter.
inline constexpr std::size_t block_bytes = std::size_t{1} << 20;

/// XXH64 of each block of `bytes`; at least one.
inline std::vector<std::uint64_t> block_sums(std::string_view bytes) {
  std::vector<std::uint64_t> sums;
  do {
    sums.push_back(xxh64(bytes.substr(0, block_bytes)));
    bytes.remove_prefix(std::min(block_bytes, bytes.size()));
  } while (!bytes.empty());
  return sums;
}

/// A box of a tensor in a file, row-major.
struct box_in_file {
  const input_file& file;
  std::uint64_t at = 0;  // of its first element
  box where{};
  /// Of its blocks; a single one may be of all bytes together. Empty: nothing is checked.
  std::vector<std::uint64_t> sums{};
  std::string name{};  // of the tensor, for errors
};

namespace detail {

/// A part of a box in a file, in memory.
class file_window {
 public:
  /// Bytes from `needed_end` on are not read unless a checksum includes them.
  file_window(const box_in_file& from, std::uint64_t bytes, std::uint64_t needed_end)
      : from_(from), bytes_(bytes), needed_end_(needed_end) {
    block_ = from.sums.size() == 1 ? bytes : block_bytes;
  }

  /// The bytes from `begin` on, as many as are in memory after at most one read; at most `most`. Throws
  /// io_error if their checksum is wrong.
  std::string_view from(std::uint64_t begin, std::uint64_t most) {
    if (begin < begin_ || begin >= begin_ + window_.size()) load(begin);
    return std::string_view(window_).substr(static_cast<std::size_t>(begin - begin_),
                                            static_cast<std::size_t>(most));
  }

 private:
  void load(std::uint64_t begin) {
    const bool checked = !from_.sums.empty();
    const std::uint64_t block = checked ? begin / block_ : 0;
    begin_ = checked ? block * block_ : begin;
    window_.resize(static_cast<std::size_t>(std::min(block_, (checked ? bytes_ : needed_end_) - begin_)));
    from_.file.read(from_.at + begin_, window_.data(), window_.size());
    if (checked && xxh64(window_) != from_.sums[static_cast<std::size_t>(block)])
      throw io_error("weft: " + from_.file.path() + ": tensor " + from_.name +
                     " is damaged: its checksum is another");
  }

  const box_in_file& from_;
  std::uint64_t bytes_, needed_end_, block_;
  std::uint64_t begin_ = 0;
  std::string window_;
};

/// Copies bytes to a tensor in ascending order; a device that the host cannot access gets them together.
class tensor_writer {
 public:
  tensor_writer(tensor_state& to, const box_in_file& from) : to_(to), from_(from) {}

  void put(std::uint64_t at, std::string_view bytes) {
    if (to_.type == dtype::boolean &&
        !std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0 || c == 1; }))
      throw io_error("weft: " + from_.file.path() + ": tensor " + from_.name +
                     " is bool, and has bytes other than 0 and 1");
    if (to_.where->host_accessible()) return upload(at, bytes);
    if (at != at_ + together_.size() || together_.size() + bytes.size() > block_bytes) flush();
    if (together_.empty()) at_ = at;
    together_ += bytes;
  }
  void flush() {
    if (!together_.empty()) upload(at_, together_);
    together_.clear();
  }

 private:
  void upload(std::uint64_t at, std::string_view bytes) {
    to_.where->upload(static_cast<char*>(to_.memory.data()) + at, bytes.data(), bytes.size());
  }

  tensor_state& to_;
  const box_in_file& from_;
  std::uint64_t at_ = 0;
  std::string together_;
};

}  // namespace detail

/// Sets the elements of `to`, in which the box `wanted` of a tensor is, to those that are also in `from`.
/// Throws io_error, naming file and tensor, if a checksum is wrong or a bool other than 0 and 1; elements
/// before it have been set then. `to` is of the type in the file. Reads and allocates at most 1 MiB at a
/// time, or the whole of `from` if one checksum covers more.
inline void read_shared(const box_in_file& from, const stored_box& wanted, tensor_state& to) {
  const auto size = static_cast<std::uint64_t>(size_of(to.type));
  std::uint64_t needed_end = 0;
  for_each_run(from.where, wanted, [&](index_t begin, index_t, index_t count) {
    needed_end = static_cast<std::uint64_t>(begin + count) * size;
  });
  if (needed_end == 0) return;
  detail::file_window window(from, static_cast<std::uint64_t>(from.where.size()) * size, needed_end);
  detail::tensor_writer target(to, from);
  for_each_run(from.where, wanted, [&](index_t begin, index_t in_wanted, index_t count) {
    std::uint64_t at = static_cast<std::uint64_t>(begin) * size, n = static_cast<std::uint64_t>(count) * size;
    std::uint64_t target_at = static_cast<std::uint64_t>(in_wanted) * size;
    while (n > 0) {
      const std::string_view bytes = window.from(at, n);
      target.put(target_at, bytes);
      at += bytes.size(), target_at += bytes.size(), n -= bytes.size();
    }
  });
  target.flush();
  ++to.version;
}

}  // namespace weft::io
