// SPDX-License-Identifier: MIT
// Parts of tensors that ranks divide along a dim (shape/placement.hpp): cut from the whole, gathered, and
// exchanged for the parts along another dim.
//
// What one rank has of another's part is the elements of one dim, in groups, of a contiguous tensor: a matrix
// with a stride, so that each message is packed and unpacked by one copy for each rank.
#pragma once

#include <weft/comm/communicator.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// The extents of the part of `rank`. The groups and units of `p` must divide the dim.
inline shape part_extents(shape whole, const placement& p, int ranks, int rank) {
  if (p.is_divided())
    whole[p.dim] = p.groups * p.unit * count_of_part(whole[p.dim] / (p.groups * p.unit), ranks, rank);
  return whole;
}

/// The elements of `t`, a contiguous tensor of shape `whole`, that are the part of `rank`, as rows.
inline strided part_view(const tensor_state& t, const shape& whole, const placement& p, int ranks, int rank) {
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
/// The elements of `t` from `first` on, as contiguous rows like those of `like`.
inline strided packed_view(const tensor_state& t, index_t first, const strided& like) {
  strided s = like;
  s.pointer = static_cast<char*>(t.memory.data()) + first * size_of(t.type);
  set_contiguous(s);
  return s;
}
inline void copy_view(const device& on, const strided& from, const strided& to) {
  if (from.size() > 0) on->copy(from, to);
}
/// All of `t` on another device.
inline state_ptr copy_on(const device& where, const state_ptr& t) {
  if (t->where == where) return t;
  const state_ptr copy = flat(where, t->extents.size(), t->type);
  copy_rows(copy, 0, t, 0, t->extents.size());
  return copy;
}
inline state_ptr part_state(const tensor_state& like, const shape& whole, const placement& where, int ranks,
                            int rank) {
  state_ptr part = make_state(like.where, part_extents(whole, where, ranks, rank), like.type);
  part->divided = unnamed_division(whole, where, ranks, rank);
  return part;
}
}  // namespace detail

/// The part of `rank` of a whole tensor. Sends nothing.
inline state_ptr cut(const tensor_state& whole, const placement& to, int ranks, int rank) {
  const state_ptr part = detail::part_state(whole, whole.extents, to, ranks, rank);
  const strided from = part_view(whole, whole.extents, to, ranks, rank);
  detail::copy_view(whole.where, from, detail::packed_view(*part, 0, from));
  return part;
}

/// The whole of a tensor of shape `whole` from the parts of all ranks. Collective.
inline state_ptr gathered(const state_ptr& part, const shape& whole, const placement& where,
                          communicator& ranks, const comm_options& o) {
  const device messages = message_device(part->where, &ranks);
  rank_counts counts;
  for (int r = 0; r < ranks.size(); ++r) counts.push_back(part_extents(whole, where, ranks.size(), r).size());
  const state_ptr own = reachable(messages, part), all = flat(messages, whole.size(), part->type);
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

/// This rank's part along another dim, from the parts that the ranks have along one: each sends to each other
/// what that one keeps. Collective.
inline state_ptr exchanged(const state_ptr& part, const placement& to, communicator& ranks,
                           const comm_options& o) {
  const shape whole = part->whole();
  const placement from = part->divided->where;
  const device messages = message_device(part->where, &ranks);
  const int n = ranks.size();
  const state_ptr result = detail::part_state(*part, whole, to, n, ranks.rank());
  rank_counts sent, received;
  const state_ptr packed = flat(part->where, part->extents.size(), part->type);
  index_t at = 0;
  for (int r = 0; r < n; ++r) {
    const strided piece = part_view(*part, part->extents, to, n, r);
    detail::copy_view(part->where, piece, detail::packed_view(*packed, at, piece));
    sent.push_back(piece.size());
    received.push_back(part_view(*result, result->extents, from, n, r).size());
    at += sent.back();
  }
  const state_ptr out = reachable(messages, packed), in = flat(messages, result->extents.size(), part->type);
  ranks.all_to_all(elements_of(*out), elements_of(*in), sent, received, o).wait();
  const state_ptr arrived = detail::copy_on(part->where, in);
  at = 0;
  for (int r = 0; r < n; ++r) {
    const strided piece = part_view(*result, result->extents, from, n, r);
    detail::copy_view(part->where, detail::packed_view(*arrived, at, piece), piece);
    at += piece.size();
  }
  return result;
}

/// `t`, which the ranks have in one placement, in another one; `t` itself if it has it. Parts of two
/// divisions of one dim are made from the whole. Collective, unless `t` is whole.
inline state_ptr placed(const state_ptr& t, const placement& to, communicator& ranks, const comm_options& o) {
  const placement from = t->where_in_layer();
  if (from == to) return t;
  if (from.is_divided() && to.is_divided() && from.dim != to.dim) return exchanged(t, to, ranks, o);
  const state_ptr whole = from.is_divided() ? gathered(t, t->whole(), from, ranks, o) : t;
  return to.is_divided() ? cut(*whole, to, ranks.size(), ranks.rank()) : whole;
}

}  // namespace weft::parallel
