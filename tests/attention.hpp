// SPDX-License-Identifier: MIT
// The derivative of attention by its formula, in double precision.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "oracle.hpp"

namespace weft::test {

/// The cotangents of q, k and v, given the result's, by the formula of softmax's derivative.
inline std::array<oracle::array, 3> cotangents(bool hides, index_t first,
                                               const std::array<oracle::array, 3>& of,
                                               const oracle::array& g) {
  const auto& [q, k, v] = of;
  const shape &s = q.extents, &of_keys = k.extents;
  const index_t features = s[3];
  const double scale = 1 / std::sqrt(static_cast<double>(features));
  std::array<oracle::array, 3> d{oracle::zeros(q.type, s), oracle::zeros(q.type, of_keys),
                                 oracle::zeros(q.type, of_keys)};
  for (index_t b = 0; b < s[0]; ++b)
    for (index_t h = 0; h < s[2]; ++h)
      for (index_t i = 0; i < s[1]; ++i) {
        const auto query = [&](index_t f) {
          return static_cast<std::size_t>(((b * s[1] + i) * s[2] + h) * features + f);
        };
        const auto key = [&](index_t j, index_t f) {
          const index_t head = h * of_keys[2] / s[2];
          return static_cast<std::size_t>(((b * of_keys[1] + j) * of_keys[2] + head) * features + f);
        };
        const auto product = [&](const oracle::array& x, const oracle::array& y, index_t j) {
          double total = 0;
          for (index_t f = 0; f < features; ++f) total += x.f[query(f)] * y.f[key(j, f)];
          return total;
        };
        const index_t seen = hides ? std::min(first + i + 1, of_keys[1]) : of_keys[1];
        std::vector<double> weight, slope;
        double sum = 0, mean = 0, top = -std::numeric_limits<double>::infinity();
        for (index_t j = 0; j < seen; ++j) top = std::max(top, product(q, k, j) * scale);
        for (index_t j = 0; j < seen; ++j)
          sum += weight.emplace_back(std::exp(product(q, k, j) * scale - top));
        for (index_t j = 0; j < seen; ++j)
          mean += (weight[static_cast<std::size_t>(j)] /= sum) * slope.emplace_back(product(g, v, j));
        for (index_t j = 0; j < seen; ++j) {
          const double w = weight[static_cast<std::size_t>(j)],
                       of_score = w * (slope[static_cast<std::size_t>(j)] - mean) * scale;
          for (index_t f = 0; f < features; ++f) {
            d[0].f[query(f)] += of_score * k.f[key(j, f)];
            d[1].f[key(j, f)] += of_score * q.f[query(f)];
            d[2].f[key(j, f)] += w * g.f[query(f)];
          }
        }
      }
  return d;
}

}  // namespace weft::test
