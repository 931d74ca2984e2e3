// SPDX-License-Identifier: MIT
// Parts of tensors that ranks divide along a dim (shape/placement.hpp): cut from the whole, gathered, and
// exchanged for the parts along another dim.
//
// The elements that one rank has of another rank's part form a strided matrix in a contiguous tensor, so that
// each message is packed and unpacked by one copy per rank.
#pragma once

#include <weft/comm/communicator.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// The extents of the part of `rank`. The groups and units of `p` must divide the dim.
shape part_extents(shape whole, const placement& p, int ranks, int rank);

/// The part of `rank` of `t`, a contiguous tensor of shape `whole`, as rows.
strided part_view(const tensor_state& t, const shape& whole, const placement& p, int ranks, int rank);

namespace detail {
/// The elements of `t` from index `first` on, as contiguous rows of the shape of `like`.
strided packed_view(const tensor_state& t, index_t first, const strided& like);
inline void copy_view(const device& on, const strided& from, const strided& to) {
  if (from.size() > 0) on->copy(from, to);
}
/// A copy of `t` on another device.
state_ptr copy_on(const device& where, const state_ptr& t);
state_ptr part_state(const tensor_state& like, const shape& whole, const placement& where, int ranks,
                     int rank);
}  // namespace detail

/// The part of `rank` of a whole tensor. Sends nothing.
state_ptr cut(const tensor_state& whole, const placement& to, int ranks, int rank);

/// The whole of a tensor of shape `whole` from the parts of all ranks. Collective.
state_ptr gathered(const state_ptr& part, const shape& whole, const placement& where, communicator& ranks,
                   const comm_options& o);

/// This rank's part along another dim, from the parts of all ranks along the current one: each rank sends
/// each other rank the elements that the latter keeps. Collective.
state_ptr exchanged(const state_ptr& part, const placement& to, communicator& ranks, const comm_options& o);

/// `t` in the placement `to`; `t` itself if it already has it. Between two divisions of the same dim, the
/// whole is gathered first. Collective, unless `t` is whole.
state_ptr placed(const state_ptr& t, const placement& to, communicator& ranks, const comm_options& o);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/parts.ipp>
#endif
