// SPDX-License-Identifier: MIT
// What a watch over ranks concludes: one sentence for all ranks.
#pragma once

#include <string>

#include <weft/base/error.hpp>

namespace weft::detail {

struct watch_verdict {
  bool late = false;  // a timeout_error
  std::string text;
};

[[noreturn]] inline void throw_verdict(const watch_verdict& v) {
  if (v.late) throw timeout_error(v.text);
  throw comm_error(v.text);
}

}  // namespace weft::detail
