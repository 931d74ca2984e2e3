// SPDX-License-Identifier: MIT
// IDX files, the format of MNIST: big-endian magic (0, 0, type, order), extents, elements.
//
//   idx_images<784> digits("train");       // train-images-idx3-ubyte, train-labels-idx1-ubyte
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <weft/io/files.hpp>
#include <weft/train/loader.hpp>

namespace weft {

/// The extents and bytes of an IDX file of unsigned bytes.
struct idx_array {
  shape extents;
  std::vector<std::uint8_t> bytes;
};

namespace detail {

/// The extents in `head`, the beginning of an IDX file of unsigned bytes of `size` bytes. Throws io_error,
/// naming `path`, if it is invalid or the number of elements of a sample overflows.
shape idx_extents(std::string_view head, std::uint64_t size, const std::string& path);

}  // namespace detail

/// Reads an IDX file. Throws io_error, naming it, unless it consists of unsigned bytes and has the size that
/// its extents require; compressed files must be unpacked first.
idx_array read_idx(const std::string& path);

/// A dataset of images [Pixels] as f32 in [0, 1], and labels as u8. `Pixels` makes their number static. The
/// files are held in memory.
template <index_t Pixels = dyn>
class idx_images {
 public:
  using fields =
      std::tuple<tensor<float, weft::extents<dyn, Pixels>>, tensor<std::uint8_t, weft::extents<dyn>>>;

  /// Reads `prefix`-images-idx3-ubyte and `prefix`-labels-idx1-ubyte. Throws io_error if they are invalid or
  /// do not have the same number of samples, or images do not have `Pixels` pixels.
  explicit idx_images(const std::string& prefix)
      : idx_images(prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte") {}
  idx_images(const std::string& images, const std::string& labels)
      : images_(read_idx(images)), labels_(read_idx(labels)) {
    const index_t count = images_.extents[0];
    if (labels_.extents.order != 1 || labels_.extents[0] != count)
      throw io_error("weft: " + labels + ": labels " + to_string(labels_.extents) + " for images " +
                     to_string(images_.extents));
    pixels_ = 1;
    for (int d = 1; d < images_.extents.order; ++d) pixels_ *= images_.extents[d];
    if (Pixels != dyn && pixels_ != Pixels)
      throw io_error("weft: " + images + ": images of " + std::to_string(pixels_) + " pixels, expected " +
                     std::to_string(Pixels));
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

#ifndef WEFT_COMPILED
#include <weft/train/impl/idx.ipp>
#endif
