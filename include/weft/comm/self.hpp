// SPDX-License-Identifier: MIT
// A group of one rank, for programs without parallelism.
#pragma once

#include <cstring>

#include <weft/comm/communicator.hpp>

namespace weft {

/// The communicator of a single rank: operations copy and complete at once.
class self_communicator : public communicator {
 public:
  const char* name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void abort(const std::string& reason) override { aborted_ = reason; }
  std::exception_ptr failure() const override {
    if (aborted_.empty()) return nullptr;
    return std::make_exception_ptr(comm_error("weft: rank 0: the group was given up: " + aborted_));
  }

 protected:
  std::shared_ptr<communicator> divide(int color, int, comm_options) override {
    return color < 0 ? nullptr : std::make_shared<self_communicator>();
  }
  work start(operation o) override {
    if (!aborted_.empty())
      throw comm_error("weft: rank 0: " + o.text() + ": the group was given up: " + aborted_);
    if (!o.agrees_only && o.out.data && o.out.data != o.in.data && o.in.count)
      std::memmove(o.out.data, o.in.data, static_cast<std::size_t>(o.in.bytes()));
    return {};
  }

 private:
  std::string aborted_;
};

}  // namespace weft
