// SPDX-License-Identifier: MIT
// Text as bytes: a corpus, and batches of it for language models.
//
// Sample i is bytes [i T, i T + T]: the first T are inputs, the last T labels.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {

/// The bytes of files, and of all files in folders, one after the other in sorted path order.
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
    std::ifstream in(file, std::ios::binary);
    if (!in) throw io_error("weft: " + file + ": cannot be opened");
    bytes.insert(bytes.end(), std::istreambuf_iterator<char>(in), {});
  }
  if (bytes.empty()) throw usage_error("weft: the data is empty");
  return bytes;
}

struct text_batch {
  using tokens = tensor<std::uint8_t, extents<dyn, dyn>>;
  tokens inputs, labels;  // [batch, positions]
};

/// Batches of a corpus in sequence or in an order drawn anew for each pass over it.
class text_loader {
 public:
  text_loader(std::vector<unsigned char> bytes, index_t batch, index_t positions, bool shuffled = false,
              std::uint64_t seed = 0, const device& where = default_device())
      : bytes_(std::move(bytes)), batch_(batch), positions_(positions), shuffled_(shuffled), seed_(seed), where_(where) {
    samples_ = (static_cast<index_t>(bytes_.size()) - 1) / positions_;
    if (samples_ < 1)
      throw usage_error("weft: the text has " + std::to_string(bytes_.size()) + " bytes, fewer than a context of " +
                        std::to_string(positions_) + " and its label");
  }

  index_t samples() const { return samples_; }
  /// Samples taken so far; setting it resumes a run.
  index_t position() const { return position_; }
  void seek(index_t position) { position_ = position; }

  text_batch next() {
    const shape s{2, {batch_, positions_}};
    text_batch b{text_batch::tokens(s, where_), text_batch::tokens(s, where_)};
    std::vector<std::uint8_t> inputs, labels;
    for (index_t i = 0; i < batch_; ++i) {
      const unsigned char* text = bytes_.data() + sample(position_++) * positions_;
      inputs.insert(inputs.end(), text, text + positions_);
      labels.insert(labels.end(), text + 1, text + positions_ + 1);
    }
    b.inputs.copy_from(inputs);
    b.labels.copy_from(labels);
    return b;
  }

 private:
  index_t sample(index_t position) {
    if (!shuffled_) return position % samples_;
    const index_t pass = position / samples_;
    if (order_.empty() || pass != pass_) shuffle(pass);
    return order_[static_cast<std::size_t>(position % samples_)];
  }
  void shuffle(index_t pass) {
    pass_ = pass;
    order_.resize(static_cast<std::size_t>(samples_));
    std::iota(order_.begin(), order_.end(), index_t{0});
    const philox_key key = key_of(mix(seed_, static_cast<std::uint64_t>(pass)));
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[philox_word(key, i) % i]);
  }

  std::vector<unsigned char> bytes_;
  index_t batch_, positions_, samples_ = 0, position_ = 0, pass_ = -1;
  bool shuffled_;
  std::uint64_t seed_;
  device where_;
  std::vector<index_t> order_;
};

}  // namespace weft
