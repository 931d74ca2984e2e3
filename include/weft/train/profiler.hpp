// SPDX-License-Identifier: MIT
// A profiler: where the time of training goes, by op, and as a trace for chrome://tracing and Perfetto.
//
//   profiler p;
//   for (int s = 0; s < 10; ++s) run.step(...);
//   p.stop();
//   std::cout << p.table();
//   p.save_trace("trace.json");
//
// It records the ranges of base/record_function.hpp (steps, passes, communication, and the program's own) and
// every op: a fused kernel, a product, a native op or a copy (run/step_observer.hpp).
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
  /// Wait for the device after each op, so that its range ends when the op has been computed; otherwise
  /// ranges of GPU kernels end when the kernel is queued. No effect on the CPU, which computes synchronously.
  bool wait_for_devices = false;
  std::size_t most_events = std::size_t{1} << 20;  // in a trace, 24 bytes each; sums include all
};

/// All ranges of one name.
struct profiled_range {
  std::string name;
  std::int64_t count = 0;
  double total_ms = 0, self_ms = 0, longest_ms = 0;  // self: without the ranges inside
  double operations = 0;   // floating-point operations of products, convolutions and attention
  std::int64_t bytes = 0;  // of operands and results; for communication, bytes sent
};

/// The fraction of the peak rate that was used. `model`: counting the operations of forward and backward
/// passes ("MFU"); `hardware`: also counting recomputation ("HFU"). Attention is counted as if it were not
/// causal.
struct flop_utilization {
  double model = 0, hardware = 0;
};

/// What a table shows.
struct table_options {
  std::size_t rows = 30;
  bool shapes = true;  // one row per shape of an op; otherwise one per op
};

namespace detail {
struct profile;
}

/// Collects the ranges and ops of all threads from its construction to `stop`. A process has one at a time;
/// if ranks are threads, `main` makes it. NVTX, or another range sink, still receives its ranges.
class profiler {
 public:
  /// Throws usage_error if there is one already.
  explicit profiler(profiler_options o = {});
  profiler(const profiler&) = delete;
  profiler& operator=(const profiler&) = delete;
  /// Stops it.
  ~profiler();

  /// Ends the collection and keeps what was collected. Ranges that are still open are not counted.
  void stop();
  /// Discards what it has collected, for example after warm-up steps.
  void clear();

  /// Time from construction or `clear` to `stop`, or until now.
  double elapsed_ms() const;
  /// All ranges, by name, the largest self time first.
  std::vector<profiled_range> ranges() const;
  /// A table of the ranges; self times are given as shares of the time of all threads.
  std::string table(table_options o = {}) const;
  /// For a `peak` in operations per second of all devices of this process together. Steps replayed from a
  /// recorded graph are not included.
  flop_utilization utilization(double peak) const;
  /// Time in which a thread waited for other ranks: the part of communication that computation does not hide.
  double exposed_communication_ms() const;

  /// Events of this process, in the Trace Event Format, as process `rank`. Throws io_error if the file cannot
  /// be written.
  void save_trace(const std::string& path, int rank = 0) const;
  /// Events of all ranks in one file, which rank 0 writes. Collective. Clocks are aligned by a barrier.
  /// Throws comm_error, and io_error on all ranks if the file cannot be written.
  void save_trace(const std::string& path, communicator& ranks) const;

 private:
  /// The events of all threads, or of this one, as JSON objects separated by commas. `zero`: the origin of
  /// their times.
  std::string events(int rank, std::int64_t zero, bool own_thread) const;
  std::int64_t first_event(bool own_thread) const;

  std::shared_ptr<detail::profile> profile_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/profiler.ipp>
#endif
