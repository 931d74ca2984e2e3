// SPDX-License-Identifier: MIT
// Definitions of <weft/run/routing.hpp>.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include <weft/base/config.hpp>
#include <weft/run/routing.hpp>

namespace weft {
namespace runtime {

WEFT_DEFINE routing::routing(context& c, const tensor_state& chosen, const shape& operand, index_t experts,
                             double capacity_factor)
    : context_(&c), ranks_(c.experts()), experts_(experts) {
  row_choices all{chosen.extents[1], {}, std::vector<index_t>(static_cast<std::size_t>(chosen.extents[0]))};
  all.chosen.resize(static_cast<std::size_t>(chosen.extents.size()));
  std::iota(all.here.begin(), all.here.end(), index_t{0});
  if (c.where()->computes()) weft::detail::download_to(chosen, all.chosen.data());
  if (capacity_factor > 0 && c.hooks()) c.hooks()->gather_choices(all, operand);
  if (!c.where()->computes())  // a device that only counts assumes equally used experts
    for (std::size_t i = 0; i < all.chosen.size(); ++i)
      all.chosen[i] = static_cast<std::int64_t>(i) % std::max<index_t>(experts, 1);
  const auto count = static_cast<index_t>(all.chosen.size());
  const auto every = static_cast<double>(count), mean = every / static_cast<double>(experts);
  const double most = capacity_factor > 0 ? std::min(std::ceil(capacity_factor * mean), every) : every;
  sort(all, static_cast<index_t>(most));
  all_ = ranks_ ? ranks_->gather(mine_) : mine_;
}

WEFT_DEFINE index_t routing::arriving(index_t n) const {
  index_t sum = 0;
  for (int r = 0; r < size(); ++r) sum += rows_from(r, first_expert(), n);
  return sum;
}

WEFT_DEFINE routing::state_ptr routing::to_experts(const state_ptr& rows) const {
  if (!ranks_) return apart(rows);
  const index_t width = rows->extents[1];
  const state_ptr received = make_state(rows->where, {2, {arriving(own_experts()), width}}, rows->type);
  ranks_->exchange(rows, received, sent(width), received_counts(width));
  return arranged(received, true);
}

WEFT_DEFINE routing::state_ptr routing::to_rows(const state_ptr& computed) const {
  if (!ranks_) return apart(computed);
  const index_t width = computed->extents[1];
  const state_ptr received =
      make_state(computed->where, {2, {static_cast<index_t>(rows_.size()), width}}, computed->type);
  ranks_->exchange(arranged(computed, false), received, received_counts(width), sent(width));
  return received;
}

WEFT_DEFINE routing::state_ptr routing::part(const tensor_state& arrived, index_t n) const {
  const index_t width = arrived.extents[1], before = arriving(n);
  return unrecorded_part(arrived, before * width, {2, {arriving(n + 1) - before, width}});
}

WEFT_DEFINE routing::state_ptr routing::joined(const tensor_list& parts, index_t width, dtype type) const {
  const state_ptr all = make_state(context_->where(), {2, {arriving(own_experts()), width}}, type);
  for (index_t n = 0; n < own_experts(); ++n) {
    const state_ptr& from = parts[static_cast<std::size_t>(n)];
    const index_t at = arriving(n) * width, count = arriving(n + 1) * width - at;
    char* const to = static_cast<char*>(all->memory.data()) + at * size_of(type);
    if (from) copy_elements(context_->engine(), type, to, from->memory.data(), count);
    else if (count) context_->engine().fill_zero(to, bytes_of({1, {count}}, type));
  }
  return all;
}

WEFT_DEFINE index_t routing::rows_from(int r, index_t first, index_t n) const {
  const auto begin = all_.begin() + r * experts_ + first;
  return std::accumulate(begin, begin + n, index_t{0});
}

WEFT_DEFINE void routing::sort(const row_choices& all, index_t most) {
  const auto each_of_this_rank = [&](auto f) {  // for each choice that is not dropped
    expert_ranks::counts taken(static_cast<std::size_t>(experts_), 0);
    for (index_t j = 0; j < all.per_row; ++j)
      for (std::size_t n = 0; n < all.here.size(); ++n) {
        const std::size_t at = n * static_cast<std::size_t>(all.per_row) + static_cast<std::size_t>(j);
        const auto e = static_cast<std::size_t>(all.chosen[at]);
        if (taken[e] == most) continue;
        ++taken[e];
        if (all.here[n] >= 0) f(e, all.here[n], all.here[n] * all.per_row + j);
      }
  };
  mine_ = expert_ranks::counts(static_cast<std::size_t>(experts_), 0);
  each_of_this_rank([&](std::size_t e, index_t, index_t) { ++mine_[e]; });
  expert_ranks::counts next(mine_.size(), 0);
  std::exclusive_scan(mine_.begin(), mine_.end(), next.begin(), index_t{0});
  rows_.resize(static_cast<std::size_t>(std::accumulate(mine_.begin(), mine_.end(), index_t{0})));
  choices_.resize(rows_.size());
  each_of_this_rank([&](std::size_t e, index_t row, index_t choice) {
    const auto at = static_cast<std::size_t>(next[e]++);
    rows_[at] = row;
    choices_[at] = choice;
  });
}

WEFT_DEFINE expert_ranks::counts routing::sent(index_t width) const {
  expert_ranks::counts to;
  for (int r = 0; r < size(); ++r)
    to.push_back(width *
                 rows_from(rank(), first_of_part(experts_, size(), r), count_of_part(experts_, size(), r)));
  return to;
}

WEFT_DEFINE expert_ranks::counts routing::received_counts(index_t width) const {
  expert_ranks::counts from;
  for (int r = 0; r < size(); ++r) from.push_back(width * rows_from(r, first_expert(), own_experts()));
  return from;
}

WEFT_DEFINE routing::state_ptr routing::arranged(const state_ptr& from, bool by_expert) const {
  if (size() == 1 || own_experts() < 2) return from;
  const index_t width = from->extents[1];
  const state_ptr to = make_state(from->where, from->extents, from->type);
  index_t of_rank = 0;  // the first row from rank r
  for (int r = 0; r < size(); ++r) {
    index_t at = of_rank;
    for (index_t n = 0; n < own_experts(); ++n) {
      index_t sorted = arriving(n);
      for (int before = 0; before < r; ++before) sorted += rows_from(before, first_expert() + n, 1);
      const index_t count = rows_from(r, first_expert() + n, 1);
      copy(*to, by_expert ? sorted : at, *from, by_expert ? at : sorted, count, width);
      at += count;
    }
    of_rank = at;
  }
  return to;
}

WEFT_DEFINE void routing::copy(const tensor_state& to, index_t to_row, const tensor_state& from,
                               index_t from_row, index_t rows, index_t width) const {
  const index_t bytes = width * size_of(to.type);
  copy_elements(context_->engine(), to.type, static_cast<char*>(to.memory.data()) + to_row * bytes,
                static_cast<const char*>(from.memory.data()) + from_row * bytes, rows * width);
}

WEFT_DEFINE routing::state_ptr routing::apart(const state_ptr& t) {
  return unrecorded_part(*t, 0, t->extents);
}

}  // namespace runtime
}  // namespace weft
