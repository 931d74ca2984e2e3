// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/stage_division.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/parallel/stage_division.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE double elements_in(const runtime::plan_view& p, const runtime::symbol_values& symbols, int v) {
  const shape& s = p.values[static_cast<std::size_t>(v)].result.extents;
  double n = 1;
  for (int d = 0; d < s.order; ++d) n *= static_cast<double>(runtime::detail::number_of(symbols, s[d]));
  return n;
}

}  // namespace detail

WEFT_DEFINE double modelled_cost(const runtime::plan_view& p, const runtime::symbol_values& symbols) {
  constexpr double flop_per_element = 16;
  double cost = 0;
  for (const lower::step_entry& s : p.steps) {
    const auto elements = [&](int i) {
      return detail::elements_in(p, symbols, p.operands[static_cast<std::size_t>(s.first_operand + i)]);
    };
    for (int i = 0; i < s.inputs + s.outputs; ++i) cost += flop_per_element * elements(i);
    if (s.kind != lower::step_kind::contraction) continue;
    const auto first = static_cast<std::size_t>(p.operands[static_cast<std::size_t>(s.first_operand)]);
    const shape& a = p.values[first].result.extents;
    cost += 2 * elements(s.inputs) * static_cast<double>(runtime::detail::number_of(symbols, a[a.order - 1]));
  }
  return cost;
}

WEFT_DEFINE std::vector<block_range> divided_by_list(const std::vector<index_t>& count, index_t blocks,
                                                     int chunks) {
  std::vector<block_range> ranges;
  index_t at = 0;
  bool positive = true;
  for (const index_t n : count) {
    ranges.push_back({at, at + n});
    at += n;
    positive = positive && n > 0;
  }
  if (!positive || at != blocks || static_cast<int>(count.size()) != chunks) {
    std::string list;
    for (const index_t n : count) list += (list.empty() ? "" : ",") + std::to_string(n);
    refuse<usage_error>({"weft: pipeline: blocks by chunk ", list, " do not divide the ", blocks,
                         " blocks of the model among ", chunks,
                         " chunks: expected one positive number for each chunk"});
  }
  return ranges;
}

WEFT_DEFINE std::vector<block_range> divided_by_cost(const std::vector<double>& costs, double before,
                                                     int chunks) {
  const std::size_t n = costs.size(), parts = static_cast<std::size_t>(chunks);
  if (chunks < 1 || parts > std::max<std::size_t>(n, 1))
    refuse<usage_error>(
        {"weft: pipeline: ", chunks, " chunks for the ", n,
         " blocks of the model: expected at most one chunk per block (the blocks of a repeat)"});
  std::vector<double> sum(n + 1, before);  // sum[i]: cost of the first i blocks
  for (std::size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + costs[i];
  // best[c][i]: the minimal largest chunk cost of the first i blocks in c + 1 chunks; cut[c][i]: where the
  // last of these chunks begins.
  std::vector<std::vector<double>> best(parts, std::vector<double>(n + 1, INFINITY));
  std::vector<std::vector<std::size_t>> cut(parts, std::vector<std::size_t>(n + 1, 0));
  for (std::size_t i = 1; i <= n; ++i) best[0][i] = sum[i];
  for (std::size_t c = 1; c < parts; ++c)
    for (std::size_t i = c + 1; i <= n; ++i)
      for (std::size_t k = c; k < i; ++k)
        if (const double largest = std::max(best[c - 1][k], sum[i] - sum[k]); largest < best[c][i]) {
          best[c][i] = largest;
          cut[c][i] = k;
        }
  std::vector<block_range> ranges(parts);
  std::size_t end = n;
  for (std::size_t c = parts; c-- > 0;) {
    ranges[c] = {static_cast<index_t>(cut[c][end]), static_cast<index_t>(end)};
    end = cut[c][end];
  }
  return ranges;
}

}  // namespace parallel
}  // namespace weft
