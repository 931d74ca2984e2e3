// SPDX-License-Identifier: MIT
// Tensors to and from files: safetensors, NumPy's .npy and .npz, PyTorch's .pt.
//
//   io::save("model.safetensors", state_dict(model));
//   io::load("model.pt", state_dict(model));              // torch.save(model.state_dict(), "model.pt")
//   io::load("model.safetensors.index.json", state_dict(model));    // in several files beside it, or .bin
//   io::save("x.npy", x);                                 // numpy.load("x.npy")
//   auto y = io::load<float, extents<dyn, 3>>("y.npy");   // numpy.save("y.npy", y)
//
// A file's name determines the format in which it is written, its content the format in which it is read.
// Files are replaced atomically (replace_file in files.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include <weft/io/stored_tensor.hpp>

namespace weft::io {

/// The formats of files of tensors.
enum class file_format : std::uint8_t { safetensors, index, npy, npz, pt };

/// The format of a file: an index of other files if its name ends in .json; otherwise determined by its
/// content. A zip archive is a .pt file if it has a pickle and a .npz file otherwise; a file that is neither
/// a zip archive nor a .npy file is assumed to be safetensors. Throws io_error if it cannot be read.
file_format format_of(const std::string& path);

/// Reads the tensors of a file of any of the formats that `wanted` accepts; all if it is empty. The tensor of
/// a .npy file has the name "". In an index, as Hugging Face's, "weight_map" gives the file of each tensor,
/// in the same folder and in any of the other formats; its "metadata" is not read. Throws io_error, naming
/// the file and the fault.
stored_tensors read_tensors(const std::string& path, const name_filter& wanted = {});

/// Writes named tensors, such as a state_dict, to a file, replacing an existing one atomically: to a .npz
/// file, which NumPy reads, if `path` ends in .npz; otherwise to a safetensors file, which torch and
/// safetensors read. Throws io_error on failure; value_error if `as` is not a floating-point dtype, a tensor
/// is null or of a dtype that the format does not have (bf16 in .npz), two tensors have the same name, a name
/// is not UTF-8 or is "__metadata__", or `path` ends in .npy, .pt, .pth or .json: a .npy file has one tensor
/// without a name, and .pt files and indices are only read.
void save(const std::string& path, const named_tensors& tensors, save_options options = {});

/// Compile-time error: only named tensors can be saved.
template <class M>
  requires(!weft::detail::is_leaf<M> && !std::is_convertible_v<M, named_tensors>)
void save(const std::string&, const M&, save_options = {}) {
  static_assert(weft::detail::unsupported<M>,
                "weft: save: takes named tensors or one tensor: save(path, state_dict(model)); for an "
                "expression, save(path, eval(e))");
}

/// Sets the elements of every named tensor to those in the file, which may contain more tensors, of any
/// dtype, and may be of any format with names. A tied tensor, which `tensors` list under several names, may
/// be in the file under any of them, because save_weights writes only the first. Throws io_error, with
/// nothing changed, if the file is invalid, or a tensor is missing, has another shape, or has another dtype
/// that `options` does not convert; value_error if a tensor is null.
void load(const std::string& path, const named_tensors& tensors, load_options options = {});

/// Compile-time error: only named tensors can be loaded.
template <class M>
  requires(!weft::detail::is_leaf<M> && !std::is_convertible_v<M, named_tensors>)
void load(const std::string&, const M&, load_options = {}) {
  static_assert(weft::detail::unsupported<M>,
                "weft: load: takes named tensors or one tensor: load(path, state_dict(model))");
}

namespace detail {
/// Writes a tensor to a .npy file.
void save_tensor(const std::string& path, const std::shared_ptr<tensor_state>& t,
                 const save_options& options);
/// The tensor of a file with a single unnamed tensor, converted to the wanted dtype if `options` allow it.
/// Throws io_error unless it has the wanted shape, in which extents may be `dyn`.
stored_tensor load_tensor(const std::string& path, const tensor_spec& wanted, const load_options& options);
}  // namespace detail

/// Writes a tensor to a .npy file, replacing an existing one atomically. Throws io_error on failure,
/// value_error if `path` does not end in .npy, `as` is not a floating-point dtype, or the tensor is bf16 and
/// not converted.
template <element T, class E, bool G>
void save(const std::string& path, const tensor<T, E, G>& t, save_options options = {}) {
  detail::save_tensor(path, t.state(), options);
}

/// Sets the elements of a tensor to those of a .npy file, or of a .pt file of one tensor. Throws io_error,
/// with nothing changed, if the file is invalid, has another shape, or has another dtype that `options` does
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
