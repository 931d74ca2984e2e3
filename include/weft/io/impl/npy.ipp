// SPDX-License-Identifier: MIT
// Definitions of <weft/io/npy.hpp>.
#pragma once

#include <algorithm>
#include <charconv>
#include <deque>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/base/little_endian.hpp>
#include <weft/io/npy.hpp>

namespace weft {
namespace io {
namespace detail {

struct npy_type {
  const char* name;  // without the byte order
  dtype type;
};
inline constexpr npy_type npy_types[] = {{"f8", dtype::f64},    {"f4", dtype::f32}, {"f2", dtype::f16},
                                         {"i8", dtype::i64},    {"i4", dtype::i32}, {"u1", dtype::u8},
                                         {"b1", dtype::boolean}};
inline constexpr std::uint64_t max_npy_header = 1 << 20;

WEFT_DEFINE std::uint64_t npy_parser::begin_of_data(std::string_view first, std::uint64_t file_size) const {
  if (!first.starts_with(npy_magic)) fail("does not start with the bytes of a .npy file");
  if (first.size() < 12) fail("ends early");
  const int version = first[6];
  if (version < 1 || version > 3) fail("version " + std::to_string(version) + " of the format is not known");
  const std::size_t bytes = version == 1 ? 2 : 4;
  const std::uint64_t size = weft::detail::little_endian(first.substr(8, bytes));
  if (size > max_npy_header) fail("a header of " + std::to_string(size) + " bytes is too large");
  if (size > file_size - 8 - bytes) fail("the header reaches beyond the end of the file");
  return 8 + bytes + size;
}

WEFT_DEFINE npy_header npy_parser::parse(std::string_view first, std::uint64_t file_size) {
  npy_header header;
  header.data = first.size();
  rest_ = first.substr(first[6] == 1 ? 10 : 12);
  std::uint64_t elements = 0;
  bool has_type = false, has_order = false, has_shape = false;
  expect('{');
  while (!takes('}')) {
    const std::string_view key = text();
    expect(':');
    const bool twice = key == "descr"           ? std::exchange(has_type, true)
                       : key == "fortran_order" ? std::exchange(has_order, true)
                       : key == "shape"         ? std::exchange(has_shape, true)
                                                : false;
    if (twice) fail("key " + std::string(key) + " occurs twice");
    if (key == "descr") parse_type(header);
    else if (key == "fortran_order") parse_order(header);
    else if (key == "shape") elements = parse_shape(header);
    else fail("unknown key " + std::string(key.substr(0, 40)));
    if (takes(',')) continue;
    expect('}');
    break;
  }
  if (!has_type || !has_order || !has_shape) fail("the header needs descr, fortran_order and shape");
  skip_space();
  if (!rest_.empty()) fail("text after the header's dictionary");
  if (!header.lacks.empty()) return header;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size_of(header.type)), &bytes))
    fail("its size overflows");
  if (bytes != file_size - header.data)
    fail("has " + std::to_string(file_size - header.data) + " bytes after the header, but its shape needs " +
         std::to_string(bytes));
  return header;
}

WEFT_DEFINE void npy_parser::skip_space() {
  rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n\r"), rest_.size()));
}

WEFT_DEFINE bool npy_parser::takes(char c) {
  skip_space();
  if (!rest_.starts_with(c)) return false;
  rest_.remove_prefix(1);
  return true;
}

WEFT_DEFINE void npy_parser::expect(char c) {
  if (!takes(c)) fail(std::string("malformed header: expected '") + c + "'");
}

WEFT_DEFINE std::string_view npy_parser::text() {
  const char quote = takes('"') ? '"' : '\'';
  if (quote == '\'') expect('\'');
  const std::size_t size = rest_.find_first_of("'\"\\\n");
  if (size == rest_.npos || rest_[size] != quote) fail("malformed header: a string");
  const std::string_view t = rest_.substr(0, size);
  rest_.remove_prefix(size + 1);
  return t;
}

WEFT_DEFINE void npy_parser::parse_type(npy_header& header) {
  if (takes('[')) {  // an array of structs: the names and types of their members, in lists and tuples
    header.lacks = "is of a structured dtype, which weft does not support";
    for (int depth = 1; depth > 0;) {
      if (takes('[') || takes('(')) ++depth;
      else if (takes(']') || takes(')')) --depth;
      else if (takes(',')) continue;
      else if (rest_.starts_with('\'') || rest_.starts_with('"')) text();
      else extent();
    }
    return;
  }
  const std::string_view name = text();
  const std::string_view rest = name.substr(name.find_first_of("<>|=") == 0 ? 1 : 0);
  header.is_big_endian = name.starts_with('>');
  for (const npy_type& t : npy_types)
    if (rest == t.name) return void(header.type = t.type);
  header.lacks = "is of dtype " + std::string(name.substr(0, 40)) + ", which weft does not support";
  if (rest.starts_with('O')) header.lacks += ": objects are pickled, and weft does not execute pickles";
  if (rest == "V2") header.lacks += ": if it is bfloat16, save x.astype(numpy.float32)";
}

WEFT_DEFINE void npy_parser::parse_order(npy_header& header) {
  skip_space();
  for (const std::string_view word : {"True", "False"})
    if (rest_.starts_with(word)) {
      rest_.remove_prefix(word.size());
      return void(header.is_column_major = word == "True");
    }
  fail("malformed header: fortran_order is neither True nor False");
}

WEFT_DEFINE index_t npy_parser::extent() {
  skip_space();
  index_t n = 0;
  const auto r = std::from_chars(rest_.data(), rest_.data() + rest_.size(), n);
  if (rest_.starts_with('-') || r.ec != std::errc()) fail("an extent is not an unsigned integer of 63 bits");
  rest_.remove_prefix(static_cast<std::size_t>(r.ptr - rest_.data()));
  takes('L');  // Python 2 wrote it
  return n;
}

WEFT_DEFINE std::uint64_t npy_parser::parse_shape(npy_header& header) {
  std::uint64_t elements = 1;
  int dims = 0;
  bool comma = true;
  expect('(');
  while (!takes(')')) {
    if (!comma) fail("malformed header: expected ')'");
    const index_t n = extent();
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(n), &elements))
      fail("its size overflows");
    if (dims++ < max_order) header.extents.append(n);
    comma = takes(',');
  }
  if (dims == 1 && !comma) fail("malformed header: a shape of one extent needs a comma");
  if (dims > max_order)
    header.lacks = "has " + std::to_string(dims) + " dims, but tensors of weft have at most " +
                   std::to_string(max_order);
  return elements;
}

/// Puts the elements of an array, given in the file's order in `bytes`, into row-major order.
inline stored_tensor arranged(const npy_header& header, std::vector<char> bytes) {
  stored_tensor t{header.type, header.extents, std::move(bytes)};
  const index_t size = size_of(t.type);
  if (header.is_big_endian) reverse_elements(t.bytes.data(), t.bytes.size(), size);
  const element_strides strides = column_major(t.extents);
  if (header.is_column_major && !is_row_major(t.extents, strides)) {
    std::vector<char> rows(t.bytes.size());
    copy_row_major(t.bytes.data(), t.extents, strides, size, rows.data());
    t.bytes = std::move(rows);
  }
  return t;
}

inline npy_header parse_npy_header(std::string_view file, const std::string& what) {
  npy_parser parser(what);
  return parser.parse(file.substr(0, static_cast<std::size_t>(parser.begin_of_data(file, file.size()))),
                      file.size());
}
inline stored_tensor npy_elements(const npy_header& header, std::string_view file) {
  const auto data = file.substr(static_cast<std::size_t>(header.data));
  return arranged(header, {data.begin(), data.end()});
}

WEFT_DEFINE std::string npy_beginning(dtype type, const shape& extents) {
  std::string name;
  for (const npy_type& t : npy_types)
    if (t.type == type) name = t.name;
  if (name.empty()) return name;
  std::string header = std::string("{'descr': '") + (size_of(type) == 1 ? "|" : "<") + name +
                       "', 'fortran_order': False, 'shape': (";
  for (int d = 0; d < extents.order; ++d) header += (d ? ", " : "") + std::to_string(extents[d]);
  header += extents.order == 1 ? ",), }" : "), }";
  if (extents.order > 0) header.append(21 - std::to_string(extents[0]).size(), ' ');  // room for a longer one
  header.append(64 - (11 + header.size()) % 64, ' ');
  header += '\n';
  std::string beginning(npy_magic);
  beginning.append(
      {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)});
  return beginning + header;
}

/// The parts of a .npy file; `beginnings` keeps what they refer to. `what` is the file or tensor in errors.
inline file_parts npy_parts(const stored_tensor& from, const std::string& what,
                            std::deque<std::string>& beginnings) {
  const std::string& beginning = beginnings.emplace_back(npy_beginning(from.type, from.extents));
  if (beginning.empty())
    refuse<value_error>(
        {"weft: ", what,
         " is bf16, which NumPy does not support: save with {.as = dtype::f32}, or to a .safetensors file"});
  if (from.bytes.size() != bytes_of(from.extents, from.type))
    refuse<io_error>({"weft: ", what, " has ", from.bytes.size(), " bytes, but its shape needs ",
                      bytes_of(from.extents, from.type)});
  return {beginning, {from.bytes.data(), from.bytes.size()}};
}

}  // namespace detail

WEFT_DEFINE stored_tensor parse_npy(std::string_view file, const std::string& what) {
  const npy_header header = detail::parse_npy_header(file, what);
  if (!header.lacks.empty()) refuse<io_error>({"weft: npy ", what, ": ", header.lacks});
  return detail::npy_elements(header, file);
}

WEFT_DEFINE stored_tensor read_npy(const std::string& path) {
  const input_file file(path);
  detail::npy_parser parser(path);
  std::string first(static_cast<std::size_t>(std::min<std::uint64_t>(12, file.size())), '\0');
  file.read(0, first.data(), first.size());
  first.resize(static_cast<std::size_t>(parser.begin_of_data(first, file.size())));
  file.read(0, first.data(), first.size());
  const npy_header header = parser.parse(first, file.size());
  if (!header.lacks.empty()) refuse<io_error>({"weft: npy ", path, ": ", header.lacks});
  std::vector<char> bytes(static_cast<std::size_t>(file.size() - header.data));
  file.read(header.data, bytes.data(), bytes.size());
  return detail::arranged(header, std::move(bytes));
}

WEFT_DEFINE void write_npy(const std::string& path, const stored_tensor& from) {
  std::deque<std::string> beginnings;
  replace_file(system_calls(), path, detail::npy_parts(from, path + ": the tensor", beginnings));
}

WEFT_DEFINE stored_tensors read_npz(const std::string& path, const name_filter& wanted) {
  const zip_file zip(path);
  stored_tensors all;
  for (const auto& [member, m] : zip.members()) {
    if (member.ends_with('/')) continue;
    const bool is_npy = member.ends_with(".npy");
    const std::string name = is_npy ? member.substr(0, member.size() - 4) : member;
    if (wanted && !wanted(name)) continue;
    if (!is_npy) {
      all.others.emplace(name, "is not a .npy file");
      continue;
    }
    const std::vector<char> bytes = zip.read(m);
    const std::string_view file(bytes.data(), bytes.size());
    npy_header header = detail::parse_npy_header(file, path + ": " + member);
    if (header.lacks.empty()) all.tensors.emplace(name, detail::npy_elements(header, file));
    else all.others.emplace(name, std::move(header.lacks));
  }
  return all;
}

WEFT_DEFINE void write_npz(const std::string& path, const stored_tensors& from) {
  detail::require_no_others("npz", from);
  std::deque<std::string> beginnings;
  std::vector<zip_content> members;
  for (const auto& [name, t] : from.tensors)
    members.push_back({name + ".npy", detail::npy_parts(t, path + ": tensor " + name, beginnings)});
  write_zip(system_calls(), path, members);
}

}  // namespace io
}  // namespace weft
