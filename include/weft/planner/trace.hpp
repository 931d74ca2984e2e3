// SPDX-License-Identifier: MIT
// Traces of a rank's training step: its device calls and operations with other ranks, in order. The step runs
// as usual, bound to its strategy, but on a device that computes nothing and among ranks that do not exist.
//
//   planner::traced_rank r(c, rank);
//   auto model = gpt::create(config, r.where().deferred());
//   auto run = bind<plan>(model, optimizer, r.ranks(), sizes);
//   r.step([&] { run.step(8, [&](index_t) { return model.loss(words, words); }); });
//   r.trace().peak_bytes
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/device/device.hpp>
#include <weft/planner/cluster.hpp>

namespace weft::planner {

/// A call of a device.
struct device_call {
  double operations = 0;      // floating-point operations of products, convolutions and attention
  double bytes = 0;           // of operands and results
  double host_bytes = 0;      // bytes copied to or from host memory
  bool is_narrow = false;     // whether its operands are bf16 or f16
  bool is_attention = false;  // whether it is attention or its derivative
};

/// Ranks that communicate; `key` is the same on all of them.
struct rank_group {
  std::string key;
  std::vector<int> members;  // numbers in the world, ascending
};

/// An operation with other ranks.
struct rank_operation {
  collective kind{};
  int group = 0;            // index in step_trace::groups
  double bytes = 0;         // `bytes` of seconds_of
  index_t sent = 0;         // bytes that this rank sends, as the library counts them (comm/traffic.hpp)
  int peer = 0;             // of a message, as numbered in the world
  int tag = 0;              // of a message
  std::int64_t number = 0;  // of the group's collectives, or of the messages to or from the peer
  std::string text{};       // for errors
};

/// A step of one rank.
struct step_trace {
  /// A step also waits for operations that the previous step has begun (`wait_for_last`), and begins
  /// operations that the next step waits for.
  enum class kind : std::uint8_t { call, begin, wait, wait_for_last };
  struct event {
    kind what;
    std::size_t index;  // index in `calls` or `operations`
  };
  int rank = 0;
  index_t steps = 1;  // number of traced steps
  std::vector<event> events{};
  std::vector<device_call> calls{};
  std::vector<rank_operation> operations{};
  std::vector<rank_group> groups{};
  /// An upper bound of the device memory in use since the model's creation: every operation is assumed to be
  /// in flight until it is waited for. Experts are assumed to have equally many rows.
  std::size_t peak_bytes = 0;

  /// Bytes that this rank sends per step.
  index_t sent() const {
    index_t bytes = 0;
    for (const rank_operation& o : operations) bytes += o.sent;
    return bytes / steps;
  }
};

namespace detail {
struct recording;
}

/// A rank of a cluster that does not exist: a device and a communicator on which a model is made, bound and
/// trained. `ranks()` supports no `split`, and receives zeros as the elements of other ranks.
class traced_rank {
 public:
  /// Throws value_error if a figure of the cluster is missing or the rank does not exist.
  traced_rank(const cluster& c, int rank);

  const device& where() const { return where_; }
  /// Host memory, for parallel_options that keep tensors there.
  const device& host() const { return host_; }
  communicator& ranks() const { return *ranks_; }
  int rank() const { return ranks_->rank(); }

  /// Calls `f`, a training step, `steps` + 1 times and traces all calls except the first, which creates the
  /// optimizer's state. Trace several steps if they differ, as with parallel_options::local_steps. Throws
  /// value_error if `steps` is less than 1.
  template <class F>
  void step(F&& f, index_t steps = 1) {
    f();
    begin(steps);
    for (index_t i = 0; i < steps; ++i) f();
    end();
  }
  /// The trace. Throws usage_error if step() has not been called.
  const step_trace& trace() const;

 private:
  void begin(index_t steps);
  void end();

  std::shared_ptr<detail::recording> recording_;
  device where_, host_;
  std::shared_ptr<communicator> ranks_;
};

}  // namespace weft::planner

#ifndef WEFT_COMPILED
#include <weft/planner/impl/trace.ipp>
#endif
