// SPDX-License-Identifier: MIT
// Measures the figures of this machine for planner::cluster.
//
//   planner::cluster c{.ranks = 4, .memory = 8e9, .device = planner::measured_rates(default_device())};
//   c.within = planner::measured_link(ranks);
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include <weft/op/attention.hpp>
#include <weft/op/contraction.hpp>
#include <weft/op/functions.hpp>
#include <weft/planner/cluster.hpp>
#include <weft/run/eval.hpp>
#include <weft/tensor/create.hpp>

namespace weft::planner {

namespace detail {

/// The shortest time of several calls of f(), in seconds, after a warm-up call.
template <class F>
double least_seconds(F f) {
  using clock = std::chrono::steady_clock;
  const auto seconds_since = [](clock::time_point t) {
    return std::chrono::duration<double>(clock::now() - t).count();
  };
  double least = 1e300;
  f();
  const clock::time_point begin = clock::now();
  for (int i = 0; i < 3 || (i < 1000 && seconds_since(begin) < 0.1); ++i) {
    const clock::time_point start = clock::now();
    f();
    least = std::min(least, seconds_since(start));
  }
  return std::max(least, 1e-9);
}

/// Operations per second of products, and of attention, in dtype T.
template <element T>
double rate_of_products(context& c, index_t n) {
  const tensor<T, extents<dyn, dyn>> x(full<T>(extents<dyn, dyn>{n, n}, 0.5f, c.where()));
  const auto seconds = least_seconds([&] {
    const auto y = eval(matmul(x, x), c);
    c.where()->synchronize();
  });
  return 2 * static_cast<double>(n) * static_cast<double>(n * n) / seconds;
}
template <element T>
double rate_of_attention(context& c, index_t positions) {
  constexpr index_t heads = 8, features = 64;
  const tensor<T, extents<1, dyn, heads, features>> x(
      full<T>(extents<1, dyn, heads, features>{1, positions, heads, features}, 0.5f, c.where()));
  const auto seconds = least_seconds([&] {
    const auto y = eval(attention<causal>(x, x, x), c);
    c.where()->synchronize();
  });
  return 2 * static_cast<double>(heads * features) * static_cast<double>(positions * positions) / seconds;
}

}  // namespace detail

/// The rates that a device achieves, measured by products in f32 and bf16 and attention of `n` rows and
/// columns, by kernels that read and write more than its caches hold, and by a small kernel. Attention is
/// measured in bf16 on GPUs and in f32 elsewhere. Takes about a second.
inline device_rates measured_rates(const device& where, index_t n = 1024) {
  context c(where);
  device_rates r{.is_gpu = !where->host_accessible()};
  r.products = detail::rate_of_products<float>(c, n);
  r.narrow_products = detail::rate_of_products<bfloat16>(c, n);
  r.attention = r.is_gpu ? detail::rate_of_attention<bfloat16>(c, n) : detail::rate_of_attention<float>(c, n);
  const auto add_one = [&](index_t elements) {
    const tensor<float, extents<dyn>> x(full<float>(extents<dyn>{elements}, 1.0f, where));
    return detail::least_seconds([&] {
      const auto y = eval(x + 1.0f, c);
      where->synchronize();
    });
  };
  r.launch = add_one(8);
  const index_t many = std::max<index_t>(16 * n * n, 8);
  r.bytes = 8 * static_cast<double>(many) / std::max(add_one(many) - r.launch, 1e-9);
  return r;
}

/// The link between these ranks, from the times of an all_reduce of few and of many bytes. Collective; all
/// ranks return the figures of rank 0. Throws value_error for fewer than 1024 bytes.
inline link measured_link(communicator& ranks, index_t bytes = index_t{16} << 20) {
  if (bytes < 1024)
    refuse<value_error>({"weft: planner: measured_link: ", bytes, " bytes: expected 1024 or more"});
  if (ranks.size() < 2) return {};
  const auto seconds_of = [&](index_t count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    double least = 1e300;
    for (int i = 0; i < 20; ++i) {  // the same number on all ranks
      ranks.barrier().wait();
      const auto start = std::chrono::steady_clock::now();
      ranks.all_reduce(x).wait();
      least =
          std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least;
  };
  const double n = ranks.size(), few = seconds_of(1), many = seconds_of(bytes / 4);
  double found[] = {few / (2 * std::max(std::ceil(std::log2(n)), 1.0)),
                    2 * (n - 1) / n * static_cast<double>(bytes) / std::max(many - few, 1e-9)};
  ranks.broadcast(std::span(found)).wait();
  return {found[0], found[1]};
}

}  // namespace weft::planner
