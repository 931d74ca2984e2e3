// SPDX-License-Identifier: MIT
// JSON as far as file headers need it: objects, arrays, strings, numbers, literals.
//
// Input is untrusted: depth and size are bounded, duplicate keys are refused, and every error says
// at which byte it is.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/base/error.hpp>

namespace weft::io {

struct json {
  enum class kind { null, boolean, number, string, array, object };
  kind type = kind::null;
  bool boolean = false;
  double number = 0;
  std::string string;  // of a number: as written
  std::vector<json> items;        // elements of an array, or values of an object
  std::vector<std::string> keys;  // of an object, in the order of the text

  const json* find(std::string_view key) const {
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == key) return &items[i];
    return nullptr;
  }
};

namespace detail {

class json_parser {
 public:
  json_parser(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}

  json parse() {
    json value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw io_error("weft: " + what_ + ": JSON at byte " + std::to_string(at_) + ": " + why);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  char peek() {
    skip_space();
    if (at_ == text_.size()) fail("unexpected end");
    return text_[at_];
  }
  void expect(char c) {
    if (peek() != c) fail(std::string("expected '") + c + "'");
    ++at_;
  }

  json parse_value(int depth) {
    if (depth > 32) fail("nested too deeply");
    const char c = peek();
    if (c == '{') return parse_object(depth);
    if (c == '[') return parse_array(depth);
    json value;
    if (c == '"') {
      value.type = json::kind::string;
      value.string = parse_string();
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      parse_number(value);
    } else {
      parse_literal(value);
    }
    return value;
  }

  json parse_object(int depth) {
    json value;
    value.type = json::kind::object;
    expect('{');
    if (peek() == '}') return ++at_, value;
    for (;;) {
      if (peek() != '"') fail("expected a key");
      std::string key = parse_string();
      if (value.find(key)) fail("duplicate key \"" + key + "\"");
      expect(':');
      value.keys.push_back(std::move(key));
      value.items.push_back(parse_value(depth + 1));
      if (peek() == '}') return ++at_, value;
      expect(',');
    }
  }

  json parse_array(int depth) {
    json value;
    value.type = json::kind::array;
    expect('[');
    if (peek() == ']') return ++at_, value;
    for (;;) {
      value.items.push_back(parse_value(depth + 1));
      if (peek() == ']') return ++at_, value;
      expect(',');
    }
  }

  void parse_number(json& value) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view("+-.eE0123456789").find(text_[at_]) != std::string_view::npos) ++at_;
    value.type = json::kind::number;
    value.string = text_.substr(begin, at_ - begin);
    const char* end = value.string.data() + value.string.size();
    const auto result = std::from_chars(value.string.data(), end, value.number);
    if (result.ec != std::errc() || result.ptr != end) fail("malformed number");
  }

  void parse_literal(json& value) {
    for (const auto& [word, type, truth] :
         {std::tuple{std::string_view("null"), json::kind::null, false},
          std::tuple{std::string_view("true"), json::kind::boolean, true},
          std::tuple{std::string_view("false"), json::kind::boolean, false}})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        value.type = type;
        value.boolean = truth;
        return;
      }
    fail("unexpected character");
  }

  unsigned parse_hex() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      if (at_ == text_.size()) fail("unexpected end");
      const char c = text_[at_++];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) fail("malformed \\u escape");
      code = code * 16 + static_cast<unsigned>(digit);
    }
    return code;
  }

  static void append_utf8(std::string& to, unsigned code) {
    if (code < 0x80) {
      to += static_cast<char>(code);
    } else if (code < 0x800) {
      to += static_cast<char>(0xC0 | code >> 6);
      to += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      to += static_cast<char>(0xE0 | code >> 12);
      to += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      to += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      to += static_cast<char>(0xF0 | code >> 18);
      to += static_cast<char>(0x80 | (code >> 12 & 0x3F));
      to += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      to += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  std::string parse_string() {
    std::string value;
    expect('"');
    for (;;) {
      if (at_ == text_.size()) fail("string without end");
      const char c = text_[at_++];
      if (c == '"') return value;
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      if (c != '\\') {
        value += c;
        continue;
      }
      if (at_ == text_.size()) fail("string without end");
      parse_escape(text_[at_++], value);
    }
  }

  void parse_escape(char c, std::string& value) {
    constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (const auto i = from.find(c); i != from.npos) {
      value += to[i];
      return;
    }
    if (c != 'u') fail("unknown escape");
    unsigned code = parse_hex();
    if (code >= 0xD800 && code < 0xDC00) {  // the first of a surrogate pair
      if (text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
      at_ += 2;
      const unsigned low = parse_hex();
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(value, code);
  }

  std::string_view text_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// Parses `text`; `what` names it in errors.
inline json parse_json(std::string_view text, const std::string& what) {
  return detail::json_parser(text, what).parse();
}

/// `text` as a JSON string with quotes.
inline std::string json_string(std::string_view text) {
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

}  // namespace weft::io
