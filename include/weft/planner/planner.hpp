// SPDX-License-Identifier: MIT
// Which mesh is best: memory, traffic and time of a training step for every mesh of a cluster, before there
// is one.
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
  index_t samples = 1;        // of a micro-batch
  index_t micro_batches = 1;  // of a step on each rank
};

/// All ways to divide a step of `batch` samples among `ranks` ranks: every mesh whose axes have at most as
/// many ranks as in `most`, and every size of micro-batches that divides the samples of a data rank. Ranks
/// along dp, fsdp and ep have different samples. Throws value_error if a number is less than 1.
std::vector<candidate> candidates(int ranks, index_t batch, const mesh_sizes& most);

/// What a step is expected to take.
struct forecast {
  candidate of{};
  double seconds = 0;          // of a step
  double computing = 0;        // seconds, of the rank that computes longest
  double waiting = 0;          // seconds, of the rank that waits longest
  std::size_t peak_bytes = 0;  // of the rank that holds most
  index_t sent = 0;            // bytes, of the stage that sends most
  bool fits = false;           // in the memory of a rank
  std::string refused{};       // why the model cannot be trained so; empty if it can
};

/// A training step of one rank: makes a model on rank.where(), binds it to rank.ranks() and calls rank.step.
using traced_job = std::function<void(traced_rank& rank, const candidate& of)>;

/// Of one way to divide a step. The first rank of each stage of a pipeline stands for the others: it has as
/// many rows of parameters as any, and sends fewer by a row or less of each where they do not divide evenly.
/// Where groups along an axis are on one machine for some ranks and on several for others, all ranks are
/// traced. What `job` throws becomes `refused`, as does ranks that wait for each other. Throws value_error if
/// a figure of the cluster is missing, the mesh has another number of ranks, or there are no samples, and
/// usage_error if the step has not used rank.where().
forecast forecast_of(const cluster& c, const candidate& way, const traced_job& job);

/// Of all ways: those that fit, the fastest first; then those that do not, the smallest first; then those
/// that are refused. Cost: a step of the job for every stage of every candidate, without computing.
std::vector<forecast> plan(const cluster& c, std::span<const candidate> all, const traced_job& job);

/// A table, a line for each forecast, of at most `most` lines.
std::string to_string(std::span<const forecast> all, std::size_t most = 10);

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/planner.ipp>
#endif
