// SPDX-License-Identifier: MIT
// Tensors divided among ranks explicitly: sharded, gathered, and redistributed along another dim.
//
//   auto part = divide(x, 1, ranks);              // of x [B, T, C] this rank's positions; sends nothing
//   auto by_features = redistribute(part, 2, ranks);     // one all_to_all
//   auto own = local_part(by_features);           // an ordinary tensor [B, T, C / n], to compute with
//   auto y = gather(as_part(eval(own * own), 2, ranks), ranks);
//
// Like torch's DTensor with one mesh dim. A divided tensor has the type and extents of the whole, but only
// this rank's elements; if the extent does not divide evenly, the first ranks have one index more. Programs
// of a run that divides layers accept such tensors as operands. Reading one as if it were whole throws
// value_error. Nothing is recorded on tapes.
#pragma once

#include <utility>
#include <vector>

#include <weft/op/all.hpp>
#include <weft/parallel/parts.hpp>

namespace weft {

namespace parallel::detail {

/// `t`; throws usage_error if it is divided among other ranks.
inline const state_ptr& checked_part(const char* what, const state_ptr& t, const communicator& ranks) {
  if (t->is_part_of_layer() && (t->divided->ranks != ranks.size() || t->divided->rank != ranks.rank()))
    refuse<usage_error>({"weft: ", what, ": a tensor of shape ", t->whole(), ", of which this is part ",
                         t->divided->rank, " of ", t->divided->ranks, ", does not match rank ", ranks.rank(),
                         " of ", ranks.size(), " ranks"});
  weft::detail::require_own_memory(*t);
  return t;
}
template <class T, class Extents>
tensor<T, Extents> placed_by_hand(const char* what, const tensor<T, Extents>& t, const placement& to,
                                  communicator& ranks) {
  return tensor<T, Extents>(placed(checked_part(what, t.state(), ranks), to, ranks, {.label = what}));
}
template <class Order>
struct all_dynamic;
template <int... D>
struct all_dynamic<std::integer_sequence<int, D...>> {
  using type = extents<((void)D, dyn)...>;
};

}  // namespace parallel::detail

/// The type of a rank's part of a tensor, without static extents.
template <class T, class Extents>
using part_of_rank =
    tensor<T, typename parallel::detail::all_dynamic<std::make_integer_sequence<int, Extents::order>>::type>;

/// This rank's part along `dim` (negative: counted from the right) of `t`, all of whose elements every rank
/// has. Copies the part; sends nothing. Throws value_error for a dim that `t` does not have, or if it is
/// divided.
template <class T, class Extents, bool Tracked>
tensor<T, Extents> divide(const tensor<T, Extents, Tracked>& t, int dim, communicator& ranks) {
  detail::require_memory(*t.state());
  return parallel::detail::placed_by_hand("divide", tensor<T, Extents>(t.state()),
                                          divided_along(detail::checked_dim(t.extents(), dim)), ranks);
}

/// The whole of a divided tensor on every rank; `t` itself if it is whole. Collective: one all_gather. Throws
/// usage_error if `t` is divided among other ranks.
template <class T, class Extents, bool Tracked>
tensor<T, Extents> gather(const tensor<T, Extents, Tracked>& t, communicator& ranks) {
  return parallel::detail::placed_by_hand("gather", tensor<T, Extents>(t.state()), placement{}, ranks);
}

/// `t` divided along `dim` instead of the dim along which it is divided now. Collective: one all_to_all, in
/// which each rank sends the other ranks the elements of their new parts. Throws like divide and gather.
template <class T, class Extents, bool Tracked>
tensor<T, Extents> redistribute(const tensor<T, Extents, Tracked>& t, int dim, communicator& ranks) {
  return parallel::detail::placed_by_hand("redistribute", tensor<T, Extents>(t.state()),
                                          divided_along(detail::checked_dim(t.extents(), dim)), ranks);
}

/// This rank's elements of a divided tensor, as an ordinary tensor that shares their memory.
template <class T, class Extents, bool Tracked>
part_of_rank<T, Extents> local_part(const tensor<T, Extents, Tracked>& t) {
  detail::require_own_memory(*t.state());
  auto part = alias_of(*t.state());
  part->divided.reset();
  part->grad.reset();
  return part_of_rank<T, Extents>(std::move(part));
}

/// The divided tensor whose part along `dim` is `local` on this rank; shares its memory. Collective: ranks
/// compare extents. Throws shape_error on all ranks unless the parts are those of an even division and agree
/// in the other extents.
template <class T, class Extents, bool Tracked>
part_of_rank<T, Extents> as_part(const tensor<T, Extents, Tracked>& local, int dim, communicator& ranks) {
  detail::require_memory(*local.state());
  const shape own = local.extents();
  const int along = detail::checked_dim(own, dim);
  const auto n = static_cast<std::size_t>(own.order);
  std::vector<std::int64_t> mine(own.extent, own.extent + own.order);
  std::vector<std::int64_t> all(n * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(mine, all, {}, {.label = "as_part", .control = true}).wait();
  shape whole = own;
  whole[along] = 0;
  const auto extents_of = [&](int r) {
    shape s = own;
    for (int d = 0; d < s.order; ++d)
      s[d] = all[static_cast<std::size_t>(r) * n + static_cast<std::size_t>(d)];
    return s;
  };
  for (int r = 0; r < ranks.size(); ++r) whole[along] += extents_of(r)[along];
  for (int r = 0; r < ranks.size(); ++r) {
    shape expected = extents_of(0);
    expected[along] = count_of_part(whole[along], ranks.size(), r);
    if (!(extents_of(r) == expected))
      refuse<shape_error>({"weft: as_part: rank ", r, " has ", extents_of(r), ", but its part along dim ",
                           along, " of ", ranks.size(), " parts is ", expected});
  }
  auto part = alias_of(*local.state());
  part->divided = unnamed_division(whole, divided_along(along), ranks.size(), ranks.rank());
  part->grad.reset();
  return part_of_rank<T, Extents>(std::move(part));
}

}  // namespace weft
