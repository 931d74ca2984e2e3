// SPDX-License-Identifier: MIT
// Descriptions of operations that ranks in different processes exchange before data is sent: collectives
// compare their text, the two sides of a message compare count and type.
#pragma once

#include <weft/comm/operation.hpp>

namespace weft::detail {

struct fingerprint {
  std::int64_t count = 0;  // of a message
  std::int32_t type = 0;
  char text[500] = {};

  fingerprint() = default;
  explicit fingerprint(const operation& o)
      : count(o.kind == collective::send ? o.in.count : o.out.count),
        type(static_cast<std::int32_t>(o.type())) {
    const std::string all = o.text();
    std::copy_n(all.begin(), std::min(all.size(), sizeof text - 1), text);
  }
  std::string words() const { return {text, std::find(text, text + sizeof text - 1, '\0')}; }
  bool same_message(const fingerprint& other) const { return count == other.count && type == other.type; }
};

}  // namespace weft::detail
