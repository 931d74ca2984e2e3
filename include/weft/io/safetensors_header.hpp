// SPDX-License-Identifier: MIT
// The header of a safetensors file: names, dtypes, shapes and positions of its tensors.
//
// Format: u64 size N of the header, N bytes of JSON, then the data. A file is untrusted: sizes, dtypes,
// offsets, gaps and overlaps are checked before data is used. Errors are io_error with file and tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
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
  std::vector<tensor_entry> tensors;          // in the order of the data; together with `others` they fill it
  std::map<std::string, std::string> others;  // tensors that weft has no dtype for, by name, with the reason
  std::map<std::string, std::string> metadata;
  std::uint64_t data = 0;  // offset of the data in the file
};

namespace detail {

struct type_name {
  const char* name;
  dtype type;
};
/// The types of the format that weft does not have.
struct other_type {
  const char* name;
  unsigned bits;  // of an element
};
inline constexpr other_type other_types[] = {
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"I8", 8},          {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"U32", 32},    {"C64", 64},        {"U64", 64}};
/// In ascending order of the sort that writers of the format use.
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
  std::uint64_t begin_of_data(std::string_view first, std::uint64_t file_size) const;

  /// Parses `first`, all bytes before the data.
  safetensors_header parse(std::string_view first, std::uint64_t file_size) const;

 private:
  [[noreturn]] void fail(const std::string& why) const { throw io_error("weft: " + what_ + ": " + why); }

  void read_metadata(const json_value& value, safetensors_header& header) const;

  std::uint64_t read_size(const std::string& name, const json_value& value) const;

  /// An entry, and, if weft has no dtype for the tensor, the reason.
  std::pair<tensor_entry, std::string> read_entry(std::string name, const json_value& value) const;

  /// Sorts entries by offset; they must fill the data without gaps and overlaps.
  void check_offsets(std::vector<tensor_entry>& entries, std::uint64_t data_size) const;

  std::string what_;
};

}  // namespace detail

/// All bytes before the data of a file: size and header. Throws io_error if the file is shorter, or the
/// header larger than 100 MB.
std::string safetensors_beginning(const input_file& file);

/// Parses `beginning`, all bytes before the data of a file of `file_size` bytes, which is called `what` in
/// errors. Throws io_error if it is invalid. Tensors of a dtype or order that weft does not support are
/// listed in `others`.
inline safetensors_header parse_safetensors_header(std::string_view beginning, std::uint64_t file_size,
                                                   const std::string& what) {
  return detail::safetensors_parser(what).parse(beginning, file_size);
}

/// The bytes before the data of a file with these tensors, whose offsets are set; padded so that data is
/// aligned to 8 bytes. Throws value_error for a name that could not be read back, which is not UTF-8 or is
/// "__metadata__", and for metadata that is not UTF-8.
std::string safetensors_beginning(std::vector<tensor_entry>& tensors,
                                  const std::map<std::string, std::string>& metadata);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/safetensors_header.ipp>
#endif
