// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/bound_model.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/bound_model.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE void bound_model::refuse_changed(const char* what) const {
  const auto refuse_new = [&](const char* kind, const state_dict_t& now) {
    for (const auto& [name, t] : now)
      if (std::find(tensors_.begin(), tensors_.end(), t) == tensors_.end())
        refuse<usage_error>({"weft: ", what, ": ", kind, " ", name,
                             " was replaced or added after bind, so that the run neither trains nor saves "
                             "it: copy into the tensors that were bound, with copy_weights(to, from) or "
                             "update(x, value), or bind the model again"});
  };
  refuse_new("parameter", parameters());
  refuse_new("buffer", buffers());
  refuse<usage_error>({"weft: ", what,
                       ": a parameter or buffer of the model was removed or is at another place than when it "
                       "was bound: bind the model again"});
}

}  // namespace parallel
}  // namespace weft
