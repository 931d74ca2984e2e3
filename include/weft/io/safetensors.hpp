// SPDX-License-Identifier: MIT
// safetensors: named tensors in one file, the exchange format of PyTorch and Hugging Face.
//
//   const io::stored_tensors file = io::read_safetensors("model.safetensors");
//
// `io::save` and `io::load` of tensor_files.hpp write and read tensors of a model.
//
// Files are validated as safetensors_header.hpp describes, and replaced atomically (replace_file in
// files.hpp).
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <weft/io/safetensors_header.hpp>
#include <weft/io/stored_tensor.hpp>

namespace weft::io {

/// Parses the bytes of a safetensors file, which is called `what` in errors. Throws io_error if it is
/// invalid.
stored_tensors parse_safetensors(std::string_view file, const std::string& what);

/// Reads the tensors of a file that `wanted` accepts; all if it is empty. Throws io_error, naming the file
/// and the fault.
stored_tensors read_safetensors(const std::string& path, const name_filter& wanted = {});

/// The files that an index names, such as model.safetensors.index.json of Hugging Face, by path, with the
/// names of their tensors that `wanted` accepts; files without one are left out. They must be in the folder
/// of the index, and must not be indices. Throws io_error if the index is invalid.
std::map<std::string, std::set<std::string>> indexed_files(const std::string& path,
                                                           const name_filter& wanted);

namespace detail {

/// Throws io_error for a file without the tensor `name` that the index lists there.
[[noreturn, gnu::cold]] void refuse_index(const std::string& index, const std::string& file,
                                          const std::string& name);

/// Whether tensor a comes before tensor b in a file: by dtype, widest first, then by name, as in the
/// reference implementation.
inline bool comes_before(dtype a, std::string_view name_of_a, dtype b, std::string_view name_of_b) {
  return std::pair(rank_of(b), name_of_a) < std::pair(rank_of(a), name_of_b);
}

/// Calls write(parts of the file).
template <class Write>
void as_safetensors(const stored_tensors& from, Write write) {
  std::vector<tensor_entry> order;
  for (const auto& [name, t] : from.tensors) order.push_back({name, t.type, t.extents, 0, 0});
  std::sort(order.begin(), order.end(), [](const tensor_entry& a, const tensor_entry& b) {
    return comes_before(a.type, a.name, b.type, b.name);
  });
  const std::string beginning = safetensors_beginning(order, from.metadata);
  file_parts parts{beginning};
  for (const tensor_entry& t : order) {
    const std::vector<char>& bytes = from.tensors.at(t.name).bytes;
    if (bytes.size() != t.end - t.begin)
      throw io_error("weft: safetensors: tensor " + t.name + " has " + std::to_string(bytes.size()) +
                     " bytes, but its shape needs " + std::to_string(t.end - t.begin));
    parts.emplace_back(bytes.data(), bytes.size());
  }
  write(parts);
}

}  // namespace detail

/// Writes tensors to a file, replacing an existing one atomically. Throws io_error on failure, value_error,
/// naming the tensor, for a name that is not UTF-8 or is "__metadata__", or if `from` has `others`, which
/// would be lost.
void write_safetensors(const std::string& path, const stored_tensors& from);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/safetensors.ipp>
#endif
