// SPDX-License-Identifier: MIT
// A pending operation.
//
//   work w = ranks.all_reduce(gradient);
//   ...                                   // compute something else; w.is_completed() also makes progress
//   w.wait();                             // throws the failure, on every rank
//
// The operation uses its buffers, and those of other ranks, until it is completed. The destructor waits for
// it: declare it after its buffers.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include <weft/comm/flight_recorder.hpp>
#include <weft/comm/operation.hpp>

namespace weft {

/// Handle of an operation; move-only. If it is discarded, its errors are lost.
class [[nodiscard]] work {
 public:
  /// The operation as its backend implements it.
  class state {
   public:
    virtual ~state() = default;
    /// Makes progress without blocking; true when it is completed or has failed.
    virtual bool poll() = 0;
    /// Waits until it is completed; after `limit` throws timeout_error, and all ranks fail.
    virtual void wait(std::chrono::milliseconds limit) = 0;
    /// The failure, if it has failed.
    virtual std::exception_ptr failure() const = 0;
  };

  /// A completed operation.
  work() = default;
  explicit work(std::shared_ptr<state> s, std::chrono::milliseconds limit = default_timeout)
      : state_(std::move(s)), limit_(limit) {}
  work(work&& other) noexcept = default;
  work& operator=(work&& other) noexcept;
  /// Waits for the operation, ignoring errors.
  ~work() { finish(); }

  /// Whether it has succeeded or failed.
  bool is_completed() const;
  /// Waits for the operation, no longer than its time-out. Throws timeout_error after that, and comm_error if
  /// a rank has failed or called another operation.
  void wait() const { wait(limit_); }
  void wait(std::chrono::milliseconds limit) const;
  /// Waits, ignoring errors, so that memory that the operation uses can be freed.
  void finish() const noexcept {
    if (is_completed()) return;
    try {
      wait();
    } catch (...) {  // the other ranks are notified
    }
  }
  /// Adds the time spent in `wait` to `ticks` of the steady clock.
  void count_waiting(std::shared_ptr<std::atomic<std::int64_t>> ticks) { waited_ = std::move(ticks); }
  /// Notifies the recorder when the operation `record` has succeeded.
  void record_in(std::shared_ptr<flight_recorder> r, std::uint64_t record) {
    recorder_ = std::move(r);
    record_ = record;
  }
  /// What `wait` would throw; null while the operation is in progress and if it has succeeded.
  std::exception_ptr exception() const { return state_ && state_->poll() ? state_->failure() : nullptr; }

 private:
  /// Called when it is completed.
  void record_end() const {
    if (recorder_ && !(state_ && state_->failure())) recorder_->end(record_);
  }

  std::shared_ptr<state> state_;
  std::chrono::milliseconds limit_ = default_timeout;
  std::shared_ptr<std::atomic<std::int64_t>> waited_;
  std::shared_ptr<flight_recorder> recorder_;
  std::uint64_t record_ = 0;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/work.ipp>
#endif
