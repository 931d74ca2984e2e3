// SPDX-License-Identifier: MIT
// JSON by RFC 8259, as far as file headers need it.
//
//   const io::json index(text, "index.json");
//   if (const auto step = index.root().find("step")) std::cout << step->text();
//
// Input is untrusted: extensions of the grammar are rejected, depth is limited to 32, keys of an object must
// differ, strings must be UTF-8, and every error states its byte offset. Time is linear in the text (n log n
// in the keys of one object), memory at most six times the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/base/number.hpp>
#include <weft/io/json_parser.hpp>

namespace weft::io {

class json;

/// A value of a parsed text; refers to the `json` object, which must outlive it.
class json_value {
 public:
  json_kind kind() const;
  /// The decoded string; for a number or literal, the source text.
  std::string_view text() const;
  /// Number of elements of an array or members of an object; 0 for other values.
  std::size_t size() const;
  /// The number if it is an integer that fits into 64 bits, written without fraction or exponent.
  std::optional<std::int64_t> integer() const {
    if (kind() != json_kind::number) return {};
    return weft::detail::parse_number<std::int64_t>(text());
  }
  /// The member `key` of an object; nullopt if there is no such member or this is not an object. Linear in
  /// the number of members.
  std::optional<json_value> find(std::string_view key) const {
    std::optional<json_value> found;
    for_each_member([&](std::string_view k, const json_value& v) {
      if (k == key) found = v;
    });
    return found;
  }
  /// Calls f(value) for the elements of an array; does nothing for other values.
  template <class F>
  void for_each_item(F f) const;
  /// Calls f(key, value) for the members of an object in source order; does nothing for other values.
  template <class F>
  void for_each_member(F f) const;

 private:
  friend json;
  json_value(const json& of, std::size_t token) : of_(&of), token_(token) {}
  const detail::json_token& token() const;

  const json* of_;
  std::size_t token_;
};

/// A parsed JSON text.
class json {
 public:
  /// Parses `text`. Throws io_error, with `what` as its name, if it is not valid JSON or 512 MiB or larger.
  json(std::string text, const std::string& what)
      : text_(std::move(text)), tokens_(detail::json_parser(text_, what).parse()) {}

  json_value root() const { return {*this, 0}; }

 private:
  friend json_value;
  std::string text_;
  std::vector<detail::json_token> tokens_;
};

inline const detail::json_token& json_value::token() const { return of_->tokens_[token_]; }
inline json_kind json_value::kind() const { return token().kind(); }
inline std::string_view json_value::text() const {
  const bool written = kind() < json_kind::array;
  return written ? std::string_view(of_->text_).substr(token().begin, token().size) : std::string_view();
}
inline std::size_t json_value::size() const { return kind() < json_kind::array ? 0 : token().size; }
template <class F>
void json_value::for_each_item(F f) const {
  if (kind() != json_kind::array) return;
  for (std::size_t i = token_ + 1; i < token().next(); i = of_->tokens_[i].next()) f(json_value(*of_, i));
}
template <class F>
void json_value::for_each_member(F f) const {
  if (kind() != json_kind::object) return;
  for (std::size_t i = token_ + 1; i < token().next(); i = of_->tokens_[i + 1].next())
    f(json_value(*of_, i).text(), json_value(*of_, i + 1));
}

}  // namespace weft::io
