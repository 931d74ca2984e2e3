// SPDX-License-Identifier: MIT
// Finds the best mesh: predicts memory, traffic and time of a training step for every mesh of a cluster,
// without the cluster.
//
//   const auto job = [&](planner::traced_rank& r, const planner::candidate& m) {
//     auto model = gpt::create(config, r.where().deferred());
//     adamw optimizer;
//     auto run = bind<plan>(model, optimizer, r.ranks(), m.sizes);
//     const tensor<std::int32_t, extents<dyn, dyn>> words(shape{2, {m.samples, 1024}}, r.where());
//     r.step([&] { run.step(m.micro_batches, [&](index_t) { return model.loss(words, words, 1024); }); });
//   };
//   const auto all = planner::plan(c, planner::candidates(64, 512, {.pp = 8, .dp = 64, .tp = 8}), job);
//   std::printf("%s", planner::to_string(all).c_str());
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <weft/parallel/mesh.hpp>
#include <weft/planner/simulate.hpp>

namespace weft::planner {

/// A way to divide a step.
struct candidate {
  mesh_sizes sizes{};
  index_t samples = 1;        // per micro-batch
  index_t micro_batches = 1;  // per step on each rank
};

/// All ways to divide a step of `batch` samples among `ranks` ranks: every mesh whose axes have at most the
/// sizes in `most`, with every micro-batch size that divides the number of samples per data rank. Ranks along
/// dp, fsdp and ep have different samples. Throws value_error if a number is less than 1.
std::vector<candidate> candidates(int ranks, index_t batch, const mesh_sizes& most);

/// The predicted cost of a step.
struct forecast {
  candidate of{};
  double seconds = 0;          // time of a step
  double computing = 0;        // seconds, on the rank that computes longest
  double waiting = 0;          // seconds, on the rank that waits longest
  std::size_t peak_bytes = 0;  // on the rank that needs most memory
  index_t sent = 0;            // bytes, by the stage that sends most
  bool fits = false;           // whether it fits in the memory of a rank
  std::string refused{};       // why the model cannot be trained this way; empty if it can
};

/// A training step of one rank: makes a model on rank.where(), binds it to rank.ranks() and calls rank.step.
using traced_job = std::function<void(traced_rank& rank, const candidate& of)>;

/// The forecast for one way to divide a step. The first rank of each pipeline stage represents the others: it
/// has at least as many rows of parameters as any other rank, and, if rows do not divide evenly, sends at
/// most one row less of each parameter. If groups along an axis are on one machine for some ranks and on
/// several for others, all ranks are traced. Exceptions of `job`, and ranks that would wait for each other,
/// are reported in `refused`. Throws value_error if a figure of the cluster is missing, the mesh has a
/// different number of ranks, or there are no samples; usage_error if the step has not used rank.where().
forecast forecast_of(const cluster& c, const candidate& way, const traced_job& job);

/// The forecasts for all candidates: those that fit, the fastest first; then those that do not fit, the
/// smallest first; then those that are refused. Cost: one step of the job per stage of every candidate,
/// without computing.
std::vector<forecast> plan(const cluster& c, std::span<const candidate> all, const traced_job& job);

/// A table with one line per forecast and at most `most` lines.
std::string to_string(std::span<const forecast> all, std::size_t most = 10);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/planner.ipp>
#endif
