// SPDX-License-Identifier: MIT
// Definitions of <weft/onnx/protobuf.hpp>.
#pragma once

#include <bit>

#include <weft/onnx/protobuf.hpp>

namespace weft::onnx {

WEFT_DEFINE void protobuf_message::add_varint(std::uint64_t value) {
  for (; value >= 128; value >>= 7) text_ += static_cast<char>((value & 127) | 128);
  text_ += static_cast<char>(value);
}

WEFT_DEFINE void protobuf_message::add_integer(int field, std::int64_t value) {
  add_key(field, varint);
  add_varint(static_cast<std::uint64_t>(value));
}

WEFT_DEFINE void protobuf_message::add_float(int field, float value) {
  add_key(field, fixed32);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) text_ += static_cast<char>((bits >> shift) & 255);
}

WEFT_DEFINE void protobuf_message::add_string(int field, std::string_view value) {
  add_key(field, delimited);
  add_varint(value.size());
  text_ += value;
}

WEFT_DEFINE void protobuf_message::add_reference(int field, std::string_view bytes) {
  add_key(field, delimited);
  add_varint(bytes.size());
  references_.push_back({text_.size(), bytes});
  referred_ += bytes.size();
}

WEFT_DEFINE void protobuf_message::add_message(int field, const protobuf_message& value) {
  add_key(field, delimited);
  add_varint(value.size());
  for (const reference& r : value.references_) references_.push_back({text_.size() + r.position, r.bytes});
  referred_ += value.referred_;
  text_ += value.text_;
}

WEFT_DEFINE void protobuf_message::add_integers(int field, const std::vector<std::int64_t>& values) {
  protobuf_message packed;
  for (const std::int64_t v : values) packed.add_varint(static_cast<std::uint64_t>(v));
  add_string(field, packed.text_);
}

WEFT_DEFINE std::vector<std::string_view> protobuf_message::parts() const {
  std::vector<std::string_view> all;
  const std::string_view text = text_;
  std::size_t from = 0;
  for (const reference& r : references_) {
    all.push_back(text.substr(from, r.position - from));
    all.push_back(r.bytes);
    from = r.position;
  }
  all.push_back(text.substr(from));
  return all;
}

}  // namespace weft::onnx
