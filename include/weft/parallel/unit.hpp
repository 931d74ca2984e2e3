// SPDX-License-Identifier: MIT
// A unit: parameters that are sent together, and how their elements are divided among ranks.
//
// A parameter is divided along its first dim into whole rows. Elements of a unit are sent in the order (part,
// parameter, row), so that the part of a rank is contiguous.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/comm/traffic.hpp>
#include <weft/device/counting.hpp>
#include <weft/parallel/held_tensor.hpp>
#include <weft/parallel/strategy.hpp>
#include <weft/nn/module.hpp>
#include <weft/run/convert.hpp>

namespace weft::parallel {

/// A shared tensor.
using state_ptr = std::shared_ptr<tensor_state>;

/// One parameter of a unit.
struct member {
  std::string name;
  int number = 0;     // among all parameters
  state_ptr whole;    // what the model holds
  state_ptr local;    // the rows that this rank updates; `whole` itself if nothing is divided
  bool seen = false;  // has had a gradient since the last step

  index_t rows() const { return in_rows(whole->extents)[0]; }
  index_t row_size() const { return rows() > 0 ? whole->extents.size() / rows() : 0; }
  /// The index of the first element of part p; elements begin(p) to begin(p + 1) - 1 are part p.
  index_t begin(int part, int parts) const {
    index_t row = 0;
    for (int p = 0; p < part; ++p) row += even_part(rows(), parts, p);
    return row * row_size();
  }
  index_t size(int part, int parts) const { return even_part(rows(), parts, part) * row_size(); }
};

/// Elements that are contiguous in a parameter and in a message.
struct piece {
  int member;
  index_t at, count, in_message;
};

/// The layout of some members of a unit in one message.
struct message_layout {
  std::vector<piece> pieces;  // by part, then by member
  std::vector<int> first;     // of each part, and the end
  rank_counts counts;         // elements by part
  index_t count = 0;

  message_layout(const std::vector<member>& members, const std::vector<int>& chosen, int parts) {
    for (int p = 0; p < parts; ++p) {
      first.push_back(static_cast<int>(pieces.size()));
      const index_t before = count;
      for (int m : chosen) {
        const member& of = members[static_cast<std::size_t>(m)];
        pieces.push_back({m, of.begin(p, parts), of.size(p, parts), count});
        count += of.size(p, parts);
      }
      counts.push_back(count - before);
    }
    first.push_back(static_cast<int>(pieces.size()));
  }
  std::span<const piece> part(int p) const {
    const auto begin = static_cast<std::size_t>(first[static_cast<std::size_t>(p)]);
    const auto end = static_cast<std::size_t>(first[static_cast<std::size_t>(p) + 1]);
    return std::span(pieces).subspan(begin, end - begin);
  }
};

/// A new one-dimensional tensor of `count` elements.
inline state_ptr flat(const device& where, index_t count, dtype type = dtype::f32) {
  return make_state(where, shape{1, {count}}, type);
}
/// A tensor of the type, shape and placement of `t`, on `where`.
inline state_ptr state_like(const tensor_state& t, const device& where) {
  state_ptr state = make_state(where, t.extents, t.type);
  if (t.is_part_of_layer())
    state->divided = unnamed_division(t.whole(), t.divided->where, t.divided->ranks, t.divided->rank);
  return state;
}
/// The same of zeros.
inline state_ptr zeros_like(const tensor_state& t) {
  const state_ptr z = state_like(t, t.where);
  t.where->fill_zero(z->memory.data(), z->bytes());
  return z;
}
/// The device on which messages among `ranks` for parameters on `where` are kept: `where`, if they reach it,
/// or memory of the host, which is counted separately. Null: any ranks.
inline device message_device(const device& where, const communicator* ranks = nullptr) {
  if (where->holds_messages() || (ranks && ranks->reaches() == &*where)) return where;
  if (!where->computes()) return device(std::make_shared<counting_backend>());
  return device(std::make_shared<cpu::cpu_backend>(1));
}
/// Throws usage_error, naming the option, unless `t` is f32, bf16 or f16.
inline void check_message_type(const char* option, dtype t) {
  if (t != dtype::f32 && t != dtype::bf16 && t != dtype::f16)
    refuse<usage_error>({"weft: bind: ", option, " is ", name_of(t), ", not f32, bf16 or f16"});
}
/// The elements of `t` converted to another floating type; `t` itself if it has that type.
inline state_ptr in_type(dtype type, const state_ptr& t) {
  if (t->type == type) return t;
  const state_ptr converted = flat(t->where, t->extents.size(), type);
  if (t->extents.size() > 0) runtime::convert(*t->where, *t, *converted);
  return converted;
}
/// The elements of `t` as an argument of communicators.
inline elements elements_of(const tensor_state& t) {
  return {t.memory.data(), t.extents.size(), t.type,
          t.where->holds_messages() ? memory_space::host : memory_space::device};
}

/// Copies `count` elements, from index `from_at` to index `to_at`; between devices through the host.
inline void copy_rows(const state_ptr& to, index_t to_at, const state_ptr& from, index_t from_at,
                      index_t count) {
  const auto size = size_of(to->type);
  char* const target = static_cast<char*>(to->memory.data()) + to_at * size;
  const char* const source = static_cast<const char*>(from->memory.data()) + from_at * size;
  const auto bytes = static_cast<std::size_t>(count * size);
  if (to->where == from->where) return copy_elements(*to->where, to->type, target, source, count);
  if (from->where->host_accessible()) return to->where->upload(target, source, bytes);
  if (to->where->host_accessible()) return from->where->download(target, source, bytes);
  const std::unique_ptr<std::byte[]> host(new std::byte[bytes]);
  from->where->download(host.get(), source, bytes);
  to->where->upload(target, host.get(), bytes);
}

/// All of `t` in memory that messages can use: `t` itself, or a copy on `messages`.
inline state_ptr reachable(const device& messages, const state_ptr& t) {
  if (t->where == messages || t->where->holds_messages()) return t;
  const state_ptr copy = flat(messages, t->extents.size(), t->type);
  copy_rows(copy, 0, t, 0, t->extents.size());
  return copy;
}

/// Parameters that are sent together.
struct unit {
  std::string name;
  std::vector<member> members;
  std::vector<int> everything;       // 0, 1, ...: all members
  message_layout message;            // of all members
  communicator* replicas = nullptr;  // that reduce its gradients; null: those of all units
  bool stays = false;                // gathered parameters are kept between forward and backward
  int waiting = 0;                   // members whose gradient this backward pass has not completed

  member& at(int m) { return members[static_cast<std::size_t>(m)]; }
};

/// "h.3" for "h.3.attn.c_attn.bias": the path to the first number; empty for a name without a number.
[[gnu::cold]] inline std::string block_of(const std::string& name) {
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    if (name.find_first_not_of("0123456789", at) >= end) return name.substr(0, end);
    at = end + 1;
  }
  return "";
}

/// The parameter numbers of each unit, units in the order in which backward completes them. `chunks`: of a
/// pipeline, by parameter; a unit has parameters of one chunk. Empty: one for all.
[[gnu::cold]] inline std::vector<std::vector<int>> divided_into_units(const state_dict_t& parameters,
                                                                      const parallel_options& o,
                                                                      const std::vector<int>& chunks) {
  std::vector<std::vector<int>> units;
  const bool by_size = !o.unit && o.divide <= sharding::optimizer;
  std::vector<std::pair<std::string, int>> names;
  index_t bytes = 0;
  const auto chunk = [&](int i) { return chunks.empty() ? 0 : chunks[static_cast<std::size_t>(i)]; };
  for (int i = static_cast<int>(parameters.size()); i-- > 0;) {
    const auto& [name, p] = parameters[static_cast<std::size_t>(i)];
    const auto own = static_cast<index_t>(p->bytes());
    if (by_size) {
      const index_t limit = units.size() <= 1 ? o.first_bucket_bytes : o.bucket_bytes;
      if (units.empty() || chunk(i) != chunk(units.back().back()) || (bytes > 0 && bytes + own > limit)) {
        units.emplace_back();
        bytes = 0;
      }
      units.back().push_back(i);
      bytes += own;
      continue;
    }
    const std::pair unit(o.unit ? o.unit(name) : block_of(name), chunk(i));
    const auto found = std::find(names.begin(), names.end(), unit);
    if (found == names.end()) {
      names.push_back(unit);
      units.push_back({i});
    } else {
      units[static_cast<std::size_t>(found - names.begin())].push_back(i);
    }
  }
  for (auto& u : units) std::sort(u.begin(), u.end());
  return units;
}

/// Parameters of experts: ranks that process different data divide them `among` each other. Their gradients
/// are reduced over `replicas`, the ranks that have the same.
struct expert_parameters {
  state_dict_t parameters{};
  std::shared_ptr<communicator> among{}, replicas{};
};

/// The units of these parameters, divided into `parts` parts, named by block, by options.unit or by their
/// parameters.
[[gnu::cold]] inline std::vector<unit> units_of(const state_dict_t& parameters, const parallel_options& o,
                                                int parts, const std::vector<int>& chunks = {}) {
  std::vector<unit> units;
  for (const std::vector<int>& numbers : divided_into_units(parameters, o, chunks)) {
    std::vector<member> members;
    std::vector<int> all;
    for (int i : numbers) {
      const auto& [name, p] = parameters[static_cast<std::size_t>(i)];
      all.push_back(static_cast<int>(members.size()));
      members.push_back({name, i, p, p});
    }
    const std::string path = o.unit ? o.unit(members[0].name) : block_of(members[0].name);
    const std::string several = members.size() > 1 ? " .. " + members.back().name : "";
    const std::string name = path.empty() ? members[0].name + several : path;
    message_layout message(members, all, parts);
    units.push_back({name, std::move(members), std::move(all), std::move(message), nullptr, path.empty()});
  }
  return units;
}
/// The same, and those of experts after them, whose parameters follow the others.
[[gnu::cold]] inline std::vector<unit> units_of(const state_dict_t& parameters,
                                                const expert_parameters& experts, const parallel_options& o,
                                                int parts, const std::vector<int>& chunks) {
  std::vector<unit> units = units_of(parameters, o, parts, chunks);
  for (unit& u : units_of(experts.parameters, o, parts)) {
    for (member& m : u.members) m.number += static_cast<int>(parameters.size());
    u.replicas = experts.replicas.get();
    units.push_back(std::move(u));
  }
  return units;
}

}  // namespace weft::parallel
