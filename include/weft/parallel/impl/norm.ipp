// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/norm.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/parallel/norm.hpp>
#include <weft/run/joint_launch.hpp>

namespace weft {
namespace parallel {
namespace detail {

WEFT_DEFINE recycled_vector<double> all_row_sums(context& c, const tensor_list& gradients) {
  tensor_list all;
  index_t total = 0;
  for (const auto& g : gradients) {
    const index_t size = g->extents.size(), count = g->extents.order > 1 ? g->extents[0] : size;
    if (size == 0) continue;
    all.push_back(alias_of(*g));
    all.back()->extents = {2, {count, size / count}};
    total += count;
  }
  recycled_vector<double> rows(static_cast<std::size_t>(total));
  if (total == 0) return rows;
  const auto joined = make_state(c.where(), {1, {total}}, dtype::f64);
  runtime::joint_launch together(c);
  index_t first = 0;
  for (const auto& g : all) {
    auto e = sum(square(cast<double>(tensor<float, extents<dyn, dyn>>(g))), dims<-1>);
    const runtime::executable& p = runtime::executable_of<runtime::value_program<decltype(e)>>;
    const runtime::operands o = runtime::operands_of(e);
    tensor_list sums{part_of(*joined, first, {1, {g->extents[0]}})};
    runtime::execute(c, runtime::specialization_of(c, p, runtime::resolve_symbols(p.plan, o.leaves, o.sizes)),
                     o.leaves, o.numbers, sums, {}, {}, &together);
    first += g->extents[0];
  }
  together.launch();
  c.where()->download(rows.data(), joined->memory.data(), rows.size() * sizeof(double));
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
