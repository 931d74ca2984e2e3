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

/// Calls f(sizes) for every mesh of `ranks` ranks, `sizes` being set up to axis `a`.
template <class F>
void for_each_mesh(mesh_sizes sizes, std::size_t a, int ranks, const mesh_sizes& most, F& f) {
  if (a == std::size(mesh_axes)) {
    if (ranks == 1) f(sizes);
    return;
  }
  for (int n = 1; n <= std::min(ranks, most.of(mesh_axes[a])); ++n) {
    if (ranks % n) continue;
    sizes.of(mesh_axes[a]) = n;
    for_each_mesh(sizes, a + 1, ranks / n, most, f);
  }
}

}  // namespace detail

WEFT_DEFINE std::vector<candidate> candidates(int ranks, index_t batch, const mesh_sizes& most) {
  if (ranks < 1) refuse<value_error>({"weft: planner: candidates: ", ranks, " ranks"});
  if (batch < 1) refuse<value_error>({"weft: planner: candidates: a batch of ", batch, " samples"});
  for (const mesh_axis a : mesh_axes)
    if (most.of(a) < 1)
      refuse<value_error>({"weft: planner: candidates: at most ", most.of(a), " ranks along ", name_of(a)});
  std::vector<candidate> all;
  const auto add = [&](const mesh_sizes& sizes) {
    const index_t of_rank = batch / detail::data_ranks(sizes);
    if (of_rank * detail::data_ranks(sizes) != batch) return;
    for (index_t samples = 1; samples <= of_rank; ++samples)
      if (of_rank % samples == 0) all.push_back({sizes, samples, of_rank / samples});
  };
  detail::for_each_mesh({}, 0, ranks, most, add);
  return all;
}

WEFT_DEFINE forecast forecast_of(const cluster& c, const candidate& way, const traced_job& job) {
  if (way.sizes.ranks() != c.ranks)
    refuse<value_error>({"weft: planner: the mesh ", to_string(way.sizes), " has ", way.sizes.ranks(),
                         " ranks, the cluster ", c.ranks});
  forecast f{.of = way};
  std::vector<step_trace> traces;
  const int stride = way.sizes.stride(mesh_axis::pp);
  for (int stage = 0; stage < way.sizes.pp; ++stage) {
    traced_rank rank(c, stage * stride);
    try {
      job(rank, way);
      traces.push_back(rank.trace());
    } catch (const error& e) {
      f.refused = e.what();
      return f;
    }
    f.peak_bytes = std::max(f.peak_bytes, traces.back().peak_bytes);
    f.sent = std::max(f.sent, traces.back().sent());
  }
  const step_times t = simulate(c, traces);
  f.seconds = t.seconds;
  for (const rank_times& r : t.ranks) {
    f.computing = std::max(f.computing, r.computing);
    f.waiting = std::max(f.waiting, r.waiting);
  }
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
