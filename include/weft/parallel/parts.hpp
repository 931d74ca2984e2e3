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
shape part_extents(shape whole, const placement& p, int ranks, int rank);

/// The elements of `t`, a contiguous tensor of shape `whole`, that are the part of `rank`, as rows.
strided part_view(const tensor_state& t, const shape& whole, const placement& p, int ranks, int rank);

namespace detail {
/// The elements of `t` from `first` on, as contiguous rows like those of `like`.
strided packed_view(const tensor_state& t, index_t first, const strided& like);
inline void copy_view(const device& on, const strided& from, const strided& to) {
  if (from.size() > 0) on->copy(from, to);
}
/// All of `t` on another device.
state_ptr copy_on(const device& where, const state_ptr& t);
state_ptr part_state(const tensor_state& like, const shape& whole, const placement& where, int ranks,
                     int rank);
}  // namespace detail

/// The part of `rank` of a whole tensor. Sends nothing.
state_ptr cut(const tensor_state& whole, const placement& to, int ranks, int rank);

/// The whole of a tensor of shape `whole` from the parts of all ranks. Collective.
state_ptr gathered(const state_ptr& part, const shape& whole, const placement& where, communicator& ranks,
                   const comm_options& o);

/// This rank's part along another dim, from the parts that the ranks have along one: each sends to each other
/// what that one keeps. Collective.
state_ptr exchanged(const state_ptr& part, const placement& to, communicator& ranks, const comm_options& o);

/// `t`, which the ranks have in one placement, in another one; `t` itself if it has it. Parts of two
/// divisions of one dim are made from the whole. Collective, unless `t` is whole.
state_ptr placed(const state_ptr& t, const placement& to, communicator& ranks, const comm_options& o);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/parts.ipp>
#endif
