// SPDX-License-Identifier: MIT
// Tensors to and from files: safetensors, NumPy's .npy and .npz, PyTorch's .pt.
//
//   io::save("model.safetensors", state_dict(model));
//   io::load("model.pt", state_dict(model));              // torch.save(model.state_dict(), "model.pt")
//   io::load("model.safetensors.index.json", state_dict(model));    // in several files beside it, or .bin
//   io::save("x.npy", x);                                 // numpy.load("x.npy")
//   auto y = io::load<float, extents<dyn, 3>>("y.npy");   // numpy.save("y.npy", y)
//
// The name of a file says how it is written, its content how it is read. Files are replaced atomically
// (replace_file in files.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include <weft/io/stored_tensor.hpp>

namespace weft::io {

/// What a file of tensors is.
enum class file_format : std::uint8_t { safetensors, safetensors_index, npy, npz, pt };

/// The format of a file: an index of other files if its name ends in .json; else by its content. A zip
/// archive is a .pt file if it has a pickle and a .npz file otherwise; what is neither that nor a .npy file
/// is taken for safetensors. Throws io_error if it cannot be read.
file_format format_of(const std::string& path);

/// Reads the tensors of a file of any of the formats that `wanted` accepts; all if it is empty. That of a
/// .npy file has the name "". An index, as Hugging Face's, says by "weight_map" which file of its folder, of
/// any of the other formats, has which tensor; its "metadata" is not read. Throws io_error, naming the file
/// and the fault.
stored_tensors read_tensors(const std::string& path, const name_filter& wanted = {});

/// Writes named tensors, such as a state_dict, to a file, replacing an existing one atomically: to a .npz
/// file if `path` ends so, else to a safetensors file. NumPy, or torch and safetensors, read it. Throws
/// io_error on failure, value_error if `as` is no floating dtype, a tensor is null or of a type that the
/// format does not have (bf16 in .npz), two have one name, a name is not UTF-8 or "__metadata__", or `path`
/// ends in .npy, .pt, .pth or .json: a .npy file has one tensor without a name, and .pt files and indices are
/// only read.
void save(const std::string& path, const named_tensors& tensors, save_options options = {});

/// Compile-time error: what is saved is named tensors.
template <class M>
  requires(!weft::detail::is_leaf<M> && !std::is_convertible_v<M, named_tensors>)
void save(const std::string&, const M&, save_options = {}) {
  static_assert(weft::detail::unsupported<M>,
                "weft: save: named tensors, or one tensor: save(path, state_dict(model)); the value of an "
                "expression: save(path, eval(e))");
}

/// Sets the elements of every named tensor to those in the file, which may contain more tensors, of any
/// type, and is of any format with names. A tied tensor, which `tensors` have under several names, may be in
/// the file under any of them, as save_weights writes the first only. Throws io_error, with nothing changed,
/// if the file is invalid, or a tensor is missing or has another shape, or another dtype that `options` does
/// not convert; value_error if a tensor is null.
void load(const std::string& path, const named_tensors& tensors, load_options options = {});

/// Compile-time error: what is loaded is named tensors.
template <class M>
  requires(!weft::detail::is_leaf<M> && !std::is_convertible_v<M, named_tensors>)
void load(const std::string&, const M&, load_options = {}) {
  static_assert(weft::detail::unsupported<M>,
                "weft: load: named tensors, or one tensor: load(path, state_dict(model))");
}

namespace detail {
/// Writes a tensor to a .npy file.
void save_tensor(const std::string& path, const std::shared_ptr<tensor_state>& t,
                 const save_options& options);
/// The tensor of a file that has one without a name, in the dtype that is wanted if `options` convert. Throws
/// io_error unless it is of the shape that is wanted, in which extents may be `dyn`.
stored_tensor load_tensor(const std::string& path, const tensor_spec& wanted, const load_options& options);
}  // namespace detail

/// Writes a tensor to a .npy file, replacing an existing one atomically. Throws io_error on failure,
/// value_error if `path` does not end in .npy, `as` is no floating dtype, or the tensor is bf16 and not
/// converted.
template <element T, class E, bool G>
void save(const std::string& path, const tensor<T, E, G>& t, save_options options = {}) {
  detail::save_tensor(path, t.state(), options);
}

/// Sets the elements of a tensor to those of a .npy file, or of a .pt file of one tensor. Throws io_error,
/// with nothing changed, if the file is invalid or has another shape, or another dtype that `options` does
/// not convert.
template <element T, class E, bool G>
void load(const std::string& path, const tensor<T, E, G>& t, load_options options = {}) {
  restore(path, "", detail::load_tensor(path, {dtype_of<T>, t.extents()}, options), *t.state());
}

/// A new tensor with the elements of a .npy file, or of a .pt file of one tensor. Throws io_error if the file
/// is invalid, does not fit into static extents, or has another dtype that `options` does not convert.
template <element T, class Extents>
tensor<T, Extents> load(const std::string& path, load_options options = {},
                        const device& where = default_device()) {
  const stored_tensor from =
      detail::load_tensor(path, {dtype_of<T>, tensor<T, Extents>::static_shape}, options);
  tensor<T, Extents> t(from.extents, where);
  restore(path, "", from, *t.state());
  return t;
}

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/tensor_files.ipp>
#endif
