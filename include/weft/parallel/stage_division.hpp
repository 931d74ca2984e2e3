// SPDX-License-Identifier: MIT
// How the blocks of a model are divided into the chunks of a pipeline: by a list, or so that the modelled
// cost of the most expensive chunk is as small as possible.
#pragma once

#include <string>
#include <vector>

#include <weft/parallel/stage_evaluator.hpp>

namespace weft::parallel {

namespace detail {
/// The elements of value `v` of a plan.
double elements_in(const runtime::plan_view& p, const runtime::symbol_values& symbols, int v);
}  // namespace detail

/// The modelled cost of a program in FLOP: twice the multiplications of its products, and 16 for each element
/// that a step reads or writes, about what a machine computes while it moves one.
[[gnu::cold]] double modelled_cost(const runtime::plan_view& p, const runtime::symbol_values& symbols);

/// Runs of `count[c]` blocks for the chunks c. Throws usage_error unless they are positive numbers, one for
/// each of `chunks` chunks, whose sum is `blocks`.
[[gnu::cold]] std::vector<block_range> divided_by_list(const std::vector<index_t>& count, index_t blocks,
                                                       int chunks);

/// Divides blocks with these costs among chunks, each with one block or more, so that the largest sum is
/// minimal. `before`: cost of what the first chunk computes besides. Throws usage_error if there are more
/// chunks than blocks; a single chunk needs none. Cost: O(chunks * blocks^2).
[[gnu::cold]] std::vector<block_range> divided_by_cost(const std::vector<double>& costs, double before,
                                                       int chunks);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/stage_division.ipp>
#endif
