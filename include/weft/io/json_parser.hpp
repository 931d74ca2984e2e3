// SPDX-License-Identifier: MIT
// The JSON parser: converts a text to tokens in one pass, by the grammar of RFC 8259 without extensions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/base/error.hpp>

namespace weft::io {

/// The type of a JSON value.
enum class json_kind : std::uint8_t { null, boolean, number, string, array, object };

/// `text` as a JSON string with quotes; control characters, quotes and backslashes are escaped.
std::string json_string(std::string_view text);

namespace detail {

/// A value or key: its position in the text, and the index of the token after it and everything it contains.
struct json_token {
  std::uint32_t begin = 0, size = 0;  // of an array or object: its number of elements or members
  std::uint32_t next_and_kind = 0;

  json_kind kind() const { return static_cast<json_kind>(next_and_kind & 7); }
  std::uint32_t next() const { return next_and_kind >> 3; }
};
inline constexpr std::size_t max_json = std::size_t{1} << 29;

/// Number of bytes of the UTF-8 sequence at the beginning of `text`; 0 if it is invalid (Unicode, table 3-7).
std::size_t utf8_sequence(std::string_view text);
/// Whether all of `text` is UTF-8.
bool is_utf8(std::string_view text);

/// Converts a text to tokens. Strings are decoded in place; decoding never makes a string longer.
class json_parser {
 public:
  json_parser(std::string& text, const std::string& what) : text_(text), what_(what) {}

  std::vector<json_token> parse();

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("weft: " + what_ + ": JSON at byte " + std::to_string(at_) + ": " + why);
  }

  /// An upper bound of the number of tokens, so that they are allocated once: each token follows a comma,
  /// colon or bracket, and takes two bytes on average.
  std::size_t most_tokens() const;

  void skip_space();
  char peek() {
    skip_space();
    if (at_ == text_.size()) fail("unexpected end");
    return text_[at_];
  }
  void expect(char c) {
    if (peek() != c) fail(std::string("expected '") + c + "'");
    ++at_;
  }
  bool takes(std::string_view word);

  std::size_t open_token() {
    tokens_.push_back({static_cast<std::uint32_t>(at_), 0, 0});
    return tokens_.size() - 1;
  }
  void close_token(std::size_t token, json_kind kind);

  void parse_value(int depth);

  void parse_items(std::size_t token, int depth);

  void parse_members(std::size_t token, int depth);

  void require_different_keys(std::size_t object) const;

  void parse_number(std::size_t token);

  unsigned parse_hex();

  void put_utf8(std::size_t& to, unsigned code);

  void parse_string();

  /// Decodes the escape sequence after a backslash.
  void parse_escape(std::size_t& to);

  std::string& text_;
  const std::string& what_;
  std::size_t at_ = 0;
  std::vector<json_token> tokens_;
};

}  // namespace detail

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/json_parser.ipp>
#endif
