// SPDX-License-Identifier: MIT
// How the blocks of a model are divided into the chunks of a pipeline: by a list, or so that the modelled
// cost of the most expensive chunk is minimal.
#pragma once

#include <string>
#include <vector>

#include <weft/parallel/stage_evaluator.hpp>

namespace weft::parallel {

namespace detail {
/// The number of elements of value `v` of a plan.
double elements_in(const runtime::plan_view& p, const runtime::symbol_values& symbols, int v);
}  // namespace detail

/// The modelled cost of a program in FLOP: twice the multiplications of its products, plus 16 for each
/// element that a step reads or writes, about the FLOP that a machine computes in the time in which it moves
/// one element.
[[gnu::cold]] double modelled_cost(const runtime::plan_view& p, const runtime::symbol_values& symbols);

/// Ranges of `count[c]` consecutive blocks for the chunks c. Throws usage_error unless `count` has one
/// positive number for each of `chunks` chunks and their sum is `blocks`.
[[gnu::cold]] std::vector<block_range> divided_by_list(const std::vector<index_t>& count, index_t blocks,
                                                       int chunks);

/// Divides blocks with these costs among chunks of at least one block each, so that the largest sum is
/// minimal. `before`: the further cost of the first chunk. Throws usage_error if there are more chunks than
/// blocks; a single chunk needs no blocks. Cost: O(chunks * blocks^2).
[[gnu::cold]] std::vector<block_range> divided_by_cost(const std::vector<double>& costs, double before,
                                                       int chunks);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/stage_division.ipp>
#endif
