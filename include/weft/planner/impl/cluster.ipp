// SPDX-License-Identifier: MIT
// Definitions of <weft/planner/cluster.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include <weft/base/config.hpp>
#include <weft/planner/cluster.hpp>

namespace weft::planner {

WEFT_DEFINE cluster checked(cluster c) {
  const auto refuse_field = [](const char* field, double x, const char* expected) {
    refuse<value_error>({"weft: planner: cluster.", field, " is ", x, ": expected ", expected});
  };
  if (c.ranks < 1) refuse_field("ranks", c.ranks, "1 or more");
  if (c.ranks_of_node == 0) c.ranks_of_node = c.ranks;
  if (c.ranks_of_node < 1) refuse_field("ranks_of_node", c.ranks_of_node, "1 or more, or 0 for all ranks");
  if (c.device.narrow_products == 0) c.device.narrow_products = c.device.products;
  const struct {
    const char* field;
    double value;
    bool may_be_0;
  } figures[] = {{"memory", c.memory, true},
                 {"device.products", c.device.products, false},
                 {"device.narrow_products", c.device.narrow_products, false},
                 {"device.attention", c.device.attention, true},
                 {"device.bytes", c.device.bytes, false},
                 {"device.host", c.device.host, true},
                 {"device.launch", c.device.launch, true},
                 {"within.latency", c.within.latency, true},
                 {"within.bytes", c.within.bytes, c.ranks_of_node == 1 || c.ranks == 1},
                 {"between.latency", c.between.latency, true},
                 {"between.bytes", c.between.bytes, c.ranks <= c.ranks_of_node}};
  for (const auto& f : figures)
    if (!(f.value >= 0 && f.value <= std::numeric_limits<double>::max()) || (f.value == 0 && !f.may_be_0))
      refuse_field(f.field, f.value, f.may_be_0 ? "a number of 0 or more" : "a number above 0");
  return c;
}

WEFT_DEFINE double seconds_of(const cluster& c, collective kind, double bytes, std::span<const int> members) {
  const auto n = static_cast<double>(members.size());
  if (members.size() < 2) return 0;
  const bool one_node = is_one_node(c, members);
  const link& slowest = one_node ? c.within : c.between;
  std::ptrdiff_t fewest = std::ssize(members);  // the least number of members on a machine that has any
  for (auto m = members.begin(); m != members.end();) {
    const auto next =
        std::find_if(m, members.end(), [&](int other) { return node_of(c, other) != node_of(c, *m); });
    fewest = std::min(fewest, next - m);
    m = next;
  }
  double rate = slowest.bytes;
  if (!one_node && fewest > 1) rate = std::min(c.within.bytes, static_cast<double>(fewest) * c.between.bytes);
  const double a = slowest.latency, part = (n - 1) / n,
               depth = static_cast<double>(std::bit_width(members.size() - 1));  // ceil(log2 n)
  switch (kind) {
    case collective::all_reduce:
      return std::min(2 * (n - 1) * a + 2 * part * bytes / rate, 2 * depth * a + 2 * bytes / rate);
    case collective::all_gather:
    case collective::reduce_scatter: return (n - 1) * a + part * bytes / rate;
    case collective::broadcast:
    case collective::reduce: return depth * a + bytes / rate;
    case collective::barrier:
    case collective::split: return 2 * depth * a;
    default: return a + bytes / slowest.bytes;
  }
}

}  // namespace weft::planner
