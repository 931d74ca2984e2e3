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
  auto q = std::find_if(waiting_.begin(), waiting_.end(), [&](const std::vector<item>& w) {
    return w.empty() || w[0].at.of->shards == at.of->shards;
  });
  if (q == waiting_.end()) q = waiting_.insert(q, std::vector<item>());
  q->push_back({at, std::move(c)});
  if (static_cast<int>(q->size()) == at.of->parts()) exchange(*q);
}

WEFT_DEFINE whole_exchange::place whole_exchange::found(const std::string& name) const {
  for (const unit& u : units_)
    for (const member& m : u.members)
      if (m.name == name) return {&u, &m};
  refuse<value_error>({"weft: there is no parameter named ", name});
}

WEFT_DEFINE void whole_exchange::exchange(std::vector<item>& all) {
  const std::vector<item> items = std::exchange(all, {});
  if (items.empty()) return;
  communicator& ranks = *items[0].at.of->shards;
  const int n = ranks.size();
  if (n == 1) return items[0].computation.finish(computed(items[0], items[0].computation.own));
  rank_counts of_each(static_cast<std::size_t>(n)), of_mine(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < items.size(); ++i) of_each[i] = items[i].computation.own->extents.size();
  const state_ptr packed = flat(where_, std::accumulate(of_each.begin(), of_each.end(), index_t{0}));
  std::vector<row_copy> copies;
  index_t next = 0;
  for (const item& i : items) {
    const index_t count = i.computation.own->extents.size();
    copies.push_back({*packed, next, *i.computation.own, 0, count});
    next += count;
  }
  copy_rows(copies);
  const bool computes = ranks.rank() < static_cast<int>(items.size());
  const item* const mine = computes ? &items[static_cast<std::size_t>(ranks.rank())] : nullptr;
  for (int p = 0; mine && p < n; ++p) of_mine[static_cast<std::size_t>(p)] = mine->at.what->size(p, n);
  state_ptr rows = exchanged(ranks, packed, of_each, of_mine);
  if (mine) rows = computed(*mine, rows);
  const state_ptr results = exchanged(ranks, rows, of_mine, of_each);
  next = 0;
  for (const item& i : items) {
    const index_t count = i.computation.own->extents.size();
    const state_ptr own = weft::detail::viewed_as(results, {1, {count}});
    own->memory = results->memory.part(static_cast<std::size_t>(next) * sizeof(float));
    i.computation.finish(own);
    next += count;
  }
}

WEFT_DEFINE state_ptr whole_exchange::exchanged(communicator& ranks, const state_ptr& packed,
                                                const rank_counts& sent, const rank_counts& received) const {
  const state_ptr out = reachable(messages_, packed);
  const state_ptr in = flat(messages_, std::accumulate(received.begin(), received.end(), index_t{0}));
  ranks.all_to_all(elements_of(*out), elements_of(*in), sent, received, groups_.labelled("optimizer")).wait();
  return detail::copy_on(where_, in);
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
