// SPDX-License-Identifier: MIT
// .pt and .pth files of torch.save: the tensors of a state_dict or checkpoint.
//
//   // torch.save({"model": model.state_dict(), "epoch": 3}, "checkpoint.pt")
//   const io::stored_tensors file = io::read_pt("checkpoint.pt");
//   file.tensors.at("model.hidden.weight"), file.metadata.at("epoch") == "3"
//
// A file is a zip archive: a pickle describes tensors, and members hold their elements. The pickle is not
// executed (torch_pickle.hpp), and its statements about elements are checked against the archive.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <weft/io/elements.hpp>
#include <weft/io/stored_tensor.hpp>
#include <weft/io/torch_pickle.hpp>
#include <weft/io/zip.hpp>

namespace weft::io {

namespace detail {

/// The first bytes of a file of torch.save before PyTorch 1.6.
inline constexpr std::string_view pt_legacy_magic("\x80\2\x8a\12", 4);

/// The FOLDER of the pickle FOLDER/data.pkl in a file of torch.save; empty for other archives.
std::string pt_folder(const zip_file& zip);

class pt_reader {
 public:
  pt_reader(const zip_file& zip, const name_filter& wanted);

  stored_tensors read();

 private:
  /// A tensor of the pickle, as a view of a storage.
  struct view {
    std::string name;
    dtype type;
    shape extents;
    element_strides strides;
    index_t offset;
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("weft: " + zip_.path() + ": " + why);
  }
  [[noreturn]] void fail_at(const std::string& tensor, const std::string& why) const {
    fail("tensor " + tensor + ": " + why);
  }

  std::string text_of(const std::string& member) const;
  bool is_big_endian() const;
  /// Counts the memory of the pickle's values, which may refer to each other many times.
  void spend(std::uint64_t bytes);

  void visit(const std::string& name, const pickle_value& value, int depth);
  void visit_call(const std::string& name, const pickle_value& value);
  void add_tensor(const std::string& name, const std::vector<pickle_value>& items);
  /// The bit that is set for a tensor, "conj" or "neg", whose elements are computed from the stored ones;
  /// empty if none is set.
  std::string set_bit(const std::string& tensor, const pickle_value& bits);
  /// Adds a tensor to `others`.
  void leave_out(const std::string& name, std::string why);
  index_t size_in(const std::string& tensor, const pickle_value& value) const;
  /// Throws io_error unless the elements are in a storage of `count` elements.
  void require_within(const view& v, index_t count) const;
  void read_storage(const std::string& key, const std::vector<view>& views);

  const zip_file& zip_;
  const name_filter& wanted_;
  std::string folder_;
  torch_pickle pickle_;
  bool is_big_endian_;
  std::uint64_t spent_ = 0, bytes_ = 0;
  stored_tensors all_;
  std::map<std::string, std::vector<view>> storages_;
};

}  // namespace detail

/// Reads the tensors of a file of torch.save that `wanted` accepts; all if it is empty. The name of a tensor
/// in nested dicts, lists and tuples consists of the keys and positions on the way to it, joined by dots; in
/// a file of a single tensor, its name is "". Numbers, texts and booleans in dicts are metadata; values under
/// keys that are neither texts nor integers are left out. Tensors of dtypes that weft does not have, tensors
/// with more elements than their storage, and conjugate and negative views are listed in `others`. Throws
/// io_error, naming the file and the fault, if the file is invalid, names other Python objects, was written
/// by torch before 1.6 or by TorchScript, if its tensors take more than 64 times the bytes of the file, or if
/// its pickle inflates to more bytes than the file has.
stored_tensors read_pt(const std::string& path, const name_filter& wanted = {});

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/pt.ipp>
#endif
