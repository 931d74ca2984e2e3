// SPDX-License-Identifier: MIT
// What the parts of train_gpt share: the main program, the units that train, and what all units do alike.
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

/// The device that was asked for, of one of the ranks of this machine; that it is missing is a mistake of the
/// user's.
weft::device device_of(const settings& s, int local_rank);
/// With `--comm nccl`, the ranks of `host` over NCCL, each with its device; else null. Collective.
std::unique_ptr<weft::communicator> over_nccl(const settings& s, weft::communicator& host,
                                              const weft::device& where);
/// What `--device auto` stands for on this machine, after saying why it is not a GPU; other names as they
/// are.
std::string resolved_device(const std::string& name);
/// What `--list-devices` prints.
std::string devices();

/// A batch whose loss was not finite, to look at once more.
struct suspect {
  weft::text_samples::tokens inputs, labels;
  weft::context::random_state randomness;
};
/// What left the finite numbers first, found on the host with a copy of the model (train_gpt_inspect.hpp).
template <class Model>
std::string look_again(const settings& s, const weft::state_dict_t& whole, const suspect& batch);
extern template std::string look_again<gpt2::model<>>(const settings&, const weft::state_dict_t&,
                                                      const suspect&);

/// What a rank will hold, send and do in a steady step.
struct forecast {
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  weft::index_t sent_bytes = 0;
  weft::device_work work;
};

/// How a unit's ranks hold the model: each holds all blocks; stages of a pipeline hold some; the backward
/// steps of these have two parts; ranks divide the layers of stages, and activations by positions, too;
/// ranks divide positions of sequences beside layers and stages, by either kind of attention; ranks divide
/// experts.
enum class model_division {
  none,
  stages,
  stages_and_backward,
  layers,
  layers_and_positions,
  ring,
  ulysses,
  experts
};

/// The mesh of all ranks.
weft::mesh_sizes mesh_of(const settings& s, int ranks);
/// The schedule of a pipeline.
weft::pipeline::schedule schedule_of(const settings& s, int stages, int micro_batches);
/// Which units can train with these settings.
model_division model_division_of(const settings& s);
/// What depends on the number of ranks is set. Throws usage_error where settings do not go together.
settings resolved(settings s, int ranks);
/// Draws the measured times of a step.
void write_timeline(const settings& s, weft::index_t step, const weft::pipeline::timing& t);

/// A unit that is compiled into this program (train_gpt_variant.cpp).
struct unit {
  std::string precision, recompute;
  model_division divides;
  int (*train)(const settings&, weft::communicator&);  // as one of the ranks; the exit code
  /// Without a device, in milliseconds. Whether the device is to hold messages: backend::holds_messages.
  forecast (*forecast_of)(const settings&, int rank, int ranks, bool holds_messages);
};
inline std::vector<unit>& units() {
  static std::vector<unit> all;
  return all;
}
/// Whether a unit can train with these settings, but for the way to recompute.
inline bool fits(const unit& u, const settings& s) {
  return u.precision == s.precision && u.divides == model_division_of(s);
}
/// The error if no unit can.
weft::usage_error not_built(const settings& s);

/// What the first line of the log says of a rank.
struct run_facts {
  weft::index_t parameters = 0;
  const char *device = "", *comm = "";
  int threads = 1, ranks = 1;
  forecast expected{};
  std::vector<std::size_t> stage_peaks{};     // predicted, of the first rank of each stage
  std::vector<weft::index_t> chunk_blocks{};  // of a pipeline
};
std::string first_line(const settings& s, const run_facts& of);

/// What the log says of a step on a rank.
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

/// A number as JSON knows it: null unless it is finite.
std::string json_number(double x);

/// `s` with the way to recompute that costs least and stays within --memory-limit on every rank. Where there
/// is none, an error that says which other settings would fit.
settings within_memory(const settings& s, int ranks);

/// After a device had no more memory: other settings that hold at most so many bytes, as a text to append.
std::string what_would_fit(settings s, int ranks, std::size_t bytes);

}  // namespace job
