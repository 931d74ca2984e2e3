// SPDX-License-Identifier: MIT
// Tensors on the host in the form of files, and copies between them and tensors on devices.
//
//   const io::stored_tensor before = io::stored(*t.state());
//   io::restore("model.npz", "weight", before, *t.state());
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  /// Tensors of the file that cannot be read, mostly because weft has no dtype for them, by name, with the
  /// reason.
  std::map<std::string, std::string> others{};
};

/// How `save` of tensor_files.hpp and save_weights write tensors.
struct save_options {
  std::optional<dtype> as{};  // the dtype in which floating-point tensors are written; by default their own
};
/// How `load` and load_weights read tensors.
struct load_options {
  bool convert = false;  // convert floating-point elements to the tensors' dtypes, rounded to nearest
  std::string prefix{};  // prefix of the names in the file, such as "model." in a checkpoint
};

/// Whether a tensor of this name is to be read.
using name_filter = std::function<bool(const std::string&)>;

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
                                           const stored_tensor& from, const tensor_spec& wanted,
                                           const char* cure = "");
/// Throws for a tensor that is wanted but not in the file, or in its `others`. `names`: the names of all
/// tensors in the file; `call`: the beginning of a call that takes a prefix, for the message.
[[noreturn, gnu::cold]] void refuse_missing(const std::string& path, const std::string& prefix,
                                            const std::string& key,
                                            const std::map<std::string, std::string>& others,
                                            const std::set<std::string>& names, const char* call);
/// Throws value_error, naming `format` and a tensor, if there are `others`, which writing would lose.
void require_no_others(const char* format, const stored_tensors& from);
}  // namespace detail

namespace detail {
/// Throws value_error if `as` is not a floating-point dtype.
void check(const save_options& options);
/// Throws value_error, for the function `what`, if `path` is empty or has the extension of a format that is
/// only read.
void require_written(const char* what, const std::string& path);
}  // namespace detail

/// Throws io_error if the elements cannot be restored to `t`: different dtype or shape, a number of bytes
/// that does not match them, or a bool other than 0 and 1.
void require_restorable(const std::string& path, const std::string& name, const stored_tensor& from,
                        const tensor_state& t);
/// Sets the elements of `t` to the stored ones; throws io_error unless dtype and shape are equal.
void restore(const std::string& path, const std::string& name, const stored_tensor& from, tensor_state& t);

/// Tensors by name; a state_dict is one.
using named_tensors = std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>>;

namespace detail {
template <class From, class To>
void convert_elements(std::string_view from, std::vector<char>& to) {
  const std::size_t count = from.size() / sizeof(From);
  to.resize(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from.data() + i * sizeof(From), sizeof(From));
    using wide = std::conditional_t<std::is_same_v<To, double>, double, float>;
    const To y = static_cast<To>(static_cast<wide>(x));
    std::memcpy(to.data() + i * sizeof(To), &y, sizeof(To));
  }
}
/// Calls f(T{}) with the element type T of the floating-point dtype `t`.
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

/// Elements of dtype `from` converted to `to`, rounded to nearest (f64 to bf16 and f16 via f32). Both are
/// floating-point dtypes.
std::vector<char> converted(std::string_view elements, dtype from, dtype to);
inline stored_tensor converted(const stored_tensor& from, dtype type) {
  return {type, from.extents, converted({from.bytes.data(), from.bytes.size()}, from.type, type)};
}

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/stored_tensor.ipp>
#endif
