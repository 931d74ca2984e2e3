// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/head_exchange.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/head_exchange.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE bool head_exchange::exchange(const device& where, std::string_view op, const attributes& at,
                                         const strided& in, const strided& out, const comm_options& o) {
  const bool to_heads = op == "positions_to_heads";
  if (!to_heads && op != "heads_to_positions") return false;
  if (size() == 1) {
    where->copy(in, out);
    return true;
  }
  const strided &own = to_heads ? in : out, &all = to_heads ? out : in;
  check("attention", where, own.extents, own.extents[1]);
  const std::size_t own_bytes = bytes_of(own.extents, own.type), all_bytes = bytes_of(all.extents, all.type);
  const buffer memory = where.allocate(own_bytes + all_bytes);
  char* const buffers = static_cast<char*>(memory.data());
  char* const other = buffers + own_bytes;
  comm_options labelled = o;
  labelled.label = std::string(op);
  const memory_space space = message_space(*where);
  const elements of_own{buffers, own.size(), in.type, space}, of_all{other, all.size(), in.type, space};
  const rank_counts counts = own_counts(own, at[2]), others = all_counts(all);
  if (to_heads) copy_own(where, own, at[2], buffers, false);
  else copy_all(where, all, other, false);
  if (to_heads) ranks().all_to_all(of_own, of_all, counts, others, labelled).wait();
  else ranks().all_to_all(of_all, of_own, others, counts, labelled).wait();
  if (to_heads) copy_all(where, all, other, true);
  else copy_own(where, own, at[2], buffers, true);
  return true;
}

WEFT_DEFINE position_range head_exchange::heads_of(int r, const strided& own, index_t unit) const {
  const index_t units = own.extents[2] / unit;
  return {first_of_part(units, size(), r) * unit, count_of_part(units, size(), r) * unit};
}

WEFT_DEFINE rank_counts head_exchange::own_counts(const strided& own, index_t unit) const {
  rank_counts counts;
  for (int r = 0; r < size(); ++r)
    counts.push_back(own.extents[0] * own.extents[1] * heads_of(r, own, unit).count * own.extents[3]);
  return counts;
}

WEFT_DEFINE rank_counts head_exchange::all_counts(const strided& all) const {
  rank_counts counts;
  for (int r = 0; r < size(); ++r)
    counts.push_back(all.extents[0] * division().count(r) * all.extents[2] * all.extents[3]);
  return counts;
}

WEFT_DEFINE strided head_exchange::next_at(char*& memory, const strided& like) {
  strided t{memory, like.type, like.extents};
  set_contiguous(t);
  memory += t.size() * size_of(t.type);
  return t;
}

WEFT_DEFINE void head_exchange::copy_own(const device& where, const strided& own, index_t unit,
                                         char* messages, bool arrives) const {
  for (int r = 0; r < size(); ++r) {
    const strided part = range_of(own, heads_of(r, own, unit), 2);
    move(where, part, next_at(messages, part), arrives);
  }
}

WEFT_DEFINE void head_exchange::copy_all(const device& where, const strided& all, char* messages,
                                         bool arrives) const {
  for (int r = 0; r < size(); ++r) {
    const position_range early = division().early(r), late = division().late(r);
    const strided message = next_at(messages, range_of(all, {0, early.count + late.count}));
    move(where, range_of(all, early), range_of(message, {0, early.count}), arrives);
    move(where, range_of(all, late), range_of(message, {early.count, late.count}), arrives);
  }
}

}  // namespace parallel
}  // namespace weft
