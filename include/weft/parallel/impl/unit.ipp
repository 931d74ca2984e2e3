// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/unit.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/unit.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE message_layout::message_layout(const std::vector<member>& members, const std::vector<int>& chosen,
                                           int parts) {
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

WEFT_DEFINE std::span<const piece> message_layout::part(int p) const {
  const auto begin = static_cast<std::size_t>(first[static_cast<std::size_t>(p)]);
  const auto end = static_cast<std::size_t>(first[static_cast<std::size_t>(p) + 1]);
  return std::span(pieces).subspan(begin, end - begin);
}

WEFT_DEFINE std::vector<piece> message_layout::by_member() const {
  const std::size_t members = pieces.size() / counts.size();
  std::vector<piece> all;
  for (std::size_t m = 0; m < members; ++m)
    for (std::size_t i = m; i < pieces.size(); i += members) all.push_back(pieces[i]);
  return all;
}

WEFT_DEFINE state_ptr state_like(const tensor_state& t, const device& where) {
  state_ptr state = make_state(where, t.extents, t.type);
  if (t.is_part_of_layer())
    state->divided = unnamed_division(t.whole(), t.divided->where, t.divided->ranks, t.divided->rank);
  return state;
}

WEFT_DEFINE state_ptr zeros_like(const tensor_state& t) {
  const state_ptr z = state_like(t, t.where);
  t.where->fill_zero(z->memory.data(), z->bytes());
  return z;
}

WEFT_DEFINE device message_device(const device& where, const communicator* ranks) {
  if (where->holds_messages() || (ranks && ranks->reaches() == &*where)) return where;
  if (!where->computes()) return device(std::make_shared<counting_backend>());
  return device(std::make_shared<cpu::cpu_backend>(1));
}

WEFT_DEFINE void check_message_type(const char* option, dtype t) {
  if (t != dtype::f32 && t != dtype::bf16 && t != dtype::f16)
    refuse<usage_error>({"weft: bind: ", option, " is ", name_of(t), ", not f32, bf16 or f16"});
}

WEFT_DEFINE state_ptr in_type(dtype type, const state_ptr& t) {
  if (t->type == type) return t;
  const state_ptr converted = flat(t->where, t->extents.size(), type);
  if (t->extents.size() > 0) runtime::convert(*t->where, *t, *converted);
  return converted;
}

WEFT_DEFINE elements elements_of(const tensor_state& t) {
  return {t.memory.data(), t.extents.size(), t.type, message_space(*t.where)};
}

namespace detail {
/// The number of copies, from the first on, that have equally many elements and are at equal distances.
WEFT_DEFINE std::size_t copies_at_equal_distances(std::span<const row_copy> all) {
  const row_copy& first = all[0];
  std::size_t n = 1;
  for (; n < all.size(); ++n) {
    const row_copy &second = all[1], &last = all[n - 1], &next = all[n];
    if (&next.to != &first.to || &next.from != &first.from || next.count != first.count ||
        next.to_at - last.to_at != second.to_at - first.to_at ||
        next.from_at - last.from_at != second.from_at - first.from_at)
      break;
  }
  return n;
}
}  // namespace detail

WEFT_DEFINE void copy_rows(std::span<const row_copy> all) {
  if (all.empty()) return;
  backend &from = *all[0].from.where, &to = *all[0].to.where;
  const auto type = all[0].to.type;
  const auto at = [size = size_of(type)](const tensor_state& t, index_t element) {
    return static_cast<char*>(t.memory.data()) + element * size;
  };
  if (&from == &to) {
    const auto matrix = [type](void* first, index_t rows, index_t columns, index_t step) {
      strided m;
      m.pointer = first;
      m.type = type;
      m.extents = {2, {rows, columns}};
      m.stride[0] = step;
      m.stride[1] = 1;
      return m;
    };
    view_copies copies;
    for (std::size_t i = 0, n = 0; i < all.size(); i += n) {
      n = detail::copies_at_equal_distances(all.subspan(i));
      const row_copy &c = all[i], &next = all[i + (n > 1)];
      const auto rows = static_cast<index_t>(n);
      copies.add(matrix(at(c.from, c.from_at), rows, c.count, next.from_at - c.from_at),
                 matrix(at(c.to, c.to_at), rows, c.count, next.to_at - c.to_at));
    }
    return copies.make(to);
  }
  const bool is_far = !from.host_accessible() && !to.host_accessible();
  std::size_t between = 0;
  for (const row_copy& c : all) between += is_far ? static_cast<std::size_t>(c.count * size_of(type)) : 0;
  const std::unique_ptr<std::byte[]> host(new std::byte[between]);
  std::vector<host_copy> down, up;
  std::byte* next = host.get();
  for (const row_copy& c : all) {
    const auto bytes = static_cast<std::size_t>(c.count * size_of(type));
    void *const target = at(c.to, c.to_at), *const source = at(c.from, c.from_at);
    if (is_far) {
      down.push_back({next, source, bytes});
      up.push_back({target, next, bytes});
      next += bytes;
    } else {
      (from.host_accessible() ? up : down).push_back({target, source, bytes});
    }
  }
  if (!down.empty()) from.download_together(down);
  for (const host_copy& c : up) to.upload(c.to, c.from, c.bytes);
}

WEFT_DEFINE state_ptr reachable(const device& messages, const state_ptr& t) {
  if (t->where == messages || t->where->holds_messages()) return t;
  const state_ptr copy = flat(messages, t->extents.size(), t->type);
  copy_rows(copy, 0, t, 0, t->extents.size());
  return copy;
}

WEFT_DEFINE void share_elements(communicator& ranks, const state_ptr& t, int from, const comm_options& o) {
  const state_ptr message = reachable(message_device(t->where, &ranks), t);
  ranks.broadcast(elements_of(*message), from, o).wait();
  if (message != t && from != ranks.rank()) copy_rows(t, 0, message, 0, t->extents.size());
}

WEFT_DEFINE std::string shared_text(communicator& ranks, std::string text, int from, const comm_options& o) {
  auto size = static_cast<std::int64_t>(text.size());
  ranks.broadcast(std::span(&size, 1), from, o).wait();
  std::vector<std::uint8_t> bytes(text.begin(), text.end());
  bytes.resize(static_cast<std::size_t>(size));
  ranks.broadcast(bytes, from, o).wait();
  return {bytes.begin(), bytes.end()};
}

WEFT_DEFINE std::vector<bool> same_on_all(communicator& ranks, const std::vector<std::int64_t>& numbers,
                                          const comm_options& o) {
  std::vector<std::int64_t> largest;  // largest of the numbers, and of their complements
  for (const std::int64_t n : numbers) largest.insert(largest.end(), {n, ~n});
  ranks.all_reduce(largest, reduction::maximum, o).wait();
  std::vector<bool> same;
  for (std::size_t i = 0; i < largest.size(); i += 2) same.push_back(largest[i] == ~largest[i + 1]);
  return same;
}

WEFT_DEFINE int expert_division::owner_of(const tensor_state& p) const {
  const auto at =
      std::find_if(places.begin(), places.end(), [&](const place& e) { return e.parameter.get() == &p; });
  return at == places.end() ? every_rank : at->owner;
}

WEFT_DEFINE member_place place_of(const std::vector<unit>& units, const std::string& name) {
  for (std::size_t u = 0; u < units.size(); ++u)
    for (std::size_t m = 0; m < units[u].members.size(); ++m)
      if (units[u].members[m].name == name) return {static_cast<int>(u), static_cast<int>(m)};
  refuse<value_error>({"weft: there is no parameter named ", name});
}

WEFT_DEFINE std::string block_of(const std::string& name) {
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    if (name.find_first_not_of("0123456789", at) >= end) return name.substr(0, end);
    at = end + 1;
  }
  return "";
}

WEFT_DEFINE std::vector<std::vector<int>> divided_into_units(const state_dict_t& parameters,
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
  // In the order in which the backward pass completes them, which is the order in which they are sent.
  std::sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a[0] > b[0]; });
  return units;
}

WEFT_DEFINE std::vector<unit> units_of(const state_dict_t& parameters, const parallel_options& o,
                                       communicator& shards, communicator& replicas,
                                       const std::vector<int>& chunks) {
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
    message_layout message(members, all, shards.size());
    units.push_back(
        {name, std::move(members), std::move(all), std::move(message), &shards, &replicas, path.empty()});
  }
  return units;
}

}  // namespace parallel
}  // namespace weft
