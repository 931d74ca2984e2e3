// SPDX-License-Identifier: MIT
// What a rank does in a training step, in order: calls of its device, and operations with other ranks. The
// step runs as it would, bound to its strategy, on a device that computes nothing and among ranks that do not
// exist.
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
  double operations = 0;      // in floating point, of products, convolutions and attention
  double bytes = 0;           // of operands and results
  double host_bytes = 0;      // copied to or from memory of the host
  bool is_narrow = false;     // whether its operands are bf16 or f16
  bool is_attention = false;  // or its derivative
};

/// Ranks that communicate; the same `key` on all of them.
struct rank_group {
  std::string key;
  std::vector<int> members;  // numbers in the world, ascending
};

/// An operation with other ranks.
struct rank_operation {
  collective kind{};
  int group = 0;            // of trace.groups
  double bytes = 0;         // as seconds_of counts them
  index_t sent = 0;         // bytes that this rank sends, as the library counts them (comm/traffic.hpp)
  int peer = 0;             // of a message, as numbered in the world
  int tag = 0;              // of a message
  std::int64_t number = 0;  // of the collectives of the group, or of the messages to or from the peer
  std::string text{};       // for errors
};

/// A step of one rank.
struct step_trace {
  /// A step also waits for operations that the one before has begun, as this one begins those of the next.
  enum class kind : std::uint8_t { call, begin, wait, wait_for_last };
  struct event {
    kind what;
    std::size_t index;  // of `calls` or `operations`
  };
  int rank = 0;
  index_t steps = 1;  // that are traced
  std::vector<event> events{};
  std::vector<device_call> calls{};
  std::vector<rank_operation> operations{};
  std::vector<rank_group> groups{};
  /// Of the device's memory, from the model's creation on, every operation being under way until it is waited
  /// for: at most so much is held. Experts are taken to have equally many rows.
  std::size_t peak_bytes = 0;

  /// In a step.
  index_t sent() const {
    index_t bytes = 0;
    for (const rank_operation& o : operations) bytes += o.sent;
    return bytes / steps;
  }
};

namespace detail {
struct recording;
}

/// A rank of a cluster that is not there: a device and a communicator on which a model is made, bound and
/// trained. `ranks()` has neither `split` nor elements of other ranks: what is received are zeros.
class traced_rank {
 public:
  /// Throws value_error if a figure of the cluster is missing or there is no such rank.
  traced_rank(const cluster& c, int rank);

  const device& where() const { return where_; }
  /// Memory of the host, for parallel_options that keep something there.
  const device& host() const { return host_; }
  communicator& ranks() const { return *ranks_; }
  int rank() const { return ranks_->rank(); }

  /// Calls `f`, a training step, once more than `steps` times and traces all calls but the first, which makes
  /// the optimizer's state. Steps that differ, as with parallel_options::local_steps, are traced together.
  /// Throws value_error if `steps` is less than 1.
  template <class F>
  void step(F&& f, index_t steps = 1) {
    f();
    begin(steps);
    for (index_t i = 0; i < steps; ++i) f();
    end();
  }
  /// The step. Throws usage_error if there was none.
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
