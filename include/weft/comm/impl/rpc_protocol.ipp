// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/rpc_protocol.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/rpc_protocol.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void refuse_value(value_kind is, std::size_t size, value_kind expected,
                              std::size_t expected_size) {
  const auto described = [](value_kind k, std::size_t bytes) -> std::string {
    constexpr const char* numbers[] = {"a bool", "a signed integer", "an unsigned integer",
                                       "a floating-point number", "a struct"};
    if (k == value_kind::text) return "a string";
    if (k == value_kind::vector) return "a vector";
    if (k < value_kind::boolean || k > value_kind::bytes) return "nothing";
    return std::string(numbers[static_cast<int>(k) - static_cast<int>(value_kind::boolean)]) + " of " +
           std::to_string(bytes) + " bytes";
  };
  refuse<comm_error>({"weft: rpc: an argument or a result has another type: ", described(is, size), ", not ",
                      described(expected, expected_size)});
}

WEFT_DEFINE std::optional<rpc_answer> rpc_functions::answer(std::string request, int ranks) {
  frame_reader in(std::move(request));
  const std::int64_t caller = in.number(), number = in.number();
  const std::string name = in.text();
  if (!in.good() || caller < 0 || caller >= ranks) return std::nullopt;
  rpc_answer a{static_cast<int>(caller), number};
  try {
    a.text = run(name, in);
    a.good = true;
  } catch (const std::exception& e) { a.text = e.what(); } catch (...) {
    a.text = "threw something other than a std::exception";
  }
  constexpr std::size_t longest = 4096;
  if (!a.good && a.text.size() > longest) a.text.resize(longest);
  return a;
}

WEFT_DEFINE std::string rpc_functions::run(const std::string& name, frame_reader& in) {
  std::shared_ptr<function> f;  // a copy, as the entry can be replaced meanwhile
  {
    const std::lock_guard lock(mutex_);
    const auto found = functions_.find(name);
    if (found == functions_.end()) throw comm_error("weft: rpc: no such function is served");
    f = found->second;
  }
  return (*f)(in);
}

}  // namespace detail
}  // namespace weft
