// SPDX-License-Identifier: MIT
// A communicator that moves no data and counts what would be sent. Operations complete only when they are
// waited for, so that memory is held as long as possible. With a device that only counts, a step shows the
// memory and traffic of one rank before a real run.
#pragma once

#include <weft/comm/communicator.hpp>

namespace weft {

/// Rank `rank` of a group of `size` ranks that do not exist. `split` throws comm_error, as the colors of
/// other ranks are unknown; `split_by` and `axis` work.
class counting_communicator : public communicator {
 public:
  counting_communicator(int rank, int size) : rank_(rank), size_(size) {}

  const char* name() const override { return "nowhere"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void abort(const std::string&) override {}

 protected:
  std::shared_ptr<communicator> divide(int, int, comm_options) override {
    throw comm_error("weft: counting_communicator: the values of other ranks are not known; use split_by");
  }
  std::shared_ptr<communicator> divide_by(const std::function<int(int rank)>& color, comm_options) override {
    int before = 0, all = 0;
    for (int r = 0; r < size_; ++r)
      if (color(r) == color(rank_)) before += r < rank_, ++all;
    return std::make_shared<counting_communicator>(before, all);
  }
  work start(operation) override { return work(std::make_shared<late>()); }

 private:
  struct late : work::state {
    bool over = false;
    bool poll() override { return over; }
    void wait(std::chrono::milliseconds) override { over = true; }
    std::exception_ptr failure() const override { return nullptr; }
  };

  int rank_, size_;
};

}  // namespace weft
