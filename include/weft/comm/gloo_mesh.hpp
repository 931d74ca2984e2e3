// SPDX-License-Identifier: MIT
// The connections of a rank to all others over Gloo, shared by all its groups, and the threads that execute
// operations on them.
//
// Operations are queued: one queue for the collectives of each group, and one for the messages of each
// (group, peer, direction, tag). Queues progress independently, each in the order of posting. Every non-empty
// queue has a thread, which waits for transfers; the code that waits for an operation enforces its time
// limit. Threads are started when there are more non-empty queues than threads, and are reused. A rank that
// is late, or whose connection fails, is not blamed here: the watch over all ranks determines which rank
// failed (watch.hpp); then all operations fail and the connections are closed.
#pragma once

#include <array>
#include <deque>
#include <thread>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/running_clock.hpp>
#include <weft/comm/gloo_network.hpp>
#include <weft/comm/gloo_rendezvous.hpp>
#include <weft/comm/transfers.hpp>
#include <weft/comm/watch.hpp>

namespace weft::detail {

class gloo_mesh;

/// A posted operation.
class gloo_operation {
 public:
  using queue_key = std::array<std::int64_t, 4>;  // group, peer, direction, tag

  gloo_operation() = default;
  gloo_operation(const gloo_operation&) = delete;
  gloo_operation& operator=(const gloo_operation&) = delete;
  virtual ~gloo_operation() = default;

  virtual queue_key queue() const = 0;
  virtual rank_wait waits_in() const = 0;
  virtual std::string doing() const = 0;  // for reports
  /// doing() without the number.
  virtual std::string text() const { return doing(); }
  /// Starts the parts that do not have to wait; called in the order of posting, with the lock of the mesh
  /// held.
  virtual void begin(gloo_mesh&) {}
  /// Executes the rest, when the operation is the first of its queue. Throws exceptions of Gloo, and
  /// comm_error if ranks disagree. Its buffers live as long as the operation, since Gloo may write to them
  /// after an exception.
  virtual void perform(gloo_mesh&) = 0;

  std::atomic<int> peer = -1;  // the rank that it waits for
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> buffers;
  std::deque<std::vector<char>> memory;
  std::atomic<bool> over = false;
  std::optional<watch_verdict> failure;  // valid when `over`

  char* allocate(std::size_t bytes) { return memory.emplace_back(bytes).data(); }
};

class gloo_mesh : public watched_group {
 public:
  /// Connects all ranks of `watch`, found through `s`. Throws the verdict if this fails.
  gloo_mesh(store& s, std::shared_ptr<rank_watch> watch, int rank, int ranks,
            std::shared_ptr<::gloo::transport::Device> device, std::chrono::milliseconds limit)
      : watch_(std::move(watch)), rank_(rank), ranks_(ranks), device_(std::move(device)) {
    if (ranks > most_ranks)
      throw comm_error("weft: gloo: " + std::to_string(ranks) + " ranks: at most " +
                       std::to_string(most_ranks) + " can be connected");
    posted_["world"] = 0;
    const blocked_signals blocked{SIGPIPE};  // Gloo and its threads write to closed connections
    watch_->add(*this);
    try {
      at_start(limit, [&] { connect(s, limit); });
    } catch (...) {
      watch_->remove(*this);
      throw;
    }
  }
  gloo_mesh(const gloo_mesh&) = delete;
  gloo_mesh& operator=(const gloo_mesh&) = delete;
  ~gloo_mesh() override {
    watch_->remove(*this);
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    work_there_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  int rank() const { return rank_; }
  int size() const { return ranks_; }

  /// Executes f(), a part of the start-up in which ranks wait for each other. Throws the verdict if f fails
  /// or if there is a verdict already.
  template <class F>
  void at_start(std::chrono::milliseconds limit, F f) {
    const auto start = std::chrono::steady_clock::now();
    try {
      f();
      const std::lock_guard lock(mutex_);
      if (!failure_) return;
    } catch (const timeout_error&) {
      watch_->report_late(connecting(), limit);
    } catch (const comm_error&) {  // the verdict, or the connection to the store, which rank 0 serves
      watch_->report_lost(0, connecting());
    } catch (const std::exception&) {  // the exception does not say which rank failed
      const auto waited = std::chrono::steady_clock::now() - start;
      watch_->report_late(connecting(),
                          std::min(limit, std::chrono::duration_cast<std::chrono::milliseconds>(waited)));
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
    throw_verdict(*failure_);
  }

  /// A number for the groups of a split by this rank, unique among all ranks.
  std::uint64_t new_group() {
    const std::lock_guard lock(mutex_);
    if (groups_ + 1 >= most_splits)
      throw comm_error("weft: gloo: rank " + std::to_string(rank_) + " has begun " +
                       std::to_string(most_splits) + " splits: no group numbers are left");
    return static_cast<std::uint64_t>(rank_) * most_splits + ++groups_;
  }
  /// Starts counting the collectives of a group; ends with forget().
  void remember(const std::string& group) {
    const std::lock_guard lock(mutex_);
    posted_.try_emplace(group, 0);
  }
  void forget(const std::string& group) {
    const std::lock_guard lock(mutex_);
    posted_.erase(group);
  }
  /// The number of a collective that is being posted. Requires the lock.
  std::uint64_t count(const std::string& group) { return static_cast<std::uint64_t>(posted_[group]++); }

  /// Queues an operation. Throws the verdict if there is one already.
  void post(const std::shared_ptr<gloo_operation>& op) {
    const blocked_signals blocked{SIGPIPE};
    const std::lock_guard lock(mutex_);
    if (failure_) fail_with(*failure_, *op);
    const auto [queue, idle] = queues_.try_emplace(op->queue());
    if (idle) {
      try {
        if (idle_threads_ == ready_.size()) threads_.emplace_back([this] { serve(); }), ++idle_threads_;
      } catch (const std::system_error& e) {
        queues_.erase(queue);
        throw comm_error("weft: rank " + std::to_string(rank_) + ": no thread for " + op->doing() + ": " +
                         e.what());
      }
      ready_.push_back(queue);
    }
    op->begin(*this);
    queue->second.push_back(op);
    last_ = op;
    work_there_.notify_one();
  }

  /// Waits until the operation is complete. After `limit`, the watch determines the reason, and the operation
  /// fails.
  void wait(const gloo_operation& op, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(&op);
    const auto over = [&] { return op.over.load(); };
    if (!wait_while_running(changed_, lock, limit, over)) {
      const rank_wait w = op.waits_in();
      lock.unlock();
      watch_->report_late(w, limit);
      lock.lock();
      changed_.wait(lock, over);
    }
    std::erase(waiting_, &op);
  }

  /// The verdict, if there is one.
  std::exception_ptr failure() {
    const std::lock_guard lock(mutex_);
    return failure_ ? exception_of(*failure_) : nullptr;
  }
  /// Makes everything fail on all ranks.
  void give_up(const std::string& reason) {
    watch_->give_up(reason);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
  }

  [[noreturn]] void fail_with(const watch_verdict& why, const gloo_operation& op) const {
    throw_verdict(verdict_in(why, rank_, op.text(), op.doing()));
  }

  /// Starts a transfer; the operation owns its buffer from then on.
  ::gloo::transport::UnboundBuffer& start(std::uint64_t slot, const transfer& t, gloo_operation& op) const {
    auto& b = *op.buffers.emplace_back(context_->createUnboundBuffer(t.data, t.bytes));
    if (t.sends) b.send(t.peer, slot);
    else b.recv(t.peer, slot);
    return b;
  }
  /// Waits until a transfer is complete. Throws given_up if ranks fail meanwhile. No time limit is given to
  /// Gloo, because it would close all connections without an explanation.
  void finish(::gloo::transport::UnboundBuffer& b, const transfer& t, gloo_operation& op) {
    op.peer = t.peer;
    const std::pair<::gloo::transport::UnboundBuffer*, bool> entry(&b, t.sends);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw given_up();
      blocked_.push_back(entry);
    }
    const auto forget = [&] {
      const std::lock_guard lock(mutex_);
      std::erase(blocked_, entry);
    };
    bool done = false;
    try {
      done = t.sends ? b.waitSend(std::chrono::milliseconds(for_ever))
                     : b.waitRecv(std::chrono::milliseconds(for_ever));
    } catch (...) {
      forget();
      throw;
    }
    forget();
    if (!done) throw given_up();
  }
  /// Executes transfers concurrently.
  void exchange(std::uint64_t slot, const std::vector<transfer>& transfers, gloo_operation& op) {
    for (const transfer& t : transfers) {
      op.peer = t.peer;
      start(slot, t, op);
    }
    for (std::size_t i = 0; i < transfers.size(); ++i) finish(*op.buffers[i], transfers[i], op);
    op.buffers.clear();
  }

  void describe(rank_standing& s) override {
    const std::lock_guard lock(mutex_);
    s.posted = posted_;
    if (!context_) s.waits = connecting();
    else if (!waiting_.empty()) s.waits = waiting_.front()->waits_in();
    if (last_) s.last = last_->doing();
  }
  void fail(const watch_verdict& why) override {
    std::shared_ptr<::gloo::Context> context;
    {
      const std::lock_guard lock(mutex_);
      failure_ = why;
      for (const auto& [buffer, sends] : blocked_)
        if (sends) buffer->abortWaitSend();
        else buffer->abortWaitRecv();
      changed_.notify_all();
      context = context_;
    }
    if (context) context->closeConnections();
  }
  /// The wait of ranks that are not all connected yet.
  rank_wait connecting() const {
    rank_wait w{"world", rank_wait::connecting, {}, "the start of " + std::to_string(ranks_) + " ranks"};
    for (int r = 0; r < ranks_; ++r) w.members.push_back(r);
    return w;
  }

 private:
  using queues = std::map<gloo_operation::queue_key, std::deque<std::shared_ptr<gloo_operation>>>;
  static constexpr std::chrono::hours for_ever{24 * 365};
  static constexpr std::chrono::seconds connecting_limit{60};
  static constexpr int most_ranks = 1 << 12;  // the number of a group has 30 bits
  static constexpr std::uint64_t most_splits = 1 << 18;
  struct given_up {};

  void connect(store& s, std::chrono::milliseconds limit) {
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank_, ranks_);
    constexpr int longer = 5;  // Gloo waits this many times longer for a connection
    context->setTimeout(std::max(std::min<std::chrono::milliseconds>(limit, connecting_limit) / longer,
                                 std::chrono::milliseconds(1)));
    gloo_rendezvous rendezvous(s, *watch_, limit);
    context->connectFullMesh(rendezvous, device_);
    const std::lock_guard lock(mutex_);
    context_ = std::move(context);
  }

  /// Main function of a thread: takes a non-empty queue and executes its operations until it is empty.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [&] { return ending_ || !ready_.empty(); });
      if (ready_.empty()) return;
      const auto queue = ready_.front();
      ready_.pop_front();
      --idle_threads_;
      while (!queue->second.empty()) {
        const std::shared_ptr<gloo_operation> op = queue->second.front();
        lock.unlock();
        perform(*op);
        op->buffers.clear();
        op->memory.clear();
        lock.lock();
        queue->second.pop_front();
        op->over = true;  // the group may be destroyed from here on
        changed_.notify_all();
      }
      queues_.erase(queue);
      ++idle_threads_;
    }
  }

  void perform(gloo_operation& op) {
    try {
      op.perform(*this);
      return;
    } catch (const given_up&) {
    } catch (const comm_error& e) {
      watch_->give_up(e.what());
    } catch (const std::bad_alloc&) {
      watch_->give_up("weft: rank " + std::to_string(rank_) + " gave up: no memory for " + op.doing());
    } catch (const std::exception&) {  // from Gloo, not only gloo::Exception
      watch_->report_lost(op.peer, op.waits_in());
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
    op.failure = failure_;
  }

  std::shared_ptr<rank_watch> watch_;
  int rank_, ranks_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::mutex mutex_;
  std::shared_ptr<::gloo::Context> context_;  // null until all are connected
  std::condition_variable changed_, work_there_;
  queues queues_;                          // only those being served are empty
  std::deque<queues::iterator> ready_;     // not served by a thread
  std::size_t idle_threads_ = 0;
  std::vector<std::thread> threads_;
  std::map<std::string, std::int64_t> posted_;  // collectives, by group
  std::uint64_t groups_ = 0;                    // numbers given out by new_group()
  std::vector<const gloo_operation*> waiting_;  // operations that are waited for
  std::vector<std::pair<::gloo::transport::UnboundBuffer*, bool>>
      blocked_;  // buffers that threads wait for, and whether they send
  std::shared_ptr<gloo_operation> last_;
  std::optional<watch_verdict> failure_;
  bool ending_ = false;
};

}  // namespace weft::detail
