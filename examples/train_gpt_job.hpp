// SPDX-License-Identifier: MIT
// Declarations that the parts of train_gpt share: the main program, the units that train, and common code.
#pragma once

#include <atomic>
#include <csignal>

#include <weft/comm/communicator.hpp>
#include <weft/device/counting.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/train/text.hpp>
#include <weft/weft.hpp>

#include "train_gpt_settings.hpp"

namespace job {

extern std::atomic<std::size_t> allocations;  // since the program began
extern volatile std::sig_atomic_t interrupted;

/// The requested device, for one of this machine's ranks. Throws usage_error if it is missing.
weft::device device_of(const settings& s, int local_rank);
/// With `--comm nccl`, the ranks of `host` over NCCL, each with its device; otherwise null. Collective.
std::unique_ptr<weft::communicator> over_nccl(const settings& s, weft::communicator& host,
                                              const weft::device& where);
/// The device that `--device auto` selects on this machine; prints why if it is not a GPU. Other names are
/// returned unchanged.
std::string resolved_device(const std::string& name);
/// The output of `--list-devices`.
std::string devices();

/// A batch whose loss was not finite, to be computed again.
struct suspect {
  weft::text_samples::tokens inputs, labels;
  weft::context::random_state randomness;
};
/// The first op with a non-finite result, found on the host with a copy of the model (train_gpt_inspect.hpp).
template <class Model>
std::string look_again(const settings& s, const weft::state_dict_t& whole, const suspect& batch);
extern template std::string look_again<gpt2::model<>>(const settings&, const weft::state_dict_t&,
                                                      const suspect&);

/// The memory, traffic and work of a rank in a steady-state step.
struct forecast {
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  weft::index_t sent_bytes = 0;
  weft::device_work work;
};

/// How a unit's ranks hold the model.
enum class model_division {
  none,                  // every rank holds all blocks
  stages,                // a stage of a pipeline holds some blocks
  stages_and_backward,   // likewise, with backward passes in two parts
  layers,                // the layers of stages are sharded
  layers_and_positions,  // likewise, and activations are sharded by positions
  ring,                  // positions of sequences are sharded, too, with ring attention
  ulysses,               // or with Ulysses attention
  experts                // experts are sharded
};

/// The mesh of all ranks.
weft::mesh_sizes mesh_of(const settings& s, int ranks);
/// The schedule of a pipeline.
weft::pipeline::schedule schedule_of(const settings& s, int stages, int micro_batches);
/// Which units can train with these settings.
model_division model_division_of(const settings& s);
/// `s` with the settings that depend on the number of ranks. Throws usage_error if settings cannot be
/// combined.
settings resolved(settings s, int ranks);
/// Draws the measured times of a step.
void write_timeline(const settings& s, weft::index_t step, const weft::pipeline::timing& t);

/// A training unit that is compiled into this program (train_gpt_variant.cpp).
struct unit {
  std::string precision, recompute;
  model_division divides;
  int (*train)(const settings&, weft::communicator&);  // as one of the ranks; returns the exit code
  /// Takes milliseconds and no device. `holds_messages`: backend::holds_messages of the device to train on.
  forecast (*forecast_of)(const settings&, int rank, int ranks, bool holds_messages);
};
inline std::vector<unit>& units() {
  static std::vector<unit> all;
  return all;
}
/// Whether a unit can train with these settings, apart from how it recomputes.
inline bool fits(const unit& u, const settings& s) {
  return u.precision == s.precision && u.divides == model_division_of(s);
}
/// The error if no unit can train with these settings.
weft::usage_error not_built(const settings& s);

/// The contents of the first line of a rank's log.
struct run_facts {
  weft::index_t parameters = 0;
  const char *device = "", *comm = "";
  int threads = 1, ranks = 1;
  forecast expected{};
  std::vector<std::size_t> stage_peaks{};     // predicted, of the first rank of each stage
  std::vector<weft::index_t> chunk_blocks{};  // of a pipeline
};
std::string first_line(const settings& s, const run_facts& of);

/// The contents of the log's line about a step on a rank.
struct step_facts {
  weft::index_t step = 0, tokens = 0;
  weft::step_result result{};
  double lr = 0, ms = 0;
  weft::memory_figures memory{};
  std::size_t allocations = 0;
  int rank = 0, ranks = 1;
  weft::index_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
};
std::string step_line(const settings& s, const step_facts& of);

/// A number in JSON: null if it is not finite.
std::string json_number(double x);

/// `s` with the cheapest way to recompute that stays within --memory-limit on every rank. If there is none,
/// throws an error that says which other settings would fit.
settings within_memory(const settings& s, int ranks);

/// Other settings that need at most `bytes`, as text to append to a device's out-of-memory error.
std::string what_would_fit(settings s, int ranks, std::size_t bytes);

}  // namespace job
