// SPDX-License-Identifier: MIT
// The header of a safetensors file: names, dtypes, shapes and positions of its tensors.
//
// Format: u64 size N of the header, N bytes of JSON, then the data. A file is untrusted: sizes, dtypes,
// offsets, gaps and overlaps are checked before data is used. Errors are io_error with file and tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <weft/io/files.hpp>
#include <weft/io/json.hpp>
#include <weft/shape/shape.hpp>

namespace weft::io {

/// A tensor in the header: name, dtype, shape, and the byte range of its elements within the data.
struct tensor_entry {
  std::string name;
  dtype type = dtype::f32;
  shape extents;
  std::uint64_t begin = 0, end = 0;
};

/// A parsed header.
struct safetensors_header {
  std::vector<tensor_entry> tensors;  // in the order of the data, which they fill without gaps
  std::map<std::string, std::string> metadata;
  std::uint64_t data = 0;  // offset of the data in the file
};

namespace detail {

struct type_name {
  const char* name;
  dtype type;
};
/// Ascending in the order by which writers of the format sort.
inline constexpr type_name type_names[] = {{"BOOL", dtype::boolean}, {"U8", dtype::u8},   {"F16", dtype::f16},
                                           {"BF16", dtype::bf16},    {"I32", dtype::i32}, {"F32", dtype::f32},
                                           {"F64", dtype::f64},      {"I64", dtype::i64}};
inline int rank_of(dtype t) {
  for (int i = 0; i < 8; ++i)
    if (type_names[i].type == t) return i;
  return 0;
}
inline const char* stored_name(dtype t) { return type_names[rank_of(t)].name; }

inline constexpr std::uint64_t max_header = 100'000'000;

class safetensors_parser {
 public:
  explicit safetensors_parser(const std::string& what) : what_("safetensors " + what) {}

  /// Offset of the data in a file that begins with `first`.
  std::uint64_t begin_of_data(std::string_view first, std::uint64_t file_size) const {
    if (file_size < 8 || first.size() < 8) fail("shorter than 8 bytes");
    std::uint64_t size = 0;
    for (std::size_t i = 8; i-- > 0;) size = size << 8 | static_cast<unsigned char>(first[i]);
    if (size > max_header) fail("a header of " + std::to_string(size) + " bytes is too large");
    if (size > file_size - 8) fail("the header reaches beyond the end of the file");
    return 8 + size;
  }

  /// Parses `first`, all bytes before the data.
  safetensors_header parse(std::string_view first, std::uint64_t file_size) const {
    safetensors_header header;
    header.data = first.size();
    if (first.size() <= 8 || first[8] != '{') fail("the header does not start with {");
    const json text(std::string(first.substr(8)), what_);
    text.root().for_each_member([&](std::string_view name, const json_value& value) {
      if (name == "__metadata__")
        read_metadata(value, header);
      else
        header.tensors.push_back(read_entry(std::string(name), value));
    });
    check_offsets(header.tensors, file_size - header.data);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw io_error("weft: " + what_ + ": " + why); }

  void read_metadata(const json_value& value, safetensors_header& header) const {
    if (value.kind() != json_kind::object) fail("__metadata__ is not an object");
    value.for_each_member([&](std::string_view key, const json_value& text) {
      if (text.kind() != json_kind::string) fail("__metadata__ " + std::string(key) + " is not a string");
      header.metadata.emplace(key, text.text());
    });
  }

  std::uint64_t read_size(const std::string& name, const json_value& value) const {
    const auto n = value.integer();
    if (!n || *n < 0) fail("tensor " + name + ": a size is not an unsigned integer of 63 bits");
    return static_cast<std::uint64_t>(*n);
  }

  tensor_entry read_entry(std::string name, const json_value& value) const {
    const auto type = value.find("dtype"), extents = value.find("shape"),
               offsets = value.find("data_offsets");
    if (!type || !extents || !offsets) fail("tensor " + name + ": needs dtype, shape and data_offsets");
    if (type->kind() != json_kind::string || extents->kind() != json_kind::array ||
        offsets->kind() != json_kind::array || offsets->size() != 2)
      fail("tensor " + name + ": dtype, shape or data_offsets is malformed");
    tensor_entry e;
    e.name = std::move(name);
    const auto known = std::find_if(std::begin(type_names), std::end(type_names),
                                    [&](const type_name& t) { return type->text() == t.name; });
    if (known == std::end(type_names))
      fail("tensor " + e.name + ": unknown dtype " + std::string(type->text()));
    e.type = known->type;
    if (extents->size() > static_cast<std::size_t>(max_order))
      fail("tensor " + e.name + ": more than " + std::to_string(max_order) + " dims");
    auto bytes = static_cast<std::uint64_t>(size_of(e.type));
    extents->for_each_item([&](const json_value& extent) {
      const std::uint64_t n = read_size(e.name, extent);
      if (__builtin_mul_overflow(bytes, n, &bytes)) fail("tensor " + e.name + ": its size overflows");
      e.extents.append(static_cast<index_t>(n));
    });
    std::uint64_t* to = &e.begin;
    offsets->for_each_item(
        [&](const json_value& offset) { *std::exchange(to, &e.end) = read_size(e.name, offset); });
    if (e.end < e.begin || e.end - e.begin != bytes)
      fail("tensor " + e.name + ": data_offsets do not match dtype and shape");
    return e;
  }

  /// Sorts entries by offset; they must fill the data without gaps and overlaps.
  void check_offsets(std::vector<tensor_entry>& entries, std::uint64_t data_size) const {
    std::sort(entries.begin(), entries.end(), [](const tensor_entry& a, const tensor_entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t at = 0;
    for (const tensor_entry& e : entries) {
      if (e.begin != at)
        fail("tensor " + e.name + ": starts at " + std::to_string(e.begin) + " where " + std::to_string(at) +
             " is expected");
      at = e.end;
    }
    if (at != data_size)
      fail("the data has " + std::to_string(data_size) + " bytes, the header describes " +
           std::to_string(at));
  }

  std::string what_;
};

}  // namespace detail

/// All bytes before the data of a file: size and header. Throws io_error if the file is shorter, or the
/// header larger than 100 MB.
inline std::string safetensors_beginning(const input_file& file) {
  char size[8];
  const auto first = static_cast<std::size_t>(std::min<std::uint64_t>(8, file.size()));
  file.read(0, size, first);
  std::string text(detail::safetensors_parser(file.path()).begin_of_data({size, first}, file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

/// Parses `beginning`, all bytes before the data of a file of `file_size` bytes, which is called `what` in
/// errors. Throws io_error if it is invalid.
inline safetensors_header parse_safetensors_header(std::string_view beginning, std::uint64_t file_size,
                                                   const std::string& what) {
  return detail::safetensors_parser(what).parse(beginning, file_size);
}

/// The bytes before the data of a file with these tensors, whose offsets are set; padded so that data is
/// aligned to 8 bytes.
inline std::string safetensors_beginning(std::vector<tensor_entry>& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  const auto next = [&](const std::string& key) {
    header += (header.size() > 1 && header.back() != '{' ? "," : "") + json_string(key) + ":";
  };
  if (!metadata.empty()) {
    next("__metadata__");
    header += "{";
    for (const auto& [key, value] : metadata) next(key), header += json_string(value);
    header += "}";
  }
  std::uint64_t at = 0;
  for (tensor_entry& t : tensors) {
    t.begin = std::exchange(at, at + bytes_of(t.extents, t.type));
    t.end = at;
    next(t.name);
    header += std::string("{\"dtype\":\"") + detail::stored_name(t.type) + "\",\"shape\":[";
    for (int i = 0; i < t.extents.order; ++i) header += (i ? "," : "") + std::to_string(t.extents[i]);
    header += "],\"data_offsets\":[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > detail::max_header)
    throw io_error("weft: safetensors: a header of " + std::to_string(header.size()) + " bytes is too large");
  std::string size(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(header.size() >> 8 * i);
  return size + header;
}

}  // namespace weft::io
