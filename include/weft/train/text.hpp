// SPDX-License-Identifier: MIT
// Text as bytes: a corpus, and samples of it for language models.
//
//   loader batches(text_samples(read_text({"corpus/"}), 64), {.batch = 12});
#pragma once

#include <string>
#include <vector>

#include <weft/io/files.hpp>
#include <weft/train/loader.hpp>

namespace weft {

namespace detail {
/// Appends the paths of all entries of a folder and its subfolders that are not folders. Throws io_error,
/// naming the path, for a folder that cannot be read and for a link to a folder.
void append_files(const std::string& folder, std::vector<std::string>& files);
}  // namespace detail

/// The bytes of files, and of all files in folders and their subfolders, concatenated in sorted path order.
/// Links to files are followed; a path in `paths` may be a link to a folder. Nothing is skipped: throws
/// io_error, naming the path, for anything that cannot be read, for anything that is neither file nor folder
/// (including a dangling link), and for a link to a folder within a folder; usage_error if there are no
/// bytes.
std::vector<unsigned char> read_text(const std::vector<std::string>& paths);

/// A dataset for language models on bytes: sample i is bytes i T to i T + T of the text, of which the first T
/// are the inputs and the last T the labels, each u8 [T].
class text_samples {
 public:
  using tokens = tensor<std::uint8_t, weft::extents<dyn, dyn>>;  // [batch, positions]
  using fields = std::tuple<tokens, tokens>;                     // inputs, labels

  /// Throws usage_error if the text is shorter than one sample, or a sample has no positions.
  text_samples(std::vector<unsigned char> bytes, index_t positions);

  index_t size() const { return (static_cast<index_t>(bytes_.size()) - 1) / positions_; }
  std::array<shape, 2> extents() const { return {shape{1, {positions_}}, shape{1, {positions_}}}; }
  void read(index_t i, std::uint8_t* inputs, std::uint8_t* labels) const;

 private:
  std::vector<unsigned char> bytes_;
  index_t positions_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/text.ipp>
#endif
