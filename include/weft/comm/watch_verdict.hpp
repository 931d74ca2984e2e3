// SPDX-License-Identifier: MIT
// The conclusion of failure detection: one message for all ranks.
#pragma once

#include <string>

#include <weft/base/error.hpp>

namespace weft::detail {

struct watch_verdict {
  bool late = false;  // thrown as timeout_error
  std::string text;
};

[[noreturn]] inline void throw_verdict(const watch_verdict& v) {
  if (v.late) throw timeout_error(v.text);
  throw comm_error(v.text);
}

}  // namespace weft::detail
