// SPDX-License-Identifier: MIT
// IDX files, the format of MNIST: big-endian magic (0, 0, type, order), extents, elements.
//
//   idx_images<784> digits("train");       // train-images-idx3-ubyte, train-labels-idx1-ubyte
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <weft/train/loader.hpp>

namespace weft {

/// Bytes with extents, as an IDX file of unsigned bytes holds them.
struct idx_array {
  shape extents;
  std::vector<std::uint8_t> bytes;
};

/// Throws io_error, naming the file, if it is not an IDX file of unsigned bytes of its full size.
inline idx_array read_idx(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const auto fail = [&](const std::string& why) -> void { throw io_error("weft: " + path + ": " + why); };
  if (!in) fail("cannot be opened");
  std::uint8_t head[4]{};
  in.read(reinterpret_cast<char*>(head), 4);
  if (in && head[0] == 0x1f && head[1] == 0x8b) fail("is compressed; gunzip it first");
  if (!in || head[0] || head[1]) fail("is not an IDX file");
  if (head[2] != 8) fail("holds elements of type " + std::to_string(head[2]) + "; only unsigned bytes (8) are read");
  if (head[3] < 1 || head[3] > max_order) fail("has " + std::to_string(head[3]) + " dims");
  std::error_code failed;
  const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path, failed));
  idx_array a;
  std::uint64_t count = 1;
  for (int d = 0; d < head[3]; ++d) {
    std::uint8_t e[4]{};
    if (!in.read(reinterpret_cast<char*>(e), 4)) fail("ends within its header");
    const std::uint64_t extent = std::uint64_t{e[0]} << 24 | std::uint64_t{e[1]} << 16 | std::uint64_t{e[2]} << 8 | e[3];
    a.extents.append(static_cast<index_t>(extent));
    count = extent > 0 && count > size / extent ? size + 1 : count * extent;  // more than there is
  }
  if (failed || count + 4 + 4 * std::uint64_t{head[3]} != size)
    fail("has " + std::to_string(size) + " bytes, which do not fit its extents " + to_string(a.extents));
  a.bytes.resize(count);
  if (!in.read(reinterpret_cast<char*>(a.bytes.data()), static_cast<std::streamsize>(count))) fail("cannot be read");
  return a;
}

/// Images in [0, 1] as rows of pixels, with their labels. `Pixels` makes their number static.
template <index_t Pixels = dyn>
class idx_images {
 public:
  using fields = std::tuple<tensor<float, weft::extents<dyn, Pixels>>, tensor<std::uint8_t, weft::extents<dyn>>>;

  /// From `prefix`-images-idx3-ubyte and `prefix`-labels-idx1-ubyte.
  explicit idx_images(const std::string& prefix)
      : idx_images(prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte") {}
  idx_images(const std::string& images, const std::string& labels)
      : images_(read_idx(images)), labels_(read_idx(labels)) {
    const index_t count = images_.extents[0];
    if (labels_.extents.order != 1 || labels_.extents[0] != count)
      throw io_error("weft: " + labels + ": labels " + to_string(labels_.extents) + " for images " + to_string(images_.extents));
    pixels_ = 1;
    for (int d = 1; d < images_.extents.order; ++d) pixels_ *= images_.extents[d];
    if (Pixels != dyn && pixels_ != Pixels)
      throw io_error("weft: " + images + ": images of " + std::to_string(pixels_) + " pixels, expected " + std::to_string(Pixels));
  }

  index_t size() const { return images_.extents[0]; }
  std::array<shape, 2> extents() const { return {shape{1, {pixels_}}, shape{}}; }
  void read(index_t i, float* image, std::uint8_t* label) const {
    const std::uint8_t* from = images_.bytes.data() + i * pixels_;
    for (index_t p = 0; p < pixels_; ++p) image[p] = static_cast<float>(from[p]) / 255.0f;
    *label = labels_.bytes[static_cast<std::size_t>(i)];
  }

 private:
  idx_array images_, labels_;
  index_t pixels_ = 0;
};

}  // namespace weft
