// SPDX-License-Identifier: MIT
// Communicators: collectives, messages and subgroups of a group of ranks. A backend implements `start` and
// `divide`.
//
//   void step(communicator& ranks, std::span<float> gradient) {
//     ranks.all_reduce(gradient, reduction::average, {.label = "h.0.mlp"}).wait();
//   }
//
// All ranks of a group must call the same collectives in the same order; if one does not, every rank gets an
// error that names it. Buffers must stay valid and unchanged until the operation is completed.
#pragma once

#include <functional>
#include <utility>

#include <weft/comm/traffic.hpp>
#include <weft/comm/work.hpp>

namespace weft {

class backend;

/// Options of one operation: a label for errors, the time-out, whether it is counted as control traffic, and
/// the training step.
struct comm_options {
  std::string label{};
  std::chrono::milliseconds timeout{default_timeout};
  bool control = false;
  std::int64_t step = -1;  // the training step; ranks in different steps get an error
};

class communicator;

/// While one exists, operations that this thread starts throw usage_error, which names the place: code that
/// ranks execute at different times. Groups of one rank and the groups `alike`, whose ranks execute the code
/// at the same time, may be used.
class collectives_refused {
 public:
  collectives_refused(const char* where, std::vector<const communicator*> alike)
      : where_(where), alike_(std::move(alike)), before_(std::exchange(current(), this)) {}
  collectives_refused(const collectives_refused&) = delete;
  collectives_refused& operator=(const collectives_refused&) = delete;
  ~collectives_refused() { current() = before_; }

 private:
  friend communicator;
  static const collectives_refused*& current() {
    static thread_local const collectives_refused* innermost = nullptr;
    return innermost;
  }

  const char* where_;
  std::vector<const communicator*> alike_;
  const collectives_refused* before_;
};

/// A group of ranks. Operations return at once; `work::wait` completes them. They throw value_error for
/// invalid arguments; waiting throws comm_error if a rank has failed or disagrees, timeout_error after the
/// time-out. One thread at a time may use a communicator; under MPI, one thread of a process uses all of
/// them.
class communicator {
 public:
  virtual ~communicator() = default;

  /// The name of the backend: "threads", "gloo", "mpi", "nccl".
  virtual const char* name() const = 0;
  /// The number of this rank, from 0 to size() - 1.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Replaces `data` on every rank by the reduction over all ranks. Sums follow a fixed tree over ranks, so
  /// they do not depend on timing; bf16 and f16 are summed in f32 and rounded once. For bool only minimum and
  /// maximum are supported; integers have no average.
  work all_reduce(elements data, reduction op = reduction::sum, comm_options o = {}) {
    return begin({.kind = collective::all_reduce, .in = data, .out = data, .op = op}, o);
  }
  /// Replaces `data` on every rank by the data of `root`.
  work broadcast(elements data, int root = 0, comm_options o = {}) {
    return begin({.kind = collective::broadcast, .in = data, .out = data, .root = root}, o);
  }
  /// Replaces `data` on `root` by the reduction over all ranks; on other ranks it does not change.
  work reduce(elements data, int root = 0, reduction op = reduction::sum, comm_options o = {}) {
    return begin({.kind = collective::reduce, .in = data, .out = data, .op = op, .root = root}, o);
  }
  /// Concatenates the elements of all ranks, in rank order, in `all` on every rank. `counts`: elements by
  /// rank, if they differ.
  work all_gather(const_elements mine, elements all, rank_counts counts = {}, comm_options o = {});
  /// The same on `root` only; elsewhere `all` may be empty.
  work gather(const_elements mine, elements all, int root = 0, rank_counts counts = {}, comm_options o = {});
  /// Divides `all` on `root` among the ranks; elsewhere `all` may be empty.
  work scatter(const_elements all, elements mine, int root = 0, rank_counts counts = {}, comm_options o = {});
  /// Each rank receives its part of the reduction of `all` over all ranks.
  work reduce_scatter(const_elements all, elements mine, reduction op = reduction::sum,
                      rank_counts counts = {}, comm_options o = {});
  /// Rank i sends its j-th part to rank j. `sent` and `received` are elements by rank, if parts differ.
  work all_to_all(const_elements in, elements out, rank_counts sent = {}, rank_counts received = {},
                  comm_options o = {});
  /// Completed when all ranks have called it.
  work barrier(comm_options o = {}) { return begin({.kind = collective::barrier}, o); }

  /// Point-to-point messages. Those of one sender, receiver and tag (0 or more) arrive in the order in which
  /// they were sent, independently of other messages and of collectives. A send can be completed before its
  /// message is received. A receive whose size or dtype differs is an error on all ranks, which names both
  /// sides.
  work send(const_elements data, int to, int tag = 0, comm_options o = {}) {
    return begin({.kind = collective::send, .in = data, .root = to, .tag = tag}, o);
  }
  work receive(elements data, int from, int tag = 0, comm_options o = {}) {
    return begin({.kind = collective::receive, .out = data, .root = from, .tag = tag}, o);
  }

  /// Divides the group by `color`: ranks with equal colors form a group, ordered by key, then by rank, which
  /// records its operations where this one does. Collective; null for a negative color.
  std::shared_ptr<communicator> split(int color, int key = 0, comm_options o = {});

  /// The same, if every rank knows the colors of all ranks; ordered by rank. Collective.
  std::shared_ptr<communicator> split_by(const std::function<int(int rank)>& color, comm_options o = {});

  /// This rank's group along a mesh axis: `count` ranks that are `stride` apart. Throws value_error unless
  /// both are positive and their product divides size(). Collective.
  std::shared_ptr<communicator> axis(int count, int stride, comm_options o = {});

  /// Bytes that this rank has sent in operations of this group.
  const traffic& sent() const { return sent_; }
  /// Time in milliseconds that this rank has waited for operations of this group.
  double waited_ms() const;

  /// Records all further operations under the name `group`, and those of groups that are formed of it later
  /// under names such as "world/stages0.1": the label and number of the split, and the color.
  void record_in(std::shared_ptr<flight_recorder> r, std::string group = "world") {
    recorder_ = std::move(r);
    recorded_as_ = std::move(group);
  }
  const std::shared_ptr<flight_recorder>& recorder() const { return recorder_; }

  /// The number of the next run on these ranks, counted from 0; the same on all ranks.
  std::int64_t count_run() { return runs_++; }

  /// Makes every operation of every rank fail, pending or future, with this reason.
  virtual void abort(const std::string& reason) = 0;
  /// Why the group has failed: a rank has aborted it, is lost, or was late; null if it has not.
  virtual std::exception_ptr failure() const { return nullptr; }

  /// The device whose memory operations can access in addition to host memory; null if there is none.
  virtual const backend* reaches() const { return nullptr; }

  /// Starts an operation given as a value, without counting or recording it; for communicators built on this
  /// one. If `o.agrees_only`, it is completed when all ranks have called the same operation, and no data
  /// moves.
  work pass_on(operation o) {
    check(o);
    return start(std::move(o));
  }

 protected:
  /// Starts an operation with checked arguments.
  virtual work start(operation o) = 0;

  /// Implements split().
  virtual std::shared_ptr<communicator> divide(int color, int key, comm_options o) = 0;
  /// Implements split_by().
  virtual std::shared_ptr<communicator> divide_by(const std::function<int(int rank)>& color, comm_options o) {
    return divide(color(rank()), rank(), std::move(o));
  }

  /// Checks, counts, records and starts an operation.
  work begin(operation o, comm_options& with);

 private:
  rank_counts even(index_t count, const char* what) const;

  /// Passes the recorder on to a group that the split `label` has formed; it may be null.
  std::shared_ptr<communicator> recorded(std::shared_ptr<communicator> part, const std::string& label,
                                         int color);

  traffic sent_;
  std::shared_ptr<flight_recorder> recorder_;
  std::string recorded_as_;
  std::uint64_t collectives_ = 0, splits_ = 0;
  std::int64_t runs_ = 0;
  std::shared_ptr<std::atomic<std::int64_t>> waited_ = std::make_shared<std::atomic<std::int64_t>>(0);

  void check(const operation& o) const;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/communicator.ipp>
#endif
