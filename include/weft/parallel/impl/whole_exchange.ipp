// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/whole_exchange.hpp>.
#pragma once

#include <numeric>

#include <weft/base/config.hpp>
#include <weft/parallel/whole_exchange.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE void whole_exchange::add(whole_computation c) {
  const place at = found(c.name);
  const index_t own = at.what->size(at.of->part(), at.of->parts());
  if (c.own->extents.size() != own)
    refuse<value_error>({"weft: optimizer: a computation on the whole of parameter ", c.name, " has ",
                         c.own->extents.size(), " elements, but this rank's part of the parameter has ",
                         own});
  communicator& ranks = sharing(*at.of);
  auto q = std::find_if(waiting_.begin(), waiting_.end(), [&](const queue& w) { return w.ranks == &ranks; });
  if (q == waiting_.end()) q = waiting_.insert(q, {&ranks, {}});
  q->items.push_back({at, std::move(c)});
  if (static_cast<int>(q->items.size()) == ranks.size()) exchange(*q);
}

WEFT_DEFINE whole_exchange::place whole_exchange::found(const std::string& name) const {
  const member_place at = place_of(units_, name);
  const unit& of = units_[static_cast<std::size_t>(at.unit)];
  return {&of, &of.members[static_cast<std::size_t>(at.member)]};
}

WEFT_DEFINE void whole_exchange::exchange(queue& q) {
  const std::vector<item> items = std::exchange(q.items, {});
  if (items.empty()) return;
  const state_ptr of_all =
      q.ranks->size() == 1 ? computed(items[0], items[0].computation.own) : results(items, *q.ranks);
  index_t at = 0;
  for (const item& i : items) {
    const index_t count = i.computation.own->extents.size();
    const state_ptr own = weft::detail::viewed_as(of_all, {1, {count}});
    own->memory = of_all->memory.part(static_cast<std::size_t>(at) * sizeof(float));
    i.computation.finish(own);
    at += count;
  }
}

template <class Start>
state_ptr whole_exchange::received(index_t count, Start start) const {
  const state_ptr message = flat(messages_, count);
  start(elements_of(*message), groups_.labelled("whole parameters")).wait();
  return detail::copy_on(where_, message);
}

WEFT_DEFINE state_ptr whole_exchange::results(const std::vector<item>& all, communicator& ranks) const {
  const int n = ranks.size();
  const auto computes = static_cast<std::size_t>(ranks.rank());
  const item* const mine = computes < all.size() ? &all[computes] : nullptr;
  rank_counts of_each(static_cast<std::size_t>(n)), of_mine(static_cast<std::size_t>(n));
  index_t sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) sum += of_each[i] = all[i].computation.own->extents.size();
  if (all[0].at.of->parts() == 1) {
    const state_ptr own =
        reachable(messages_, mine ? computed(*mine, mine->computation.own) : flat(where_, 0));
    return received(sum, [&](elements in, const comm_options& o) {
      return ranks.all_gather(elements_of(*own), in, of_each, o);
    });
  }
  const auto exchanged = [&](const state_ptr& t, const rank_counts& sent, const rank_counts& comes) {
    const state_ptr own = reachable(messages_, t);
    return received(std::accumulate(comes.begin(), comes.end(), index_t{0}),
                    [&](elements in, const comm_options& o) {
                      return ranks.all_to_all(elements_of(*own), in, sent, comes, o);
                    });
  };
  for (int p = 0; mine && p < n; ++p) of_mine[static_cast<std::size_t>(p)] = mine->at.what->size(p, n);
  const state_ptr packed = flat(where_, sum);
  std::vector<row_copy> copies;
  index_t at = 0;
  for (const item& i : all) {
    const state_ptr& own = i.computation.own;
    copies.push_back({*packed, at, *own, 0, own->extents.size()});
    at += own->extents.size();
  }
  copy_rows(copies);
  const state_ptr rows = exchanged(packed, of_each, of_mine);
  return exchanged(mine ? computed(*mine, rows) : rows, of_mine, of_each);
}

WEFT_DEFINE state_ptr whole_exchange::computed(const item& i, const state_ptr& rows) const {
  const tensor_state& layer = *i.at.what->whole;
  const bool is_part = layer.is_part_of_layer();
  const shape extents = layer.whole();
  state_ptr whole = rows;
  if (is_part)
    whole = gathered(rows, extents, layer.divided->where, *groups_.layers(),
                     groups_.labelled(i.computation.name));
  state_ptr result = i.computation.compute(weft::detail::viewed_as(whole, {1, {extents.size()}}));
  if (result->extents.size() != extents.size() || result->type != dtype::f32)
    refuse<value_error>({"weft: optimizer: the result of a computation on the whole of parameter ",
                         i.computation.name, " is ", result->extents, " of ", name_of(result->type), ", not ",
                         extents.size(), " elements of f32"});
  if (!is_part) return result;
  result = alias_of(*result);
  result->extents = extents;
  result = cut(*result, layer.divided->where, groups_.layers()->size(), groups_.layers()->rank());
  return weft::detail::viewed_as(result, {1, {result->extents.size()}});
}

}  // namespace parallel
}  // namespace weft
