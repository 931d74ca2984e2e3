// SPDX-License-Identifier: MIT
// A communicator whose messages arrive as late as possible: an operation begins, and reads its buffers, only
// when it is waited for.
#pragma once

#include <memory>
#include <utility>

#include <weft/comm/communicator.hpp>

namespace weft::test {

class late_communicator : public communicator {
 public:
  explicit late_communicator(communicator& ranks) : late_communicator({std::shared_ptr<void>(), &ranks}) {}
  explicit late_communicator(std::shared_ptr<communicator> ranks) : ranks_(std::move(ranks)) {}

  const char* name() const override { return "late"; }
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  void abort(const std::string& reason) override { ranks_->abort(reason); }
  std::exception_ptr failure() const override { return ranks_->failure(); }

  /// The number of operations that have been started, not counting those of parts.
  int started() const { return started_; }
  /// The largest number of operations that were in flight together.
  int most_under_way() const { return *most_; }

 protected:
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override {
    const std::shared_ptr<communicator> part = ranks_->split(color, key, std::move(o));
    return part ? std::make_shared<late_communicator>(part) : nullptr;
  }
  work start(operation o) override {
    const auto limit = o.timeout;
    ++started_;
    *most_ = std::max(*most_, ++*under_way_);
    return work(std::make_shared<pending>(ranks_, std::move(o), under_way_), limit);
  }

 private:
  class pending : public work::state {
   public:
    pending(std::shared_ptr<communicator> ranks, operation o, std::shared_ptr<int> under_way)
        : ranks_(std::move(ranks)), operation_(std::move(o)), under_way_(std::move(under_way)) {}
    bool poll() override { return over_; }
    void wait(std::chrono::milliseconds limit) override {
      if (std::exchange(over_, true)) return;
      --*under_way_;
      const work now = ranks_->pass_on(operation_);
      try {
        now.wait(limit);
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
    }
    std::exception_ptr failure() const override { return failure_; }

   private:
    std::shared_ptr<communicator> ranks_;
    operation operation_;
    std::shared_ptr<int> under_way_;
    bool over_ = false;
    std::exception_ptr failure_;
  };

  std::shared_ptr<communicator> ranks_;
  int started_ = 0;
  std::shared_ptr<int> under_way_ = std::make_shared<int>(0), most_ = std::make_shared<int>(0);
};

}  // namespace weft::test
