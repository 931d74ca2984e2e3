// SPDX-License-Identifier: MIT
// safetensors: named tensors in one file, the exchange format of PyTorch and Hugging Face.
//
//   io::save("model.safetensors", state_dict(model));
//   io::load("model.safetensors", state_dict(model));
//
// Files are validated as safetensors_header.hpp describes, and replaced atomically (replace_file in
// files.hpp).
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/io/safetensors_header.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft::io {

/// A tensor of a file, on the host; elements are row-major and little-endian.
struct stored_tensor {
  dtype type = dtype::f32;
  shape extents;
  std::vector<char> bytes;
};

/// The tensors of a file by name, and its metadata.
struct stored_tensors {
  std::map<std::string, stored_tensor> tensors{};
  std::map<std::string, std::string> metadata{};
  /// Tensors of the file that weft has no type for, by name: why. They have not been read.
  std::map<std::string, std::string> others{};
};

/// Parses the bytes of a safetensors file, which is called `what` in errors. Throws io_error if it is
/// invalid.
stored_tensors parse_safetensors(std::string_view file, const std::string& what);

/// Reads all tensors of a file. Throws io_error, naming the file and the fault.
stored_tensors read_safetensors(const std::string& path);

namespace detail {

/// Calls write(parts of the file). Tensors are ordered by dtype, widest first, then by name, as in the
/// reference implementation.
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

/// Writes tensors to a file, replacing an existing one atomically. Throws io_error on failure, value_error,
/// naming the tensor, for a name that is not UTF-8 or "__metadata__", or if `from` has others, which would be
/// lost.
void write_safetensors(const std::string& path, const stored_tensors& from);

/// Sets dtype and shape of `to` to those of `t`, and waits for the device. Throws value_error if the elements
/// of `t` are sharded over ranks.
void store_form(const tensor_state& t, stored_tensor& to);
/// The same with the elements, copied to the host; memory of `to` is reused.
void store(const tensor_state& t, stored_tensor& to);
/// A copy of `t` on the host.
inline stored_tensor stored(const tensor_state& t) {
  stored_tensor s;
  store(t, s);
  return s;
}

namespace detail {
[[noreturn, gnu::cold]] void refuse_tensor(const std::string& path, const std::string& name,
                                           const stored_tensor& from, const tensor_state& t,
                                           const char* cure = "");
/// For a tensor that is wanted and not in the file, or one of its `others`.
[[noreturn, gnu::cold]] void refuse_missing(const std::string& path, const std::string& name,
                                            const std::map<std::string, std::string>& others);
}  // namespace detail

/// Throws io_error if the elements cannot be restored to `t`: another dtype or shape, or a bool other than 0
/// and 1.
void require_restorable(const std::string& path, const std::string& name, const stored_tensor& from,
                        const tensor_state& t);
/// Sets the elements of `t` to the stored ones; throws io_error unless dtype and shape are the same.
void restore(const std::string& path, const std::string& name, const stored_tensor& from, tensor_state& t);

/// Tensors by name; a state_dict is one.
using named_tensors = std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>>;

namespace detail {
template <class From, class To>
void convert_elements(const stored_tensor& from, stored_tensor& to) {
  const std::size_t count = from.bytes.size() / sizeof(From);
  to.bytes.resize(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from.bytes.data() + i * sizeof(From), sizeof(From));
    using wide = std::conditional_t<std::is_same_v<To, double>, double, float>;
    const To y = static_cast<To>(static_cast<wide>(x));
    std::memcpy(to.bytes.data() + i * sizeof(To), &y, sizeof(To));
  }
}
/// Calls f(T{}) with the floating element type `t`.
template <class F>
void with_floating(dtype t, F f) {
  switch (t) {
    case dtype::f64: return f(double{});
    case dtype::f32: return f(float{});
    case dtype::bf16: return f(bfloat16{});
    case dtype::f16: return f(float16{});
    default: return;
  }
}
}  // namespace detail

/// `from` in the dtype `type`, rounded to nearest (f64 to bf16 and f16 by way of f32). Both dtypes are
/// floating.
stored_tensor converted(const stored_tensor& from, dtype type);

/// How `save` writes tensors.
struct save_options {
  std::optional<dtype> as{};  // the floating dtype that floating tensors are written in; by default their own
};
/// How `load` reads tensors.
struct load_options {
  bool convert = false;  // floating dtypes of the file into those of the tensors, rounded to nearest
};

/// Writes named tensors, such as a state_dict, to a safetensors file, replacing an existing one atomically.
/// torch and safetensors read it. Throws io_error on failure, value_error if `as` is no floating dtype, a
/// tensor is null, two have one name, or a name is not UTF-8 or "__metadata__".
void save(const std::string& path, const named_tensors& tensors, save_options options = {});

/// Sets the elements of every named tensor to those in the file, which may contain more tensors, of any
/// type. Throws io_error, with nothing changed, if the file is invalid, or a tensor is missing or has another
/// shape, or another dtype that `options` does not convert; value_error if a tensor is null.
void load(const std::string& path, const named_tensors& tensors, load_options options = {});

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/safetensors.ipp>
#endif
