// SPDX-License-Identifier: MIT
// Definitions of <weft/optim/copy_weights.hpp>.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string_view>

#include <weft/base/config.hpp>
#include <weft/optim/copy_weights.hpp>

namespace weft {
namespace detail {

/// Throws unless this rank can write all that `from` has to `t`.
inline void check_weight(const char* what, const std::string& name, const tensor_state& t,
                         const tensor_state& from) {
  if (t.type != from.type || !(t.whole() == from.whole()))
    refuse<value_error>({"weft: ", what, ": ", name, " is ", name_of(t.type), " ", t.whole(),
                         " in the target, but ", name_of(from.type), " ", from.whole(), " in the source"});
  if (t.divided && (!t.memory || t.is_gathered || !(t.extents == from.extents)))
    refuse<usage_error>({"weft: ", what, ": ", name, " of shape ", t.whole(),
                         " in the target is divided among ranks: do not bind the target, and copy run.full() "
                         "into it, where `run` is that of the source; or save_weights(file, run) and "
                         "load_weights(file, run_of_target)"});
  require_lasting_memory(t);
  require_lasting_memory(from);
  if (!(t.extents == from.extents)) refuse_divided(from);
}

WEFT_DEFINE std::vector<weight_pair> matched_weights(const char* what, const state_dict_t& to,
                                                     const state_dict_t& from) {
  std::map<std::string_view, std::shared_ptr<tensor_state>> by_name(from.begin(), from.end());
  std::set<const tensor_state*> met, used;
  std::vector<weight_pair> all;
  for (const auto& [name, t] : to) {
    const auto found = by_name.find(name);
    if (found != by_name.end()) used.insert(found->second.get());
    if (!met.insert(t.get()).second) continue;  // tied
    if (found == by_name.end()) refuse<value_error>({"weft: ", what, ": the source has no ", name});
    check_weight(what, name, *t, *found->second);
    all.emplace_back(t, found->second);
  }
  for (const auto& [name, f] : from)
    if (!used.contains(f.get()))
      refuse<value_error>({"weft: ", what, ": the target has no ", name, ", which the source has"});
  return all;
}

WEFT_DEFINE void copy_weight(tensor_state& to, const tensor_state& from) {
  if (to.where == from.where) {
    copy_elements(*to.where, to.type, to.memory.data(), from.memory.data(), to.extents.size());
  } else {
    const std::unique_ptr<std::byte[]> host(new std::byte[from.bytes()]);
    from.where->download(host.get(), from.memory.data(), from.bytes());
    to.where->upload(to.memory.data(), host.get(), to.bytes());
  }
  ++to.version();
}

}  // namespace detail
}  // namespace weft
