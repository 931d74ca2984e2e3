// SPDX-License-Identifier: MIT
// The device of a rank whose policy chooses a kind of device (device/kind.hpp): which of the machine's
// devices the rank uses, and how its model is moved there.
#pragma once

#include <string>
#include <type_traits>

#include <weft/comm/communicator.hpp>
#include <weft/comm/environment.hpp>
#include <weft/nn/module.hpp>

namespace weft {

/// The number of this rank among the ranks of its machine: LOCAL_RANK of its launcher, or, if ranks are
/// threads, its rank.
[[gnu::cold]] inline int local_rank_of(const communicator& ranks) {
  const launch me = launch_from_environment();
  return me.size > 1 ? me.local_rank : ranks.rank();
}

namespace detail {
/// Moves a model to the device that the policy chooses for this rank, if it chooses one.
template <class Plan, class Model>
void place_model(Model& model, const communicator& ranks, device_options o) {
  using chosen = typename Plan::device_type;
  if constexpr (!std::is_void_v<chosen>) {
    if (o.device == -1 && o.local_rank < 0) o.local_rank = local_rank_of(ranks);
    to(model, chosen::where(o));
  } else if (o.device != -1) {
    refuse<usage_error>(
        {"weft: bind: device ", o.device, " needs a policy that chooses its kind: policy<on<cuda>, ...>"});
  } else if (o.threads != 0) {
    refuse<usage_error>(
        {"weft: bind: ", o.threads,
         " threads: bind does not move the model: create it on open_device(\"cpu\", {.threads = n})"});
  }
}
}  // namespace detail

}  // namespace weft
