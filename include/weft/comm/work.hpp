// SPDX-License-Identifier: MIT
// An operation that is under way.
//
//   work w = ranks.all_reduce(gradient);
//   ...                                   // compute something else; w.is_completed() also moves it on
//   w.wait();                             // throws what went wrong, on every rank
//
// The operation uses its buffers until it is over, and so do other ranks. One that is dropped, by an
// exception between start and wait for example, is waited for first: declare it after its buffers.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include <weft/comm/flight_recorder.hpp>
#include <weft/comm/operation.hpp>

namespace weft {

class work {
 public:
  /// What a backend keeps of an operation.
  class state {
   public:
    virtual ~state() = default;
    /// Moves the operation on as far as it goes now; true when it is over, well or not.
    virtual bool poll() = 0;
    /// Waits until it is over; throws timeout_error after `limit`, and then all ranks fail.
    virtual void wait(std::chrono::milliseconds limit) = 0;
    /// What went wrong, if it is over and did.
    virtual std::exception_ptr failure() const = 0;
  };

  /// An operation that is done.
  work() = default;
  explicit work(std::shared_ptr<state> s, std::chrono::milliseconds limit = default_timeout)
      : state_(std::move(s)), limit_(limit) {}
  work(work&& other) noexcept = default;
  work& operator=(work&& other) noexcept {
    work old = std::move(*this);
    state_ = std::move(other.state_);
    limit_ = other.limit_;
    waited_ = std::move(other.waited_);
    recorder_ = std::move(other.recorder_);
    record_ = other.record_;
    return *this;
  }
  /// Waits for the operation, whatever comes of it.
  ~work() { finish(); }

  bool is_completed() const {
    const bool over = !state_ || state_->poll();
    if (over && recorder_) recorder_->end(record_);
    return over;
  }
  void wait() const { wait(limit_); }
  void wait(std::chrono::milliseconds limit) const {
    if (!state_) return;
    if (!state_->poll()) {
      const auto start = std::chrono::steady_clock::now();
      state_->wait(limit);
      if (waited_) *waited_ += (std::chrono::steady_clock::now() - start).count();
    }
    if (recorder_) recorder_->end(record_);
    if (const std::exception_ptr e = state_->failure()) std::rethrow_exception(e);
  }
  /// Waits, whatever comes of it: before memory that the operation uses goes.
  void finish() const noexcept {
    if (is_completed()) return;
    try {
      wait();
    } catch (...) {  // those who are still there are told
    }
  }
  /// Adds the time that `wait` takes to `ticks` of the steady clock.
  void count_waiting(std::shared_ptr<std::atomic<std::int64_t>> ticks) { waited_ = std::move(ticks); }
  /// Tells the recorder when `record` is over.
  void record_in(std::shared_ptr<flight_recorder> r, std::uint64_t record) {
    recorder_ = std::move(r);
    record_ = record;
  }
  std::exception_ptr exception() const { return state_ && state_->poll() ? state_->failure() : nullptr; }

 private:
  std::shared_ptr<state> state_;
  std::chrono::milliseconds limit_ = default_timeout;
  std::shared_ptr<std::atomic<std::int64_t>> waited_;
  std::shared_ptr<flight_recorder> recorder_;
  std::uint64_t record_ = 0;
};

}  // namespace weft
