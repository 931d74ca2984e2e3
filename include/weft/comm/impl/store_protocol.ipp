// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/store_protocol.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/store_protocol.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE const char* name_of(store_operation o) {
  constexpr const char* names[] = {"set",      "get",  "add",  "compare_set", "delete_key", "check",
                                   "num_keys", "wait", "push", "pop",         "withdraw"};
  return static_cast<std::size_t>(o) < std::size(names) ? names[static_cast<std::size_t>(o)] : "no operation";
}

WEFT_DEFINE std::optional<store_request> parse_store_request(std::string bytes) {
  using enum store_operation;
  frame_reader r(std::move(bytes));
  store_request q;
  q.number = r.number();
  q.what = static_cast<store_operation>(r.byte());
  const auto read_texts = [&](int n) {
    for (int i = 0; i < n; ++i) q.texts.push_back(r.text());
  };
  switch (q.what) {
    case get:
    case wait:
    case check: q.texts = r.texts(store_request::most_keys); break;
    case set:
    case push: read_texts(2); break;
    case compare_set: read_texts(3); break;
    case add:
    case delete_key:
    case pop: read_texts(1); break;
    case num_keys:
    case withdraw: break;
    default: return std::nullopt;
  }
  if (q.what == add) q.amount = r.number();
  const bool needs_key = q.what == get || q.what == wait;
  if (!r.at_end() || (needs_key && q.texts.empty())) return std::nullopt;
  return q;
}

WEFT_DEFINE std::string byte_budget::refusal(std::size_t n) const {
  return std::to_string(n) + " bytes do not fit: " + std::to_string(used_) + " of " + std::to_string(limit_) +
         " are in use (tcp_store_limits::" + name_ + ")";
}

WEFT_DEFINE store_reply store_answer(std::uint64_t client, std::int64_t number, store_status status,
                                     const std::string& value) {
  return {client, frame_writer().number(number).byte(static_cast<std::uint8_t>(status)).text(value).take()};
}

WEFT_DEFINE store_reply store_answer(std::uint64_t client, std::int64_t number, shared_value value) {
  frame_writer head;
  head.number(number).byte(static_cast<std::uint8_t>(store_status::ok)).length(value->bytes.size());
  return {client, head.take(), std::move(value)};
}

}  // namespace detail
}  // namespace weft
