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
/// naming `path`, if it is invalid.
inline shape idx_extents(std::string_view head, std::uint64_t size, const std::string& path) {
  const auto fail = [&](const std::string& why) -> void { throw io_error("weft: " + path + ": " + why); };
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(head[i]));
  };
  if (head.size() >= 2 && byte(0) == 0x1f && byte(1) == 0x8b) fail("is compressed; gunzip it first");
  if (head.size() < 4 || byte(0) || byte(1)) fail("is not an IDX file");
  if (byte(2) != 8)
    fail("holds elements of type " + std::to_string(byte(2)) + "; only unsigned bytes (8) are read");
  if (byte(3) < 1 || byte(3) > max_order) fail("has " + std::to_string(byte(3)) + " dims");
  const std::size_t header = 4 + 4 * static_cast<std::size_t>(byte(3));
  if (head.size() < header) fail("ends within its header");
  shape extents;
  std::uint64_t count = 1;
  for (std::size_t at = 4; at < header; at += 4) {
    const std::uint64_t extent = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    extents.append(static_cast<index_t>(extent));
    count = extent > 0 && count > size / extent ? size + 1 : count * extent;  // the product exceeds the file
  }
  if (count + header != size)
    fail("has " + std::to_string(size) + " bytes, which do not fit its extents " + to_string(extents));
  return extents;
}

}  // namespace detail

/// Reads an IDX file. Throws io_error, naming it, unless it consists of unsigned bytes and has the size that
/// its extents require; compressed files must be unpacked first.
inline idx_array read_idx(const std::string& path) {
  const io::input_file file(path);
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 4 + 4 * max_order)), '\0');
  file.read(0, head.data(), head.size());
  idx_array a{detail::idx_extents(head, file.size(), path), {}};
  a.bytes.resize(static_cast<std::size_t>(a.extents.size()));
  file.read(file.size() - a.bytes.size(), reinterpret_cast<char*>(a.bytes.data()), a.bytes.size());
  return a;
}

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
