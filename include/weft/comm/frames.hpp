// SPDX-License-Identifier: MIT
// Serialisation of messages: strings are a u32 length and bytes, integers are little-endian.
//
//   const std::string bytes = frame_writer().number(7).text("key").take();
//   frame_reader r(bytes);
//   r.number(), r.text();                                   // r.good() && r.at_end() afterwards
//
// Input is untrusted: a reader never reads beyond the bytes and never allocates more than they hold.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {

/// Writes the fields of a frame.
class frame_writer {
 public:
  frame_writer& byte(std::uint8_t b) { return bytes_ += static_cast<char>(b), *this; }
  frame_writer& number(std::int64_t n);
  frame_writer& length(std::size_t n) {
    for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>(n >> 8 * i);
    return *this;
  }
  frame_writer& text(const std::string& s) {
    length(s.size());
    return bytes_ += s, *this;
  }
  frame_writer& texts(const std::vector<std::string>& all) {
    length(all.size());
    for (const std::string& s : all) text(s);
    return *this;
  }
  frame_writer& raw(const std::string& fields) { return bytes_ += fields, *this; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads the fields of a frame. After a malformed field all fields are empty, and `good` is false.
class frame_reader {
 public:
  explicit frame_reader(std::string bytes) : bytes_(std::move(bytes)) {}

  std::uint8_t byte() { return static_cast<std::uint8_t>(unsigned_of(1)); }
  std::int64_t number() { return static_cast<std::int64_t>(unsigned_of(8)); }
  std::size_t length() { return static_cast<std::size_t>(unsigned_of(4)); }
  std::string text();
  /// A list of at most `most` strings.
  std::vector<std::string> texts(std::size_t most);
  /// The unread bytes.
  std::string rest() {
    std::string all = bytes_.substr(at_);
    at_ = bytes_.size();
    return all;
  }
  void fail() {
    good_ = false;
    at_ = bytes_.size();
  }
  std::size_t left() const { return bytes_.size() - at_; }
  bool good() const { return good_; }
  bool at_end() const { return good_ && left() == 0; }

 private:
  std::uint64_t unsigned_of(std::size_t size);

  std::string bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/frames.ipp>
#endif
