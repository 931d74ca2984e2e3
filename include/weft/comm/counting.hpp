// SPDX-License-Identifier: MIT
// A communicator that moves nothing and counts what would be sent. Operations complete when they are waited
// for and no sooner, so that as much memory as possible is held meanwhile. With a device that only counts, a
// step run on it shows the memory and traffic of one rank before a run.
#pragma once

#include <weft/comm/communicator.hpp>

namespace weft {

/// Rank `rank` of a group of `size` ranks that do not exist. `split` throws comm_error, as the colors of
/// other ranks are unknown; `axis` works.
class counting_communicator : public communicator {
 public:
  counting_communicator(int rank, int size) : rank_(rank), size_(size) {}

  const char* name() const override { return "nowhere"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<communicator> split(int, int, comm_options) override {
    throw comm_error("weft: counting_communicator: what other ranks say is not known; use axis");
  }
  std::shared_ptr<communicator> axis(int count, int stride, comm_options) override {
    return std::make_shared<counting_communicator>(rank_ / stride % count, count);
  }
  void abort(const std::string&) override {}

 protected:
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
