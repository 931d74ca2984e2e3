// SPDX-License-Identifier: MIT
// Definitions of <weft/planner/planner.hpp>.
#pragma once

#include <algorithm>
#include <map>
#include <tuple>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/planner/planner.hpp>

namespace weft::planner {
namespace detail {

inline int data_ranks(const mesh_sizes& s) { return s.dp * s.fsdp * s.ep; }

inline std::vector<index_t> divisors(index_t n) {
  std::vector<index_t> all, large;
  for (index_t d = 1; d <= n / d; ++d) {
    if (n % d) continue;
    all.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  all.insert(all.end(), large.rbegin(), large.rend());
  return all;
}

/// Calls f(sizes) for every mesh of `ranks` ranks; `sizes` is set for the axes before `a`.
template <class F>
void for_each_mesh(mesh_sizes sizes, std::size_t a, int ranks, const mesh_sizes& most, F& f) {
  if (a == std::size(mesh_axes)) {
    if (ranks == 1) f(sizes);
    return;
  }
  for (const index_t n : divisors(ranks)) {
    if (n > most.of(mesh_axes[a])) break;
    sizes.of(mesh_axes[a]) = static_cast<int>(n);
    for_each_mesh(sizes, a + 1, ranks / static_cast<int>(n), most, f);
  }
}

/// Whether all groups along an axis are placed on machines alike: each within one machine, or all on the same
/// number of machines.
inline bool is_alike(const mesh_sizes& sizes, int ranks_of_node) {
  const auto divides = [](int a, int b) { return b % a == 0; };
  return ranks_of_node == 0 || std::all_of(std::begin(mesh_axes), std::end(mesh_axes), [&](mesh_axis a) {
           const int from = sizes.stride(a), to = from * sizes.of(a);
           return from == to || divides(to, ranks_of_node) ||
                  (divides(ranks_of_node, to) &&
                   (divides(from, ranks_of_node) || divides(ranks_of_node, from)));
         });
}

}  // namespace detail

WEFT_DEFINE std::vector<candidate> candidates(int ranks, index_t batch, const mesh_sizes& most) {
  if (ranks < 1) refuse<value_error>({"weft: planner: candidates: ", ranks, " ranks"});
  if (batch < 1) refuse<value_error>({"weft: planner: candidates: a batch of ", batch, " samples"});
  for (const mesh_axis a : mesh_axes)
    if (most.of(a) < 1)
      refuse<value_error>({"weft: planner: candidates: the limit must be 1 or more, not ", most.of(a),
                           " ranks along ", name_of(a)});
  std::vector<candidate> all;
  const auto add = [&](const mesh_sizes& sizes) {
    const index_t of_rank = batch / detail::data_ranks(sizes);
    if (of_rank * detail::data_ranks(sizes) != batch) return;
    for (const index_t samples : detail::divisors(of_rank))
      all.push_back({sizes, samples, of_rank / samples});
  };
  detail::for_each_mesh({}, 0, ranks, most, add);
  return all;
}

WEFT_DEFINE forecast forecast_of(const cluster& c, const candidate& way, const traced_job& job) {
  if (way.sizes.ranks() != c.ranks)
    refuse<value_error>({"weft: planner: the mesh ", to_string(way.sizes), " has ", way.sizes.ranks(),
                         " ranks, but the cluster has ", c.ranks});
  if (way.samples < 1 || way.micro_batches < 1)
    refuse<value_error>(
        {"weft: planner: ", way.micro_batches, " micro-batches of ", way.samples, " samples"});
  checked(c);
  forecast f{.of = way};
  const int apart = detail::is_alike(way.sizes, c.ranks_of_node) ? way.sizes.stride(mesh_axis::pp) : 1;
  try {
    std::vector<step_trace> traces;
    for (int r = 0; r < c.ranks; r += apart) {
      traced_rank rank(c, r);
      job(rank, way);
      traces.push_back(rank.trace());
      f.peak_bytes = std::max(f.peak_bytes, traces.back().peak_bytes);
      f.sent = std::max(f.sent, traces.back().sent());
    }
    const step_times t = simulate(c, traces);
    f.seconds = t.seconds;
    for (const rank_times& r : t.ranks) {
      f.computing = std::max(f.computing, r.computing);
      f.waiting = std::max(f.waiting, r.waiting);
    }
  } catch (const std::exception& e) {
    f.refused = e.what();
    return f;
  }
  if (f.computing == 0)
    throw usage_error(
        "weft: planner: the step computed nothing on rank.where(): create the model and its batches there");
  f.fits = c.memory == 0 || static_cast<double>(f.peak_bytes) <= c.memory;
  return f;
}

WEFT_DEFINE std::vector<forecast> plan(const cluster& c, std::span<const candidate> all,
                                       const traced_job& job) {
  const auto rank_of = [](const forecast& f) {
    return std::tuple(!f.refused.empty(), !f.fits, f.fits ? f.seconds : static_cast<double>(f.peak_bytes));
  };
  std::multimap<std::tuple<bool, bool, double>, forecast> sorted;  // equal ones in the order of `all`
  for (const candidate& way : all) {
    forecast f = forecast_of(c, way, job);
    const auto rank = rank_of(f);
    sorted.emplace(rank, std::move(f));
  }
  std::vector<forecast> found;
  for (auto& [rank, f] : sorted) found.push_back(std::move(f));
  return found;
}

WEFT_DEFINE std::string to_string(std::span<const forecast> all, std::size_t most) {
  constexpr std::size_t mesh_width = 36, width = 12;
  const auto cell = [](std::string text, std::size_t columns) {
    if (text.size() < columns) text.insert(0, columns - text.size(), ' ');
    return text;
  };
  std::string text = "mesh" + std::string(mesh_width - 4, ' ');
  for (const char* head : {"samples x", "step ms", "computing", "waiting", "peak GB", "sent GB"})
    text += cell(head, width);
  text += "\n";
  for (const forecast& f : all.first(std::min(most, all.size()))) {
    std::string mesh = to_string(f.of.sizes);
    mesh.resize(std::max(mesh.size(), mesh_width), ' ');
    text += mesh + cell(std::to_string(f.of.samples) + " x " + std::to_string(f.of.micro_batches), width);
    if (!f.refused.empty()) text += "  " + f.refused.substr(0, f.refused.find('\n'));
    else {
      for (const double x : {1e3 * f.seconds, 1e3 * f.computing, 1e3 * f.waiting})
        text += cell(weft::detail::fixed(x, 1), width);
      for (const double x : {static_cast<double>(f.peak_bytes), static_cast<double>(f.sent)})
        text += cell(weft::detail::fixed(1e-9 * x, 2), width);
      if (!f.fits) text += "  does not fit";
    }
    text += "\n";
  }
  return text;
}

}  // namespace weft::planner
