// SPDX-License-Identifier: MIT
// safetensors: named tensors in one file, as PyTorch and Hugging Face exchange them.
//
//   io::save("model.safetensors", state_dict(model));
//   io::load("model.safetensors", state_dict(model));
//
// Files are checked as safetensors_header.hpp says. What is written appears whole or not at all, a loss of
// power included: replace_file of files.hpp.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/io/safetensors_header.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// A tensor of a file.
struct stored_tensor {
  dtype type = dtype::f32;
  shape extents;
  std::vector<char> bytes;
};

struct stored_tensors {
  std::map<std::string, stored_tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// The tensors of the bytes of a file, which is called `what` in errors.
inline stored_tensors parse_safetensors(std::string_view file, const std::string& what) {
  const auto data =
      static_cast<std::size_t>(detail::safetensors_parser(what).begin_of_data(file, file.size()));
  safetensors_header header = parse_safetensors_header(file.substr(0, data), file.size(), what);
  stored_tensors all;
  all.metadata = std::move(header.metadata);
  for (const tensor_entry& t : header.tensors) {
    const auto bytes =
        file.substr(data + static_cast<std::size_t>(t.begin), static_cast<std::size_t>(t.end - t.begin));
    all.tensors.emplace(t.name, stored_tensor{t.type, t.extents, {bytes.begin(), bytes.end()}});
  }
  return all;
}

/// All tensors of a file. Throws io_error that names the file and what is wrong with it.
inline stored_tensors read_safetensors(const std::string& path) {
  const input_file file(path);
  safetensors_header header = parse_safetensors_header(safetensors_beginning(file), file.size(), path);
  stored_tensors all;
  all.metadata = std::move(header.metadata);
  for (const tensor_entry& t : header.tensors) {
    stored_tensor& to = all.tensors[t.name];
    to = {t.type, t.extents, std::vector<char>(static_cast<std::size_t>(t.end - t.begin))};
    file.read(header.data + t.begin, to.bytes.data(), to.bytes.size());
  }
  return all;
}

namespace detail {

/// Calls write(parts of the file): by type, widest first, then by name, as the reference implementation
/// orders them.
template <class Write>
void as_safetensors(const stored_tensors& from, Write write) {
  std::vector<tensor_entry> order;
  for (const auto& [name, t] : from.tensors) order.push_back({name, t.type, t.extents, 0, 0});
  std::sort(order.begin(), order.end(), [](const tensor_entry& a, const tensor_entry& b) {
    return std::pair(rank_of(b.type), std::string_view(a.name)) <
           std::pair(rank_of(a.type), std::string_view(b.name));
  });
  const std::string beginning = safetensors_beginning(order, from.metadata);
  file_parts parts{beginning};
  for (const tensor_entry& t : order) {
    const std::vector<char>& bytes = from.tensors.at(t.name).bytes;
    if (bytes.size() != t.end - t.begin)
      throw io_error("weft: safetensors: tensor " + t.name + " has " + std::to_string(bytes.size()) +
                     " bytes, its shape needs " + std::to_string(t.end - t.begin));
    parts.emplace_back(bytes.data(), bytes.size());
  }
  write(parts);
}

}  // namespace detail

/// Writes tensors to a file; one that is there is replaced.
inline void write_safetensors(const std::string& path, const stored_tensors& from) {
  detail::as_safetensors(from, [&](const file_parts& parts) { replace_file(system_calls(), path, parts); });
}

/// `t` as it goes to a file. Its elements are there when this returns.
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

/// Throws io_error if `t` cannot have the elements: another type or shape, or a bool that is neither 0 nor 1.
inline void require_restorable(const std::string& path, const std::string& name, const stored_tensor& from,
                               const tensor_state& t) {
  if (!(from.extents == t.extents) || from.type != t.type)
    throw io_error("weft: " + path + ": tensor " + name + " is " + name_of(from.type) + " " +
                   to_string(from.extents) + ", the model wants " + name_of(t.type) + " " +
                   to_string(t.extents));
  if (from.type == dtype::boolean &&
      std::any_of(from.bytes.begin(), from.bytes.end(), [](char c) { return c != 0 && c != 1; }))
    throw io_error("weft: " + path + ": tensor " + name + " is bool, and has bytes other than 0 and 1");
}
/// Sets the elements of `t`, which must have the stored type and shape.
inline void restore(const std::string& path, const std::string& name, const stored_tensor& from,
                    tensor_state& t) {
  require_restorable(path, name, from, t);
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
    require_restorable(path, name, found->second, *t);
  }
  for (const auto& [name, t] : tensors) restore(path, name, file.tensors.at(name), *t);
}

}  // namespace weft::io
