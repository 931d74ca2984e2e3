// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/parts.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/parts.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE shape part_extents(shape whole, const placement& p, int ranks, int rank) {
  if (p.is_divided())
    whole[p.dim] = p.groups * indices_in_group(p, whole[p.dim] / p.groups, ranks, rank).count;
  return whole;
}

WEFT_DEFINE strided part_view(const tensor_state& t, const shape& whole, const placement& p, int ranks,
                              int rank) {
  const part_layout part = layout_of_part(whole, p, ranks, rank);
  strided s;
  s.type = t.type;
  s.extents = {2, {part.rows, part.count}};
  s.stride[0] = part.stride;
  s.stride[1] = 1;
  s.pointer = static_cast<char*>(t.memory.data()) + part.first * size_of(t.type);
  return s;
}

namespace detail {

WEFT_DEFINE strided packed_view(const tensor_state& t, index_t first, const strided& like) {
  strided s = like;
  s.pointer = static_cast<char*>(t.memory.data()) + first * size_of(t.type);
  set_contiguous(s);
  return s;
}

WEFT_DEFINE state_ptr copy_on(const device& where, const state_ptr& t) {
  if (t->where == where) return t;
  const state_ptr copy = flat(where, t->extents.size(), t->type);
  copy_rows(copy, 0, t, 0, t->extents.size());
  return copy;
}

WEFT_DEFINE state_ptr part_state(const tensor_state& like, const shape& whole, const placement& where,
                                 int ranks, int rank) {
  state_ptr part = make_state(like.where, part_extents(whole, where, ranks, rank), like.type);
  part->divided = unnamed_division(whole, where, ranks, rank);
  return part;
}

}  // namespace detail

WEFT_DEFINE state_ptr cut(const tensor_state& whole, const placement& to, int ranks, int rank) {
  const state_ptr part = detail::part_state(whole, whole.extents, to, ranks, rank);
  const strided from = part_view(whole, whole.extents, to, ranks, rank);
  detail::copy_view(whole.where, from, detail::packed_view(*part, 0, from));
  return part;
}

WEFT_DEFINE state_ptr gathered(const state_ptr& part, const shape& whole, const placement& where,
                               communicator& ranks, const comm_options& o) {
  const device messages = message_device(part->where, &ranks);
  rank_counts counts;
  index_t sent = 0;  // elements that several ranks have are sent by each of them
  for (int r = 0; r < ranks.size(); ++r) {
    counts.push_back(part_extents(whole, where, ranks.size(), r).size());
    sent += counts.back();
  }
  const state_ptr own = reachable(messages, part), all = flat(messages, sent, part->type);
  ranks.all_gather(elements_of(*own), elements_of(*all), counts, o).wait();
  const state_ptr from = detail::copy_on(part->where, all);
  const state_ptr result = make_state(part->where, whole, part->type);
  index_t at = 0;
  for (int r = 0; r < ranks.size(); ++r) {
    const strided to = part_view(*result, whole, where, ranks.size(), r);
    detail::copy_view(part->where, detail::packed_view(*from, at, to), to);
    at += counts[static_cast<std::size_t>(r)];
  }
  return result;
}

WEFT_DEFINE state_ptr exchanged(const state_ptr& part, const placement& to, communicator& ranks,
                                const comm_options& o) {
  const shape whole = part->whole();
  const placement from = part->divided->where;
  const device messages = message_device(part->where, &ranks);
  const int n = ranks.size();
  const state_ptr result = detail::part_state(*part, whole, to, n, ranks.rank());
  rank_counts sent, received;
  const state_ptr packed = flat(part->where, part->extents.size(), part->type);
  index_t at = 0;
  view_copies packing, unpacking;
  for (int r = 0; r < n; ++r) {
    const strided piece = part_view(*part, part->extents, to, n, r);
    packing.add(piece, detail::packed_view(*packed, at, piece));
    sent.push_back(piece.size());
    received.push_back(part_view(*result, result->extents, from, n, r).size());
    at += sent.back();
  }
  packing.make(*part->where);
  const state_ptr out = reachable(messages, packed), in = flat(messages, result->extents.size(), part->type);
  ranks.all_to_all(elements_of(*out), elements_of(*in), sent, received, o).wait();
  const state_ptr arrived = detail::copy_on(part->where, in);
  at = 0;
  for (int r = 0; r < n; ++r) {
    const strided piece = part_view(*result, result->extents, from, n, r);
    unpacking.add(detail::packed_view(*arrived, at, piece), piece);
    at += piece.size();
  }
  unpacking.make(*part->where);
  return result;
}

WEFT_DEFINE state_ptr placed(const state_ptr& t, const placement& to, communicator& ranks,
                             const comm_options& o) {
  const placement from = t->where_in_layer();
  if (from == to) return t;
  if (from.is_divided() && to.is_divided() && from.dim != to.dim) return exchanged(t, to, ranks, o);
  const state_ptr whole = from.is_divided() ? gathered(t, t->whole(), from, ranks, o) : t;
  return to.is_divided() ? cut(*whole, to, ranks.size(), ranks.rank()) : whole;
}

}  // namespace parallel
}  // namespace weft
