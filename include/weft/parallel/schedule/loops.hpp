// SPDX-License-Identifier: MIT
// Schedules with undivided backward steps: layer-wise, GPipe, 1F1B and its interleaved form, breadth-first,
// PipeDream.
//
// Chunk c is on stage c mod stages. Every chunk executes its backward steps in ascending order of
// micro-batches, so gradients are accumulated in the same order as on a single rank. Cost: linear in the
// number of steps, which is also what they allocate.
//
//   auto s = pipeline::interleaved_1f1b(4, 8, 2);      // 4 stages, 8 micro-batches, 2 chunks per stage
#pragma once

#include <algorithm>

#include <weft/parallel/schedule/schedule.hpp>

namespace weft::pipeline {

namespace detail {
[[noreturn]] inline void refuse_size(const char* name, const char* field, int value,
                                     const std::string& must) {
  throw value_error(std::string(name) + ": " + field + " is " + std::to_string(value) + ": must be " + must);
}

enum class placement : std::uint8_t { loop, v };
/// A schedule without steps, with `chunks` chunks on each stage, placed round-robin or in a V (down the
/// stages and up again).
constexpr schedule empty_schedule(const char* name, int stages, int micro_batches, int chunks, placement p) {
  if (stages < 1) refuse_size(name, "stages", stages, "1 or more");
  if (micro_batches < 1) refuse_size(name, "micro_batches", micro_batches, "1 or more");
  if (chunks < 1) refuse_size(name, "chunks", chunks, "1 or more");
  const std::int64_t most = std::int64_t{1} << 24, cells = std::int64_t{stages} * chunks;
  if (stages > most || chunks > most || cells > most || cells * micro_batches > most)
    refuse_size(name, "micro_batches", micro_batches, "fewer: a schedule has up to 2^24 forwards");
  schedule s;
  s.micro_batches = micro_batches;
  s.stage_of.assign(static_cast<std::size_t>(stages) * static_cast<std::size_t>(chunks), 0);
  for (int c = 0; c < s.chunks(); ++c) {
    const int k = c % stages;
    at(s.stage_of, c) = p == placement::v && (c / stages) % 2 == 1 ? stages - 1 - k : k;
  }
  s.steps.assign(static_cast<std::size_t>(stages), {});
  return s;
}

/// 1F1B with `total` steps of each direction: `warm_up` forward steps, then forward and backward steps in
/// turn, then the remaining backward steps. `f(k)` and `b(k)` are the k-th steps of their kind.
constexpr void alternate(std::vector<step>& list, int total, int warm_up, auto f, auto b) {
  list.reserve(2 * static_cast<std::size_t>(total));
  warm_up = std::min(warm_up, total);
  for (int k = 0; k < warm_up; ++k) list.push_back(f(k));
  for (int k = 0; k < total; ++k) {
    if (warm_up + k < total) list.push_back(f(warm_up + k));
    list.push_back(b(k));
  }
}

constexpr schedule in_whole_passes(const char* name, int stages, int micro_batches, int chunks) {
  schedule s = empty_schedule(name, stages, micro_batches, chunks, placement::loop);
  for (int stage = 0; stage < stages; ++stage) {
    auto& list = at(s.steps, stage);
    list.reserve(2 * static_cast<std::size_t>(chunks) * static_cast<std::size_t>(micro_batches));
    for (int c = stage; c < s.chunks(); c += stages)
      for (int j = 0; j < micro_batches; ++j) list.push_back({step_kind::forward, c, j});
    for (int c = s.chunks() - stages + stage; c >= 0; c -= stages)
      for (int j = 0; j < micro_batches; ++j) list.push_back({step_kind::backward, c, j});
  }
  return s;
}
}  // namespace detail

/// Model parallelism without a pipeline: one micro-batch; one stage works at a time.
constexpr schedule layer_wise(int stages) { return detail::in_whole_passes("layer_wise", stages, 1, 1); }

/// GPipe (Huang et al., 2019): all forward steps, then all backward steps.
constexpr schedule gpipe(int stages, int micro_batches) {
  return detail::in_whole_passes("gpipe", stages, micro_batches, 1);
}

/// Breadth-first over looped chunks (Lamy-Poirier, 2022): all micro-batches pass through one chunk of a stage
/// before the next, and in reverse order of chunks in the backward pass. Accepts any number of micro-batches.
constexpr schedule breadth_first(int stages, int micro_batches, int chunks) {
  return detail::in_whole_passes("breadth_first", stages, micro_batches, chunks);
}

/// 1F1B without interleaving (PipeDream-flush; Narayanan et al., 2021): the bubble of GPipe with fewer
/// activations.
constexpr schedule one_f_one_b(int stages, int micro_batches) {
  schedule s = detail::empty_schedule("one_f_one_b", stages, micro_batches, 1, detail::placement::loop);
  for (int stage = 0; stage < stages; ++stage)
    detail::alternate(
        detail::at(s.steps, stage), micro_batches, stages - 1 - stage,
        [&](int k) { return step{step_kind::forward, stage, k}; },
        [&](int k) { return step{step_kind::backward, stage, k}; });
  return s;
}

/// PipeDream (Narayanan et al., 2019): the order of 1F1B, with an update after each backward step instead of
/// a flush at the end. One call describes a whole run. Stage s holds up to stages - s versions of its
/// parameters.
constexpr schedule pipedream(int stages, int micro_batches) {
  schedule s = one_f_one_b(stages, micro_batches);
  s.flush = false;
  return s;
}

/// Interleaved 1F1B (Narayanan et al., 2021): groups of `stages` micro-batches pass through each chunk of a
/// stage in turn. Throws value_error unless `stages` divides `micro_batches`.
constexpr schedule interleaved_1f1b(int stages, int micro_batches, int chunks) {
  schedule s =
      detail::empty_schedule("interleaved_1f1b", stages, micro_batches, chunks, detail::placement::loop);
  if (micro_batches % stages != 0)
    detail::refuse_size("interleaved_1f1b", "micro_batches", micro_batches,
                        "a multiple of the stages, " + std::to_string(stages));
  const int group = stages * chunks;
  const auto micro_batch = [&](int k) { return k / group * stages + k % stages; };
  for (int stage = 0; stage < stages; ++stage)
    detail::alternate(
        detail::at(s.steps, stage), micro_batches * chunks, 2 * (stages - 1 - stage) + (chunks - 1) * stages,
        [&](int k) {
          return step{step_kind::forward, k % group / stages * stages + stage, micro_batch(k)};
        },
        [&](int k) {
          return step{step_kind::backward, (chunks - 1 - k % group / stages) * stages + stage,
                      micro_batch(k)};
        });
  return s;
}

}  // namespace weft::pipeline
