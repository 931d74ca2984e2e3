// SPDX-License-Identifier: MIT
// .npy files of NumPy: one array, and its dtype and shape; .npz files: arrays by name, in a zip archive.
//
//   io::write_npy("x.npy", io::stored(*x.state()));       // numpy.load("x.npy")
//   const io::stored_tensor y = io::read_npy("y.npy");    // numpy.save("y.npy", y)
//
// Versions 1 to 3 of the format are read, in C and Fortran order, little- and big-endian. Files are
// untrusted: the header is parsed, not evaluated, and objects are not unpickled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <weft/io/elements.hpp>
#include <weft/io/stored_tensor.hpp>
#include <weft/io/zip.hpp>

namespace weft::io {

/// The header of a .npy file.
struct npy_header {
  dtype type = dtype::f32;
  shape extents;
  bool is_column_major = false, is_big_endian = false;
  std::uint64_t data = 0;  // offset of the elements in the file
  std::string lacks;       // why weft has no dtype for the array; empty if it has one
};

namespace detail {

inline constexpr std::string_view npy_magic("\x93NUMPY", 6);

class npy_parser {
 public:
  explicit npy_parser(const std::string& what) : what_("npy " + what) {}

  /// Offset of the elements in a file that begins with `first`, at least 12 bytes.
  std::uint64_t begin_of_data(std::string_view first, std::uint64_t file_size) const;

  /// Parses `first`, all bytes before the elements.
  npy_header parse(std::string_view first, std::uint64_t file_size);

 private:
  [[noreturn]] void fail(const std::string& why) const { throw io_error("weft: " + what_ + ": " + why); }

  void skip_space();
  bool takes(char c);
  void expect(char c);
  std::string_view text();
  index_t extent();

  void parse_type(npy_header& header);
  void parse_order(npy_header& header);
  /// The number of elements.
  std::uint64_t parse_shape(npy_header& header);

  std::string what_;
  std::string_view rest_;
};

/// The beginning of a .npy file, up to the elements, as numpy.save writes it; empty for bf16.
std::string npy_beginning(dtype type, const shape& extents);

}  // namespace detail

/// Parses the bytes of a .npy file, which is called `what` in errors. Throws io_error if it is invalid, or an
/// array of a dtype that weft does not have, such as int8 or objects, or of more dims than weft supports.
stored_tensor parse_npy(std::string_view file, const std::string& what);

/// Reads a .npy file. Throws io_error as parse_npy does, naming the file and the fault.
stored_tensor read_npy(const std::string& path);

/// Writes a .npy file with the same bytes as numpy.save, replacing an existing one atomically. Throws
/// io_error on failure, value_error for bf16, which NumPy does not have.
void write_npy(const std::string& path, const stored_tensor& from);

/// Reads the arrays of a .npz file, compressed or not, that `wanted` accepts; all if it is empty. Arrays that
/// weft has no dtype for, and members that are not .npy files, are listed in `others`. Throws io_error,
/// naming the file and the fault.
stored_tensors read_npz(const std::string& path, const name_filter& wanted = {});

/// Writes a .npz file with the same bytes as numpy.savez, replacing an existing one atomically. Metadata is
/// not written, because the format has none. Throws io_error on failure; value_error, naming the tensor, for
/// bf16, which NumPy does not have, for a name that is not UTF-8, or if `from` has `others`, which would be
/// lost.
void write_npz(const std::string& path, const stored_tensors& from);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/npy.ipp>
#endif
