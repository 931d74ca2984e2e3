// SPDX-License-Identifier: MIT
// Definitions of <weft/tensor/walk.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/tensor/walk.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE named_path named_path::member(std::string_view name) const {
  named_path to{text};
  if (!text.empty()) to.text += '.';
  to.text += name;
  return to;
}

}  // namespace detail
}  // namespace weft
