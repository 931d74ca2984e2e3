// SPDX-License-Identifier: MIT
// Definitions of <weft/io/safetensors_header.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/little_endian.hpp>
#include <weft/io/safetensors_header.hpp>

namespace weft {
namespace io {
namespace detail {

WEFT_DEFINE std::uint64_t safetensors_parser::begin_of_data(std::string_view first,
                                                            std::uint64_t file_size) const {
  if (file_size < 8 || first.size() < 8) fail("shorter than 8 bytes");
  if (first.starts_with("PK\3\4")) fail("is a zip archive, such as a .pt file, which io::load reads");
  const std::uint64_t size = weft::detail::little_endian(first.substr(0, 8));
  if (size > max_header) fail("a header of " + std::to_string(size) + " bytes is too large");
  if (size > file_size - 8) fail("the header reaches beyond the end of the file");
  return 8 + size;
}

WEFT_DEFINE safetensors_header safetensors_parser::parse(std::string_view first,
                                                         std::uint64_t file_size) const {
  safetensors_header header;
  header.data = first.size();
  if (first.size() <= 8 || first[8] != '{') fail("the header does not start with {");
  const json text(std::string(first.substr(8)), what_);
  text.root().for_each_member([&](std::string_view name, const json_value& value) {
    if (name == "__metadata__") return read_metadata(value, header);
    auto [entry, lacks] = read_entry(std::string(name), value);
    if (!lacks.empty()) header.others.emplace(entry.name, std::move(lacks));
    header.tensors.push_back(std::move(entry));
  });
  check_offsets(header.tensors, file_size - header.data);
  std::erase_if(header.tensors, [&](const tensor_entry& e) { return header.others.contains(e.name); });
  return header;
}

WEFT_DEFINE void safetensors_parser::read_metadata(const json_value& value,
                                                   safetensors_header& header) const {
  if (value.kind() == json_kind::null) return;
  if (value.kind() != json_kind::object) fail("__metadata__ is not an object");
  value.for_each_member([&](std::string_view key, const json_value& text) {
    if (text.kind() != json_kind::string) fail("__metadata__ " + std::string(key) + " is not a string");
    header.metadata.emplace(key, text.text());
  });
}

WEFT_DEFINE std::uint64_t safetensors_parser::read_size(const std::string& name,
                                                        const json_value& value) const {
  const auto n = value.integer();
  if (!n || *n < 0) fail("tensor " + name + ": a size is not an unsigned integer of 63 bits");
  return static_cast<std::uint64_t>(*n);
}

WEFT_DEFINE std::pair<tensor_entry, std::string> safetensors_parser::read_entry(
    std::string name, const json_value& value) const {
  const auto type = value.find("dtype"), extents = value.find("shape"), offsets = value.find("data_offsets");
  if (!type || !extents || !offsets) fail("tensor " + name + ": needs dtype, shape and data_offsets");
  if (type->kind() != json_kind::string || extents->kind() != json_kind::array ||
      offsets->kind() != json_kind::array || offsets->size() != 2)
    fail("tensor " + name + ": dtype, shape or data_offsets is malformed");
  tensor_entry e;
  e.name = std::move(name);
  const auto is_named = [&](const auto& t) { return type->text() == t.name; };
  const auto known = std::find_if(std::begin(type_names), std::end(type_names), is_named);
  const auto other = std::find_if(std::begin(other_types), std::end(other_types), is_named);
  std::string lacks;
  std::uint64_t bits = 0;
  if (known != std::end(type_names)) {
    e.type = known->type;
    bits = 8 * static_cast<std::uint64_t>(size_of(e.type));
  } else if (other != std::end(other_types)) {
    lacks = std::string("is of dtype ") + other->name + ", which weft does not support";
    bits = other->bits;
  } else {
    fail("tensor " + e.name + ": unknown dtype " + std::string(type->text()));
  }
  const bool fits = extents->size() <= static_cast<std::size_t>(max_order);
  if (!fits)
    lacks = "has " + std::to_string(extents->size()) + " dims, but tensors of weft have at most " +
            std::to_string(max_order);
  extents->for_each_item([&](const json_value& extent) {
    const std::uint64_t n = read_size(e.name, extent);
    if (__builtin_mul_overflow(bits, n, &bits)) fail("tensor " + e.name + ": its size overflows");
    if (fits) e.extents.append(static_cast<index_t>(n));
  });
  std::uint64_t* to = &e.begin;
  offsets->for_each_item(
      [&](const json_value& offset) { *std::exchange(to, &e.end) = read_size(e.name, offset); });
  if (bits % 8 || e.end < e.begin || e.end - e.begin != bits / 8)
    fail("tensor " + e.name + ": data_offsets do not match dtype and shape");
  return {std::move(e), std::move(lacks)};
}

WEFT_DEFINE void safetensors_parser::check_offsets(std::vector<tensor_entry>& entries,
                                                   std::uint64_t data_size) const {
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
    fail("the data has " + std::to_string(data_size) + " bytes, but the header describes " +
         std::to_string(at));
}

}  // namespace detail

WEFT_DEFINE std::string safetensors_beginning(const input_file& file) {
  char size[8];
  const auto first = static_cast<std::size_t>(std::min<std::uint64_t>(8, file.size()));
  file.read(0, size, first);
  std::string text(detail::safetensors_parser(file.path()).begin_of_data({size, first}, file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

WEFT_DEFINE std::string safetensors_beginning(std::vector<tensor_entry>& tensors,
                                              const std::map<std::string, std::string>& metadata) {
  const auto require_utf8 = [](const std::string& text, const char* what) {
    if (!detail::is_utf8(text)) refuse<value_error>({"weft: safetensors: ", what, text, " is not UTF-8"});
  };
  for (const auto& [key, value] : metadata) {
    require_utf8(key, "the key of metadata ");
    require_utf8(value, "metadata ");
  }
  for (const tensor_entry& t : tensors) {
    require_utf8(t.name, "the name of tensor ");
    if (t.name == "__metadata__")
      refuse<value_error>(
          {"weft: safetensors: a tensor cannot be named __metadata__, the key of the file's metadata"});
  }
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
    for (int i = 0; i < t.extents.order; ++i) {
      header += i ? "," : "";
      header += std::to_string(t.extents[i]);
    }
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

}  // namespace io
}  // namespace weft
