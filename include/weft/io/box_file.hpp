// SPDX-License-Identifier: MIT
// Reading a box of a tensor from a file that holds another box of it: reads only the part of the file that is
// needed, through a buffer of 1 MiB.
//
//   read_shared({file, at, whole_box(extents), {}, "h.0.weight"}, own_rows, *local);
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/xxh64.hpp>
#include <weft/io/files.hpp>
#include <weft/shape/box.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// The size in bytes of the blocks, each of which has a checksum; the last block of a tensor may be shorter.
inline constexpr std::size_t block_bytes = std::size_t{1} << 20;

/// XXH64 of each block of `bytes`; at least one number.
std::vector<std::uint64_t> block_sums(std::string_view bytes);

/// A box of a tensor in a file, row-major.
struct box_in_file {
  const input_file& file;
  std::uint64_t at = 0;  // offset of its first element
  box where{};
  /// Checksums of its blocks; a single one may cover all bytes together. Empty: nothing is checked.
  std::vector<std::uint64_t> sums{};
  std::string name{};           // name of the tensor, for errors
  std::optional<dtype> type{};  // in the file, if not as in memory; both are floating-point
};

namespace detail {

/// A part of a box in a file, in memory.
class file_window {
 public:
  /// Bytes from `needed_end` on are not read unless a checksum includes them.
  file_window(const box_in_file& from, std::uint64_t bytes, std::uint64_t needed_end);

  /// The bytes from `begin` on, as many as are in memory after at most one read, and at most `most`. Throws
  /// io_error if a checksum is wrong.
  std::string_view from(std::uint64_t begin, std::uint64_t most);

 private:
  void load(std::uint64_t begin);

  const box_in_file& from_;
  std::uint64_t bytes_, needed_end_, block_;
  std::uint64_t begin_ = 0;
  std::string window_;
};

/// Copies bytes to a tensor in ascending order; for a device that the host cannot access, in one copy at the
/// end.
class tensor_writer {
 public:
  tensor_writer(tensor_state& to, const box_in_file& from) : to_(to), from_(from) {}

  void put(std::uint64_t at, std::string_view bytes);
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

/// Sets the elements of `to`, which contains the box `wanted` of a tensor, to those elements of the box that
/// are in `from`. Throws io_error, naming file and tensor, if a checksum is wrong or a bool is neither 0 nor
/// 1; elements before the fault have then been set. Reads at most 1 MiB at a time, or the whole of `from` if
/// one checksum covers more, and allocates as much, or twice as much if elements are converted.
void read_shared(const box_in_file& from, const stored_box& wanted, tensor_state& to);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/box_file.ipp>
#endif
