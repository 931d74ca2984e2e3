// SPDX-License-Identifier: MIT
// Text as bytes: a corpus, and samples of it for language models.
//
//   loader batches(text_samples(read_text({"corpus/"}), 64), {.batch = 12});
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <weft/io/files.hpp>
#include <weft/train/loader.hpp>

namespace weft {

/// The bytes of files, and of all files in folders and their subfolders, concatenated in sorted path order.
/// Throws io_error for a path that is neither file nor folder, usage_error if there are no bytes.
inline std::vector<unsigned char> read_text(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code failed;
    if (fs::is_directory(path, failed)) {
      for (const auto& entry : fs::recursive_directory_iterator(path, failed))
        if (entry.is_regular_file(failed)) files.push_back(entry.path().string());
    } else {
      files.push_back(path);
    }
    if (failed) throw io_error("weft: " + path + ": " + failed.message());
  }
  std::sort(files.begin(), files.end());
  std::vector<unsigned char> bytes;
  for (const std::string& file : files) {
    const io::input_file in(file);
    const std::size_t before = bytes.size();
    bytes.resize(before + static_cast<std::size_t>(in.size()));
    in.read(0, reinterpret_cast<char*>(bytes.data()) + before, bytes.size() - before);
  }
  if (bytes.empty()) throw usage_error("weft: the data is empty");
  return bytes;
}

/// A dataset for language models on bytes: sample i is bytes i T to i T + T of the text, of which the first T
/// are the inputs and the last T the labels, each u8 [T].
class text_samples {
 public:
  using tokens = tensor<std::uint8_t, weft::extents<dyn, dyn>>;  // [batch, positions]
  using fields = std::tuple<tokens, tokens>;                     // inputs, labels

  /// Throws usage_error if the text is shorter than one sample, or a sample has no positions.
  text_samples(std::vector<unsigned char> bytes, index_t positions)
      : bytes_(std::move(bytes)), positions_(positions) {
    if (positions_ < 1)
      throw usage_error("weft: text_samples: a context of " + std::to_string(positions_) + " positions");
    if (size() < 1)
      throw usage_error("weft: the text has " + std::to_string(bytes_.size()) +
                        " bytes, fewer than a context of " + std::to_string(positions_) + " and its label");
  }

  index_t size() const { return (static_cast<index_t>(bytes_.size()) - 1) / positions_; }
  std::array<shape, 2> extents() const { return {shape{1, {positions_}}, shape{1, {positions_}}}; }
  void read(index_t i, std::uint8_t* inputs, std::uint8_t* labels) const {
    const unsigned char* from = bytes_.data() + i * positions_;
    std::copy(from, from + positions_, inputs);
    std::copy(from + 1, from + 1 + positions_, labels);
  }

 private:
  std::vector<unsigned char> bytes_;
  index_t positions_;
};

}  // namespace weft
