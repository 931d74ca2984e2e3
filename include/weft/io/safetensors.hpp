// SPDX-License-Identifier: MIT
// safetensors: named tensors in one file, as PyTorch and Hugging Face exchange them.
//
//   io::save("model.safetensors", state_dict(model));
//   io::load("model.safetensors", state_dict(model));
//
// Format: u64 header size N, N bytes of JSON, then the data. A file is untrusted: sizes, types,
// offsets and overlaps are checked before a byte of data is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <weft/io/json.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// A tensor of a file. Types that weft does not compute with keep their bytes.
struct stored_tensor {
  dtype type = dtype::f32;
  shape extents;
  std::vector<char> bytes;
};

struct stored_tensors {
  std::map<std::string, stored_tensor> tensors;
  std::map<std::string, std::string> metadata;
};

namespace detail {

struct type_name {
  const char* name;
  dtype type;
};
/// Ascending in the order by which the format's writers sort.
inline constexpr type_name type_names[] = {{"BOOL", dtype::boolean}, {"U8", dtype::u8},
                                           {"F16", dtype::f16},      {"BF16", dtype::bf16},
                                           {"I32", dtype::i32},      {"F32", dtype::f32},
                                           {"F64", dtype::f64},      {"I64", dtype::i64}};
inline int rank_of(dtype t) {
  for (int i = 0; i < 8; ++i)
    if (type_names[i].type == t) return i;
  return 0;
}

inline constexpr std::uint64_t max_header = 100'000'000;

class safetensors_reader {
 public:
  safetensors_reader(std::istream& in, std::uint64_t file_size, std::string what)
      : in_(in), file_size_(file_size), what_("safetensors " + std::move(what)) {}

  stored_tensors read(bool with_bytes) {
    const std::string header = read_header();
    const json root = parse_json(header, what_);
    if (root.type != json::kind::object) fail("the header is not an object");
    stored_tensors result;
    std::vector<entry> entries;
    for (std::size_t i = 0; i < root.keys.size(); ++i)
      if (root.keys[i] == "__metadata__") read_metadata(root.items[i], result);
      else entries.push_back(read_entry(root.keys[i], root.items[i]));
    check_offsets(entries);
    for (entry& e : entries) {
      if (with_bytes) {
        e.tensor.bytes.resize(static_cast<std::size_t>(e.end - e.begin));
        in_.read(e.tensor.bytes.data(), static_cast<std::streamsize>(e.tensor.bytes.size()));
        if (!in_) fail("tensor " + e.name + ": cannot be read");
      }
      result.tensors.emplace(e.name, std::move(e.tensor));
    }
    return result;
  }

 private:
  struct entry {
    std::string name;
    std::uint64_t begin = 0, end = 0;
    stored_tensor tensor;
  };

  [[noreturn]] void fail(const std::string& why) const { throw io_error("weft: " + what_ + ": " + why); }

  std::string read_header() {
    unsigned char size_bytes[8];
    if (file_size_ < 8 || !in_.read(reinterpret_cast<char*>(size_bytes), 8)) fail("shorter than 8 bytes");
    std::uint64_t size = 0;
    for (int i = 8; i-- > 0;) size = size << 8 | size_bytes[i];
    if (size > max_header) fail("a header of " + std::to_string(size) + " bytes is too large");
    if (size > file_size_ - 8) fail("the header reaches beyond the end of the file");
    std::string header(static_cast<std::size_t>(size), '\0');
    if (!in_.read(header.data(), static_cast<std::streamsize>(size))) fail("the header cannot be read");
    if (header.empty() || header[0] != '{') fail("the header does not start with {");
    data_size_ = file_size_ - 8 - size;
    return header;
  }

  void read_metadata(const json& value, stored_tensors& result) const {
    if (value.type != json::kind::object) fail("__metadata__ is not an object");
    for (std::size_t i = 0; i < value.keys.size(); ++i) {
      if (value.items[i].type != json::kind::string) fail("__metadata__ " + value.keys[i] + " is not a string");
      result.metadata[value.keys[i]] = value.items[i].string;
    }
  }

  /// A JSON number that is an unsigned integer of at most 63 bits.
  std::uint64_t read_size(const std::string& name, const json& value) const {
    std::uint64_t n = 0;
    const char* end = value.string.data() + value.string.size();
    const auto r = std::from_chars(value.string.data(), end, n);
    if (value.type != json::kind::number || r.ec != std::errc() || r.ptr != end || n >> 63)
      fail("tensor " + name + ": a size is not an unsigned integer");
    return n;
  }

  entry read_entry(const std::string& name, const json& value) const {
    const json *type = value.find("dtype"), *extents = value.find("shape"), *offsets = value.find("data_offsets");
    if (value.type != json::kind::object || !type || !extents || !offsets)
      fail("tensor " + name + ": needs dtype, shape and data_offsets");
    if (type->type != json::kind::string || extents->type != json::kind::array ||
        offsets->type != json::kind::array || offsets->items.size() != 2)
      fail("tensor " + name + ": dtype, shape or data_offsets is malformed");
    entry e;
    e.name = name;
    const auto known = std::find_if(std::begin(type_names), std::end(type_names),
                                    [&](const type_name& t) { return type->string == t.name; });
    if (known == std::end(type_names)) fail("tensor " + name + ": unknown dtype " + type->string);
    e.tensor.type = known->type;
    if (extents->items.size() > static_cast<std::size_t>(max_order))
      fail("tensor " + name + ": more than " + std::to_string(max_order) + " dims");
    auto bytes = static_cast<std::uint64_t>(size_of(e.tensor.type));
    for (const json& extent : extents->items) {
      const std::uint64_t n = read_size(name, extent);
      if (__builtin_mul_overflow(bytes, n, &bytes)) fail("tensor " + name + ": its size overflows");
      e.tensor.extents.append(static_cast<index_t>(n));
    }
    e.begin = read_size(name, offsets->items[0]);
    e.end = read_size(name, offsets->items[1]);
    if (e.end < e.begin || e.end - e.begin != bytes)
      fail("tensor " + name + ": data_offsets do not match dtype and shape");
    return e;
  }

  /// Sorted by offset, tensors must fill the data without holes and overlaps.
  void check_offsets(std::vector<entry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const entry& a, const entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t at = 0;
    for (const entry& e : entries) {
      if (e.begin != at) fail("tensor " + e.name + ": starts at " + std::to_string(e.begin) + " where " + std::to_string(at) + " is expected");
      at = e.end;
    }
    if (at != data_size_)
      fail("the data has " + std::to_string(data_size_) + " bytes, the header describes " + std::to_string(at));
  }

  std::istream& in_;
  std::uint64_t file_size_, data_size_ = 0;
  std::string what_;
};

}  // namespace detail

namespace detail {
inline stored_tensors read_file(const std::string& path, bool with_bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw io_error("weft: " + path + ": cannot be opened");
  in.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(in.tellg());
  in.seekg(0);
  return safetensors_reader(in, size, path).read(with_bytes);
}
}  // namespace detail

/// All tensors of a file. Throws io_error that names the file and what is wrong with it.
inline stored_tensors read_safetensors(const std::string& path) { return detail::read_file(path, true); }
/// Types, shapes and metadata, without the elements.
inline stored_tensors read_safetensors_header(const std::string& path) { return detail::read_file(path, false); }

/// Writes tensors as the reference implementation does: by type, widest first, then by name; the
/// header padded so that data is aligned to 8. The file appears whole or not at all.
inline void write_safetensors(const std::string& path, const stored_tensors& from) {
  std::vector<const std::pair<const std::string, stored_tensor>*> order;
  for (const auto& entry : from.tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const int x = detail::rank_of(a->second.type), y = detail::rank_of(b->second.type);
    return x != y ? x > y : a->first < b->first;
  });
  std::string header = "{";
  if (!from.metadata.empty()) {
    header += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : from.metadata) {
      if (!std::exchange(first, false)) header += ",";
      header += json_string(key) + ":" + json_string(value);
    }
    header += "}";
  }
  std::size_t at = 0;
  for (const auto* entry : order) {
    const stored_tensor& t = entry->second;
    if (header.size() > 1) header += ",";
    header += json_string(entry->first) + ":{\"dtype\":\"" + detail::type_names[detail::rank_of(t.type)].name + "\",\"shape\":[";
    for (int i = 0; i < t.extents.order; ++i) {
      if (i) header += ",";
      header += std::to_string(t.extents[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + t.bytes.size()) + "]}";
    at += t.bytes.size();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string temporary = path + ".partial";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!out) throw io_error("weft: " + path + ": cannot be written");
    unsigned char size_bytes[8];
    for (int i = 0; i < 8; ++i) size_bytes[i] = static_cast<unsigned char>(header.size() >> 8 * i);
    out.write(reinterpret_cast<const char*>(size_bytes), 8);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const auto* entry : order)
      out.write(entry->second.bytes.data(), static_cast<std::streamsize>(entry->second.bytes.size()));
    out.flush();
    if (!out) {
      std::remove(temporary.c_str());
      throw io_error("weft: " + path + ": writing failed; is the disk full?");
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    throw io_error("weft: " + path + ": cannot be replaced");
}

/// The form of `t` as it goes to a file. Its elements are there when this returns.
inline void store_form(const tensor_state& t, stored_tensor& to) {
  weft::detail::require_memory(t);
  t.where->synchronize();
  to.type = t.type;
  to.extents = t.extents;
}
/// The same with the elements, into memory that `to` may have already.
inline void store(const tensor_state& t, stored_tensor& to) {
  store_form(t, to);
  to.bytes.resize(t.bytes());
  t.where->download(to.bytes.data(), t.memory.data(), t.bytes());
}
inline stored_tensor stored(const tensor_state& t) {
  stored_tensor s;
  store(t, s);
  return s;
}

/// Sets the elements of `t`, which must have the stored type and shape.
inline void restore(const std::string& path, const std::string& name, const stored_tensor& from, tensor_state& t) {
  if (!(from.extents == t.extents) || from.type != t.type)
    throw io_error("weft: " + path + ": tensor " + name + " is " + name_of(from.type) + " " + to_string(from.extents) +
                   ", the model wants " + name_of(t.type) + " " + to_string(t.extents));
  t.where->upload(t.memory.data(), from.bytes.data(), from.bytes.size());
  ++t.version;
}

using named_tensors = std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>>;

/// Writes named tensors, a state_dict for example.
inline void save(const std::string& path, const named_tensors& tensors) {
  stored_tensors file;
  file.metadata["format"] = "pt";
  for (const auto& [name, t] : tensors) file.tensors[name] = stored(*t);
  write_safetensors(path, file);
}

/// Sets every named tensor from the file, which may hold more. Nothing changes if one is missing
/// or does not fit.
inline void load(const std::string& path, const named_tensors& tensors) {
  const stored_tensors file = read_safetensors(path);
  for (const auto& [name, t] : tensors) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) throw io_error("weft: " + path + ": tensor " + name + " is missing");
    if (!(found->second.extents == t->extents) || found->second.type != t->type)
      restore(path, name, found->second, *t);  // says what does not fit
  }
  for (const auto& [name, t] : tensors) restore(path, name, file.tensors.at(name), *t);
}

}  // namespace weft::io
