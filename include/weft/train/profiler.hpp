// SPDX-License-Identifier: MIT
// A profiler: where the time of training goes, by op, and as a trace for chrome://tracing and Perfetto.
//
//   profiler p;
//   for (int s = 0; s < 10; ++s) run.step(...);
//   p.stop();
//   std::cout << p.table();
//   p.save_trace("trace.json");
//
// It sees the ranges of base/record_function.hpp (steps, passes, operations of ranks, and those of the
// program's own) and every op: a fused kernel, a product, a native op or a copy (run/step_observer.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <weft/base/record_function.hpp>
#include <weft/comm/communicator.hpp>

namespace weft {

/// What a profiler collects.
struct profiler_options {
  bool ops = true;  // ranges of ops, too; about a microsecond each
  /// Wait for the device after each op, so that its range ends when it is computed. Kernels of GPUs are
  /// otherwise measured until they are queued. Without effect on the CPU, which computes at once.
  bool wait_for_devices = false;
  std::size_t most_events = std::size_t{1} << 20;  // that a trace holds, of 24 bytes; sums hold all
};

/// All ranges of one name.
struct profiled_range {
  std::string name;
  std::int64_t count = 0;
  double total_ms = 0, self_ms = 0, longest_ms = 0;  // self: without the ranges inside
  double operations = 0;   // in floating point, of products, convolutions and attention
  std::int64_t bytes = 0;  // of operands and results; of operations of ranks, that were sent
};

/// The fraction of the peak rate that was used. `model`: by the operations of forward and backward passes
/// ("MFU"); `hardware`: with those of recomputation ("HFU"). Operations of attention are counted as if it
/// were not causal.
struct flop_utilization {
  double model = 0, hardware = 0;
};

/// What a table shows.
struct table_options {
  std::size_t rows = 30;
  bool shapes = true;  // a row for each shape of an op; otherwise for each op
};

namespace detail {
struct profile;
}

/// Collects the ranges and ops of all threads from its construction to `stop`. There is one at a time in a
/// process: where ranks are threads, `main` makes it. NVTX,
/// or another sink of ranges, still gets its own.
class profiler {
 public:
  /// Throws usage_error if there is one.
  explicit profiler(profiler_options o = {});
  profiler(const profiler&) = delete;
  profiler& operator=(const profiler&) = delete;
  /// Stops it.
  ~profiler();

  /// Ends the collection; what it has collected stays. Ranges that are open count for nothing.
  void stop();
  /// Forgets what it has collected, for example after warm-up steps.
  void clear();

  /// Time from construction or `clear` to `stop`, or until now.
  double elapsed_ms() const;
  /// All ranges, by name, the largest self time first.
  std::vector<profiled_range> ranges() const;
  /// The sum of these; self times are shares of the time of all threads.
  std::string table(table_options o = {}) const;
  /// For `peak` operations per second of all devices of this process together. Of steps whose graph was
  /// recorded nothing is known.
  flop_utilization utilization(double peak) const;
  /// Time in which a thread waited for other ranks: what communication costs beyond what it overlaps with.
  double exposed_communication_ms() const;

  /// Events of this process, in the Trace Event Format, as process `rank`. Throws io_error if the file cannot
  /// be written.
  void save_trace(const std::string& path, int rank = 0) const;
  /// Events of all ranks in one file, which rank 0 writes; called by all. Their clocks are aligned by a
  /// barrier. Throws comm_error, and io_error on all ranks if the file cannot be written.
  void save_trace(const std::string& path, communicator& ranks) const;

 private:
  /// The events of all threads, or of this one, as JSON objects with commas between. `zero`: the time from
  /// which theirs count.
  std::string events(int rank, std::int64_t zero, bool own_thread) const;
  std::int64_t first_event(bool own_thread) const;

  std::shared_ptr<detail::profile> profile_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/profiler.ipp>
#endif
