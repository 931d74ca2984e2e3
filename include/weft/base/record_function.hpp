// SPDX-License-Identifier: MIT
// Named time ranges of a thread, for profilers.
//
//   { const record_function range("data"); ... }        // torch.profiler.record_function("data")
//
// weft names training steps ("step", "gradient norm", "optimizer step"), programs ("eval", and on tapes
// "forward", "recompute", "backward"), operations of ranks (their kind, size and label) and "wait for ranks".
// Without a profiler a range costs a load and a comparison. train/profiler.hpp sums up ranges.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <string>

namespace weft {

/// Where ranges are sent. Thread-safe; ranges of one thread are nested.
class range_sink {
 public:
  virtual ~range_sink() = default;
  /// `name` is valid during the call. `bytes`: for an operation of ranks, what this rank sends.
  virtual void begin(const char* name, std::int64_t bytes) noexcept = 0;
  virtual void end() noexcept = 0;
};

namespace detail {
inline std::atomic<range_sink*> ranges_go_to{nullptr};
}

/// Sends the ranges that begin from now on, in all threads, to `sink`, which must outlive them; null:
/// nowhere. Returns the previous sink.
inline range_sink* set_range_sink(range_sink* sink) { return detail::ranges_go_to.exchange(sink); }

/// A range from here to the end of the scope, on one thread; the ranges of a thread are nested.
class record_function {
 public:
  explicit record_function(const char* name) noexcept : to_(detail::ranges_go_to) {
    if (to_) to_->begin(name, 0);
  }
  /// The range's name is name(), which is not called without a profiler.
  template <std::invocable Name>
  explicit record_function(Name name, std::int64_t bytes = 0) : to_(detail::ranges_go_to) {
    if (to_) to_->begin(std::string(name()).c_str(), bytes);
  }
  record_function(const record_function&) = delete;
  record_function& operator=(const record_function&) = delete;
  ~record_function() {
    if (to_) to_->end();
  }

 private:
  range_sink* to_;
};

}  // namespace weft
