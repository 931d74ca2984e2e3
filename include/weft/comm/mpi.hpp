// SPDX-License-Identifier: MIT
// Communicator of processes started by mpirun, on Boost.MPI and the non-blocking messages of MPI.
//
//   boost::mpi::environment mpi(boost::mpi::threading::funneled);
//   mpi_communicator ranks(boost::mpi::communicator{});
//
// Before data is sent, ranks exchange descriptions of their operations, so that a mismatch is an error on
// every rank instead of corrupting data. Reductions exchange parts, reduce them in the order of reduce.hpp,
// and gather the results: they are bitwise identical to those of threads. Open MPI makes no progress in the
// background: waiting and polling advance the operations of all groups of the process. Groups of ranks use
// the world's messages, so that split() waits with a time limit, as operations do.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>

#include <array>
#include <deque>
#include <thread>

#include <weft/base/running_clock.hpp>
#include <weft/comm/communicator.hpp>
#include <weft/comm/mpi_operation.hpp>
#include <weft/comm/mpi_watch.hpp>
#include <weft/comm/split.hpp>

namespace weft {

namespace detail {

/// The pending operations of one group. Collectives are executed one after another, so that all ranks call
/// MPI in the same order; messages are independent of them, and those with equal peer, direction and tag are
/// in order.
class mpi_queue : public mpi_watched_group {
 public:
  mpi_queue(std::shared_ptr<mpi_watch> watch, mpi_group group)
      : watch_(std::move(watch)), group_(std::move(group)) {
    watch_->add(*this);
  }
  mpi_queue(const mpi_queue&) = delete;
  mpi_queue& operator=(const mpi_queue&) = delete;
  ~mpi_queue() override {
    watch_->remove(*this);
    withdraw(collectives_);
    for (const auto& [key, queue] : messages_) withdraw(queue);
  }

  const std::shared_ptr<mpi_watch>& watch() const { return watch_; }
  const mpi_group& group() const { return group_; }

  std::shared_ptr<mpi_operation> post(operation o) {
    const bool message = is_message(o.kind);
    auto op = std::make_shared<mpi_operation>(std::move(o), group_, watch_->link(), message ? 0 : number_);
    if (const auto failed = failure(*op)) std::rethrow_exception(failed);
    const operation& what = op->what();
    if (message) messages_[{what.kind == collective::send, what.root, what.tag}].push_back(op);
    else collectives_.push_back(op);
    number_ += !message;
    last_ = op;
    watch_->progress();
    return op;
  }

  void advance() override {
    while (!collectives_.empty()) {
      const auto first = collectives_.front();
      first->advance();
      if (!first->over()) break;
      if (!first->failure.empty()) return watch_->give_up(first->failure);
      collectives_.pop_front();
    }
    for (auto& [key, queue] : messages_) {
      for (const auto& m : queue) {
        m->advance();
        if (!m->failure.empty()) return watch_->give_up(m->failure);
        if (m->holds_back()) break;
      }
      std::erase_if(queue, [](const auto& m) { return m->over() && m->failure.empty(); });
    }
    std::erase_if(messages_, [](const auto& m) { return m.second.empty(); });
  }
  void cancel() override {
    for_each_operation([](mpi_operation& op) { op.cancel(); });
  }
  bool released() override {
    bool all = true;
    for_each_operation([&](mpi_operation& op) { all = op.released() && all; });
    return all;
  }
  void wait(const mpi_operation& op, std::chrono::milliseconds limit) {
    running_clock ran;
    waits_ = &op;
    for (int idle = 0; watch_->progress(), !op.over() && !watch_->verdict(); ++idle) {
      const bool yields = idle > 1000;
      if (yields) std::this_thread::yield();
      if ((yields || idle % 64 == 0) && ran.elapsed() >= limit) watch_->report_late(wait_of(op), limit);
    }
    waits_ = nullptr;
  }

  void describe(rank_standing& s) const override {
    s.posted[group_.id] = static_cast<std::int64_t>(number_);
    if (waits_) s.waits = wait_of(*waits_);
    if (last_) s.last = last_->doing();
  }

  /// The verdict, for an operation that is not complete.
  std::exception_ptr failure(const mpi_operation& op) const {
    if (op.over() && op.failure.empty()) return nullptr;
    if (!watch_->verdict()) return nullptr;
    return exception_of(verdict_in(*watch_->verdict(), watch_->rank(), op.what().text(), op.doing()));
  }

 private:
  using operations = std::deque<std::shared_ptr<mpi_operation>>;

  template <class F>
  void for_each_operation(F f) {
    for (const auto& op : collectives_) f(*op);
    for (const auto& [key, queue] : messages_)
      for (const auto& op : queue) f(*op);
  }
  static void withdraw(const operations& all) {
    for (const auto& op : all)
      if (!op->withdraw())
        new std::shared_ptr<mpi_operation>(op);  // a failed group: MPI may still write to its buffers
  }
  rank_wait wait_of(const mpi_operation& op) const {
    if (is_message(op.what().kind))
      return {group_.id, rank_wait::message, {group_.world_rank(op.what().root)}, op.doing()};
    return {group_.id, static_cast<std::int64_t>(op.number()), group_.members, op.doing()};
  }

  std::shared_ptr<mpi_watch> watch_;
  mpi_group group_;
  operations collectives_;
  std::map<std::array<int, 3>, operations> messages_;  // by direction, peer and tag
  std::shared_ptr<mpi_operation> last_;
  const mpi_operation* waits_ = nullptr;  // the operation that this rank waits for
  std::uint64_t number_ = 0;
};

class mpi_state : public work::state {
 public:
  explicit mpi_state(std::shared_ptr<mpi_queue> q) : queue_(std::move(q)) {}

  void post(operation o) { operation_ = queue_->post(std::move(o)); }
  bool poll() override {
    queue_->watch()->progress();
    return operation_->over() || queue_->watch()->verdict();
  }
  void wait(std::chrono::milliseconds limit) override { queue_->wait(*operation_, limit); }
  std::exception_ptr failure() const override { return queue_->failure(*operation_); }

 private:
  std::shared_ptr<mpi_queue> queue_;
  std::shared_ptr<mpi_operation> operation_;
};

}  // namespace detail

/// Communicator of processes started by mpirun. MPI must be initialized, and finalized after its destruction.
class mpi_communicator : public communicator {
 public:
  /// Communicator of all ranks of `world`.
  explicit mpi_communicator(const boost::mpi::communicator& world)
      : queue_(std::make_shared<detail::mpi_queue>(
            std::make_shared<detail::mpi_watch>(world),
            detail::mpi_group{"world", 0, all_of(world), world.rank()})) {}

  const char* name() const override { return "mpi"; }
  int rank() const override { return group().rank; }
  int size() const override { return group().size(); }

  /// Ranks that wait or poll fail immediately; run_under_mpirun() ends other ranks.
  void abort(const std::string& reason) override {
    queue_->watch()->give_up("weft: rank " + std::to_string(queue_->watch()->rank()) + " gave up: " + reason);
  }
  std::exception_ptr failure() const override {
    queue_->watch()->progress();
    const auto& verdict = queue_->watch()->verdict();
    return verdict ? detail::exception_of(*verdict) : nullptr;
  }

  /// Waits until all ranks have called it, and sets `code` to the exit code of the job, which is a failed
  /// rank's code if a rank failed. False if this takes longer than `limit`.
  bool end_together(int& code, std::chrono::milliseconds limit) {
    return queue_->watch()->end_together(code, limit);
  }

 protected:
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override {
    detail::split_of_ranks ranks(*this, group().members, color, key, queue_->watch()->link().new_group(),
                                 std::move(o));
    const std::string name = "/split" + std::to_string(splits_++) + "." + std::to_string(color);
    if (color < 0) return nullptr;
    return std::shared_ptr<communicator>(new mpi_communicator(std::make_shared<detail::mpi_queue>(
        queue_->watch(),
        detail::mpi_group{group().id + name, ranks.number, std::move(ranks.members), ranks.rank})));
  }
  work start(operation o) override {
    const auto limit = o.timeout;
    const auto handle = std::make_shared<detail::mpi_state>(queue_);  // first, as its buffers need one
    handle->post(std::move(o));
    return work(handle, limit);
  }

 private:
  explicit mpi_communicator(std::shared_ptr<detail::mpi_queue> queue) : queue_(std::move(queue)) {}
  const detail::mpi_group& group() const { return queue_->group(); }
  static std::vector<int> all_of(const boost::mpi::communicator& c) {
    std::vector<int> ranks;
    for (int r = 0; r < c.size(); ++r) ranks.push_back(r);
    return ranks;
  }

  std::shared_ptr<detail::mpi_queue> queue_;
  int splits_ = 0;
};

}  // namespace weft
