// SPDX-License-Identifier: MIT
// The wire format of Protocol Buffers, as far as ONNX files need it: writing of integers, floats, strings and
// nested messages.
//
//   protobuf_message dim;
//   dim.add_integer(1, 32);               // dim_value = 32
//   protobuf_message shape;
//   shape.add_message(1, dim);            // repeated dim
//
// Elements of large tensors are referenced, not copied.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/base/config.hpp>

namespace weft::onnx {

/// A message that is being written: its fields in the order in which they were added.
class protobuf_message {
 public:
  /// An int32, int64 or enum.
  void add_integer(int field, std::int64_t value);
  /// A float.
  void add_float(int field, float value);
  /// A string, or bytes.
  void add_string(int field, std::string_view value);
  /// Bytes that are not copied; they must outlive the message and all messages that contain it.
  void add_reference(int field, std::string_view bytes);
  /// A message, whose references stay references.
  void add_message(int field, const protobuf_message& value);
  /// A repeated int64, packed.
  void add_integers(int field, const std::vector<std::int64_t>& values);

  /// Number of bytes of the message.
  std::uint64_t size() const { return text_.size() + referred_; }
  /// The bytes of the message, in order; the views refer to the message.
  std::vector<std::string_view> parts() const;

 private:
  enum wire_type { varint = 0, delimited = 2, fixed32 = 5 };
  void add_varint(std::uint64_t value);
  void add_key(int field, wire_type type) {
    add_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
  }

  struct reference {
    std::size_t position;  // position in text_ before which the bytes are inserted
    std::string_view bytes;
  };
  std::string text_;
  std::vector<reference> references_;
  std::uint64_t referred_ = 0;  // bytes of all references
};

}  // namespace weft::onnx

#ifndef WEFT_COMPILED
#include <weft/onnx/impl/protobuf.ipp>
#endif
