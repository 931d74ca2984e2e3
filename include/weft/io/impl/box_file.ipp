// SPDX-License-Identifier: MIT
// Definitions of <weft/io/box_file.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/io/box_file.hpp>
#include <weft/io/stored_tensor.hpp>

namespace weft {
namespace io {

WEFT_DEFINE std::vector<std::uint64_t> block_sums(std::string_view bytes) {
  std::vector<std::uint64_t> sums;
  do {
    sums.push_back(xxh64(bytes.substr(0, block_bytes)));
    bytes.remove_prefix(std::min(block_bytes, bytes.size()));
  } while (!bytes.empty());
  return sums;
}

namespace detail {

WEFT_DEFINE file_window::file_window(const box_in_file& from, std::uint64_t bytes, std::uint64_t needed_end)
    : from_(from), bytes_(bytes), needed_end_(needed_end) {
  block_ = from.sums.size() == 1 ? bytes : block_bytes;
}

WEFT_DEFINE std::string_view file_window::from(std::uint64_t begin, std::uint64_t most) {
  if (begin < begin_ || begin >= begin_ + window_.size()) load(begin);
  return std::string_view(window_).substr(static_cast<std::size_t>(begin - begin_),
                                          static_cast<std::size_t>(most));
}

WEFT_DEFINE void file_window::load(std::uint64_t begin) {
  const bool checked = !from_.sums.empty();
  const std::uint64_t block = checked ? begin / block_ : 0;
  begin_ = checked ? block * block_ : begin;
  window_.resize(static_cast<std::size_t>(std::min(block_, (checked ? bytes_ : needed_end_) - begin_)));
  from_.file.read(from_.at + begin_, window_.data(), window_.size());
  if (checked && xxh64(window_) != from_.sums[static_cast<std::size_t>(block)])
    throw io_error("weft: " + from_.file.path() + ": tensor " + from_.name +
                   " is damaged: its checksum does not match");
}

WEFT_DEFINE void tensor_writer::put(std::uint64_t at, std::string_view bytes) {
  if (to_.type == dtype::boolean &&
      !std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0 || c == 1; }))
    throw io_error("weft: " + from_.file.path() + ": tensor " + from_.name +
                   " is bool, but has bytes other than 0 and 1");
  if (to_.where->host_accessible()) return upload(at, bytes);
  if (at != at_ + together_.size() || together_.size() + bytes.size() > block_bytes) flush();
  if (together_.empty()) at_ = at;
  together_ += bytes;
}

}  // namespace detail

WEFT_DEFINE void read_shared(const box_in_file& from, const stored_box& wanted, tensor_state& to) {
  const dtype type = from.type.value_or(to.type);
  const auto size = static_cast<std::uint64_t>(size_of(type)),
             to_size = static_cast<std::uint64_t>(size_of(to.type));
  std::uint64_t needed_end = 0;
  for_each_run(from.where, wanted, [&](index_t begin, index_t, index_t count) {
    needed_end = static_cast<std::uint64_t>(begin + count) * size;
  });
  if (needed_end == 0) return;
  detail::file_window window(from, static_cast<std::uint64_t>(from.where.size()) * size, needed_end);
  detail::tensor_writer target(to, from);
  for_each_run(from.where, wanted, [&](index_t begin, index_t in_wanted, index_t count) {
    auto at = static_cast<std::uint64_t>(begin), to_at = static_cast<std::uint64_t>(in_wanted);
    auto left = static_cast<std::uint64_t>(count);
    while (left > 0) {
      const std::uint64_t most = std::min<std::uint64_t>(left, block_bytes / to_size);
      const std::string_view bytes = window.from(at * size, most * size);
      if (type == to.type) {
        target.put(to_at * to_size, bytes);
      } else {
        const std::vector<char> elements = converted(bytes, type, to.type);
        target.put(to_at * to_size, {elements.data(), elements.size()});
      }
      const std::uint64_t n = bytes.size() / size;
      at += n, to_at += n, left -= n;
    }
  });
  target.flush();
  ++to.version();
}

}  // namespace io
}  // namespace weft
