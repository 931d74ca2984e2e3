// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/norm.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/parallel/norm.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE std::shared_ptr<tensor_state> row_sums(context& c, const std::shared_ptr<tensor_state>& g) {
  const auto rows = alias_of(*g);
  rows->extents = {2, {g->extents.order > 1 ? g->extents[0] : g->extents.size(), 1}};
  rows->extents[1] = g->extents.size() / rows->extents[0];
  return eval(sum(square(cast<double>(tensor<float, extents<dyn, dyn>>(rows))), dims<-1>), c).state();
}

WEFT_DEFINE recycled_vector<double> all_row_sums(context& c, const tensor_list& gradients) {
  tensor_list sums;
  index_t total = 0;
  for (const auto& g : gradients) {
    if (g->extents.size() == 0) continue;
    sums.push_back(row_sums(c, g));
    total += sums.back()->extents.size();
  }
  recycled_vector<double> rows(static_cast<std::size_t>(total));
  if (total == 0) return rows;
  const buffer joined = c.where().allocate(rows.size() * sizeof(double));
  auto* to = static_cast<double*>(joined.data());
  for (const auto& s : sums) {
    copy_elements(*c.where(), dtype::f64, to, s->memory.data(), s->extents.size());
    to += s->extents.size();
  }
  c.where()->download(rows.data(), joined.data(), rows.size() * sizeof(double));
  return rows;
}

WEFT_DEFINE double exact_sum(const recycled_vector<double>& values, communicator& ranks,
                             const comm_options& o) {
  constexpr int bits = 96;
  constexpr std::int64_t not_finite = 1 << 20;
  __extension__ typedef unsigned __int128 wide;
  int exponent = -(1 << 19);
  std::int64_t largest = exponent;
  for (double v : values) {
    if (v > 0 && std::isfinite(v)) std::frexp(v, &exponent);
    largest = std::max<std::int64_t>(largest, std::isfinite(v) ? exponent : not_finite);
  }
  ranks.all_reduce(std::span(&largest, 1), reduction::maximum, o).wait();
  if (largest == not_finite) return std::nan("");
  const int lowest_bit = static_cast<int>(largest) - bits;
  wide total = 0;
  for (double v : values) total += static_cast<wide>(std::ldexp(v, -lowest_bit));
  std::int64_t limbs[4];
  for (int k = 0; k < 4; ++k) limbs[k] = static_cast<std::int64_t>(total >> (32 * k) & 0xffffffffu);
  ranks.all_reduce(std::span(limbs), reduction::sum, o).wait();
  double sum = 0;
  total = 0;
  for (int k = 4; k-- > 0;) total += static_cast<wide>(limbs[k]) << (32 * k);
  for (int k = 4; k-- > 0;)
    sum += std::ldexp(static_cast<double>(static_cast<std::uint32_t>(total >> (32 * k))), 32 * k);
  return std::ldexp(sum, lowest_bit);
}

}  // namespace detail

WEFT_DEFINE double inf_norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                                       const comm_options& o) {
  double largest = 0;
  for (const auto& g : gradients) {
    if (g->extents.size() == 0) continue;
    const double v = eval(amax(abs(flat_view<float>(g))), c).item();
    if (!(v <= largest)) largest = v;  // propagates NaN
  }
  ranks.all_reduce(std::span(&largest, 1), reduction::maximum, o).wait();
  return largest;
}

}  // namespace parallel
}  // namespace weft
