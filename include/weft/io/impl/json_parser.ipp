// SPDX-License-Identifier: MIT
// Definitions of <weft/io/json_parser.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/io/json_parser.hpp>

namespace weft {
namespace io {

WEFT_DEFINE std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (u < 0x20) {
      constexpr char digits[] = "0123456789abcdef";
      out += "\\u00";
      out += digits[u >> 4];
      out += digits[u & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

namespace detail {

WEFT_DEFINE std::size_t utf8_sequence(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xC2 && first <= 0xDF   ? 2
                           : first >> 4 == 0xE              ? 3
                           : first >= 0xF0 && first <= 0xF4 ? 4
                                                            : 0;
  for (std::size_t i = 1; i < size; ++i)
    if (at(i) >> 6 != 2) return 0;
  const bool overlong = (first == 0xE0 && at(1) < 0xA0) || (first == 0xF0 && at(1) < 0x90);
  const bool outside = (first == 0xED && at(1) > 0x9F) || (first == 0xF4 && at(1) > 0x8F);
  return overlong || outside ? 0 : size;
}

WEFT_DEFINE bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = utf8_sequence(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

WEFT_DEFINE std::vector<json_token> json_parser::parse() {
  if (text_.size() >= max_json) fail("larger than 512 MiB");
  tokens_.reserve(most_tokens());
  parse_value(0);
  skip_space();
  if (at_ != text_.size()) fail("text after the value");
  return std::move(tokens_);
}

WEFT_DEFINE std::size_t json_parser::most_tokens() const {
  std::size_t marks = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < text_.size(); ++i) {
    const char c = text_[i];
    if (c == '"') in_string = !in_string;
    else if (in_string && c == '\\') ++i;
    else marks += !in_string && (c == ',' || c == ':' || c == '{' || c == '[');
  }
  return std::min(marks, text_.size() / 2 + 1);
}

WEFT_DEFINE void json_parser::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
}

WEFT_DEFINE bool json_parser::takes(std::string_view word) {
  if (std::string_view(text_).substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

WEFT_DEFINE void json_parser::close_token(std::size_t token, json_kind kind) {
  tokens_[token].next_and_kind =
      static_cast<std::uint32_t>(tokens_.size() << 3) | static_cast<std::uint32_t>(kind);
}

WEFT_DEFINE void json_parser::parse_value(int depth) {
  if (depth > 32) fail("nested too deeply");
  const char c = peek();
  if (c == '"') return parse_string();
  const std::size_t token = open_token();
  json_kind kind = json_kind::number;
  if (c == '{') parse_members(token, depth), kind = json_kind::object;
  else if (c == '[') parse_items(token, depth), kind = json_kind::array;
  else if (c == '-' || (c >= '0' && c <= '9')) parse_number(token);
  else if (takes("true")) tokens_[token].size = 4, kind = json_kind::boolean;
  else if (takes("false")) tokens_[token].size = 5, kind = json_kind::boolean;
  else if (takes("null")) tokens_[token].size = 4, kind = json_kind::null;
  else fail("unexpected character");
  close_token(token, kind);
}

WEFT_DEFINE void json_parser::parse_items(std::size_t token, int depth) {
  expect('[');
  if (peek() == ']') return void(++at_);
  for (;;) {
    parse_value(depth + 1);
    ++tokens_[token].size;
    if (peek() == ']') return void(++at_);
    expect(',');
  }
}

WEFT_DEFINE void json_parser::parse_members(std::size_t token, int depth) {
  expect('{');
  if (peek() == '}') return void(++at_);
  for (;;) {
    if (peek() != '"') fail("expected a key");
    parse_string();
    expect(':');
    parse_value(depth + 1);
    ++tokens_[token].size;
    if (peek() == '}') break;
    expect(',');
  }
  ++at_;
  require_different_keys(token);
}

WEFT_DEFINE void json_parser::require_different_keys(std::size_t object) const {
  std::vector<std::string_view> keys;
  keys.reserve(tokens_[object].size);
  for (std::size_t key = object + 1; key < tokens_.size(); key = tokens_[key + 1].next())
    keys.push_back(std::string_view(text_).substr(tokens_[key].begin, tokens_[key].size));
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) fail("duplicate key " + json_string(twice->substr(0, 100)));
}

WEFT_DEFINE void json_parser::parse_number(std::size_t token) {
  const auto digits = [&] {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == begin) fail("malformed number: expected a digit");
  };
  takes("-");
  if (takes("0")) {
    if (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      fail("malformed number: a leading zero");
  } else {
    digits();
  }
  if (takes(".")) digits();
  if (takes("e") || takes("E")) {
    if (!takes("+")) takes("-");
    digits();
  }
  tokens_[token].size = static_cast<std::uint32_t>(at_ - tokens_[token].begin);
}

WEFT_DEFINE unsigned json_parser::parse_hex() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    if (at_ == text_.size()) fail("unexpected end");
    const char c = text_[at_];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("malformed \\u escape");
    code = code * 16 + static_cast<unsigned>(digit);
  }
  return code;
}

WEFT_DEFINE void json_parser::put_utf8(std::size_t& to, unsigned code) {
  const int size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  constexpr unsigned first[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = 0; i < size; ++i) {
    const unsigned bits = code >> 6 * (size - 1 - i);
    text_[to++] = static_cast<char>(i == 0 ? first[size] | bits : 0x80 | (bits & 0x3F));
  }
}

WEFT_DEFINE void json_parser::parse_string() {
  const std::size_t token = open_token();
  expect('"');
  std::size_t to = at_;
  tokens_[token].begin = static_cast<std::uint32_t>(to);
  for (;;) {
    if (at_ == text_.size()) fail("unterminated string");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
    if (c == '\\') {
      ++at_;
      parse_escape(to);
      continue;
    }
    const std::size_t sequence = utf8_sequence(std::string_view(text_).substr(at_));
    if (sequence == 0) fail("the string is not UTF-8");
    for (std::size_t i = 0; i < sequence; ++i) text_[to++] = text_[at_++];
  }
  ++at_;
  tokens_[token].size = static_cast<std::uint32_t>(to - tokens_[token].begin);
  close_token(token, json_kind::string);
}

WEFT_DEFINE void json_parser::parse_escape(std::size_t& to) {
  if (at_ == text_.size()) fail("unterminated string");
  constexpr std::string_view from = "\"\\/bfnrt", means = "\"\\/\b\f\n\r\t";
  const char c = text_[at_];
  if (const auto i = from.find(c); i != from.npos) {
    ++at_;
    text_[to++] = means[i];
    return;
  }
  if (!takes("u")) fail("unknown escape");
  unsigned code = parse_hex();
  if (code >= 0xDC00 && code < 0xE000) fail("half of a surrogate pair");
  if (code >= 0xD800 && code < 0xDC00) {
    const unsigned low = takes("\\u") ? parse_hex() : 0;
    if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  put_utf8(to, code);
}

}  // namespace detail
}  // namespace io
}  // namespace weft
