// SPDX-License-Identifier: MIT
// A group of ranks on Gloo's connections: its operations and the thread that performs them.
//
// An operation is a list of transfers: ranks tell each other what they mean, exchange parts, add
// what is theirs to add in the order of the tree, exchange sums. A thread of the group waits for
// transfers in the order of operations; whoever waits for an operation keeps the time. A rank that
// is late, or whose connection breaks, is not blamed here: the watch over all ranks finds out who is
// gone (watch.hpp), and then fails every group and closes its connections.
#pragma once

#include <cstring>
#include <deque>
#include <thread>

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/gloo_network.hpp>
#include <weft/comm/gloo_proof.hpp>
#include <weft/comm/gloo_rendezvous.hpp>
#include <weft/comm/gloo_transfers.hpp>
#include <weft/comm/reduce.hpp>
#include <weft/comm/watch.hpp>

namespace weft::detail {

/// What performs an operation: memory of its own and the buffers that transfers are in.
struct gloo_attempt {
  int peer = -1;  // that it waits for
  std::deque<std::vector<char>> memory = {};
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> buffers = {};

  char* allocate(std::size_t bytes) { return memory.emplace_back(bytes).data(); }
};

/// An operation that has been posted.
struct gloo_operation {
  operation what;
  std::uint64_t number = 0;
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> buffers;  // of a message: posted at once
  bool refused = false;  // the same, and its connection was closed
  std::atomic<bool> over = false;
  std::optional<watch_verdict> failure;  // valid when it is over
};

/// What the rank of a group shares with its thread.
class gloo_group : public watched_group {
 public:
  /// `members`: its ranks, by their numbers in the world. `id`: the same on all of them, and on no others.
  /// `token`: that of the job.
  gloo_group(std::shared_ptr<store> s, std::shared_ptr<rank_watch> watch, std::string id,
             std::vector<int> members, int rank, std::shared_ptr<::gloo::transport::Device> device,
             std::string token, std::chrono::milliseconds limit)
      : store_(std::move(s)),
        watch_(std::move(watch)),
        id_(std::move(id)),
        members_(std::move(members)),
        rank_(rank),
        ranks_(static_cast<int>(members_.size())),
        device_(std::move(device)),
        token_(std::move(token)) {
    const without_sigpipe quiet;
    watch_->add(*this);
    try {
      connect(limit);
    } catch (...) {
      watch_->remove(*this);
      throw;
    }
    collectives_ = std::thread([this] { work_through(collective_queue_); });
    messages_ = std::thread([this] { work_through(message_queue_); });
    try {  // none may leave, and close its connections, before all have theirs
      const auto all_there = post({.kind = collective::barrier}, meeting_number);
      wait(*all_there, limit);
      if (all_there->failure) fail_with(*all_there->failure, *all_there);
    } catch (...) {
      end();
      throw;
    }
  }
  gloo_group(const gloo_group&) = delete;
  gloo_group& operator=(const gloo_group&) = delete;
  ~gloo_group() override { end(); }

  int rank() const { return rank_; }
  int size() const { return ranks_; }
  const std::string& id() const { return id_; }
  const std::vector<int>& members() const { return members_; }
  const std::shared_ptr<rank_watch>& watch() const { return watch_; }
  const std::shared_ptr<store>& shared_store() const { return store_; }
  const std::shared_ptr<::gloo::transport::Device>& device() const { return device_; }
  const std::string& token() const { return token_; }

  std::shared_ptr<gloo_operation> post(operation o) { return post(std::move(o), number_); }

  /// Over when the operation is. After `limit` the watch finds out why it is not, and it fails.
  void wait(const gloo_operation& op, std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(&op);
    const auto over = [&] { return op.over.load(); };
    if (!changed_.wait_for(lock, std::min<std::chrono::milliseconds>(limit, for_ever), over)) {
      const rank_wait w = wait_of(op);
      lock.unlock();
      watch_->report_late(w, limit);
      lock.lock();
      changed_.wait(lock, over);
    }
    std::erase(waiting_, &op);
  }

  /// Everything fails on all ranks.
  void give_up(const std::string& reason) {
    watch_->give_up(reason);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
  }

  void describe(rank_standing& s) override {
    const std::lock_guard lock(mutex_);
    s.posted[id_] = static_cast<std::int64_t>(number_);
    if (connecting_) s.waits = connecting();
    else if (!waiting_.empty()) s.waits = wait_of(*waiting_.front());
    if (last_) s.last = doing(*last_);
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

  [[noreturn]] void fail_with(watch_verdict why, const gloo_operation& op) const {
    const std::string here = doing(op);
    if (why.text.find(op.what.text()) == std::string::npos)
      why.text += "; rank " + std::to_string(own()) + " is in " + here;
    throw_verdict(why);
  }

 private:
  using queue = std::deque<std::shared_ptr<gloo_operation>>;
  static constexpr std::size_t text_bytes = 512;
  static constexpr std::chrono::hours for_ever{24 * 365};
  static constexpr std::chrono::seconds connecting_limit{60};
  static constexpr std::uint64_t meeting_number = std::uint64_t{1} << 58;  // of the barrier at the start
  struct given_up {};

  void connect(std::chrono::milliseconds limit) {
    try {
      auto context = std::make_shared<::gloo::rendezvous::Context>(rank_, ranks_);
      constexpr int longer = 5;  // Gloo waits so many times as long for a connection
      context->setTimeout(std::max(std::min<std::chrono::milliseconds>(limit, connecting_limit) / longer,
                                   std::chrono::milliseconds(1)));
      gloo_rendezvous rendezvous(store_, *watch_, limit);
      const gloo_proof proof(*store_, token_, rank_);
      context->connectFullMesh(rendezvous, device_);
      proof.exchange(*context, limit);
      const std::lock_guard lock(mutex_);
      context_ = context;
      connecting_ = false;
      if (!failure_) return;
    } catch (const timeout_error&) {
      watch_->report_late(connecting(), limit);
    } catch (const comm_error& e) {
      watch_->give_up(e.what());
    } catch (const std::exception&) {  // Gloo does not say which rank it is about
      watch_->report_late(connecting(), limit);
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
    throw_verdict(*failure_);
  }
  void end() {
    watch_->remove(*this);
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    collectives_.join();
    messages_.join();
  }

  int own() const { return members_[static_cast<std::size_t>(rank_)]; }
  rank_wait connecting() const {
    return {id_, rank_wait::connecting, members_, "the start of " + std::to_string(ranks_) + " ranks"};
  }
  static std::string doing(const gloo_operation& op) {
    const bool counts = !is_message(op.what.kind) && op.number != meeting_number;
    return (counts ? "#" + std::to_string(op.number) + " " : "") + op.what.text();
  }
  rank_wait wait_of(const gloo_operation& op) const {
    if (op.number == meeting_number) return connecting();
    if (is_message(op.what.kind))
      return {id_, rank_wait::message, {members_[static_cast<std::size_t>(op.what.root)]}, doing(op)};
    return {id_, static_cast<std::int64_t>(op.number), members_, doing(op)};
  }

  std::shared_ptr<gloo_operation> post(operation o, std::uint64_t number) {
    const without_sigpipe quiet;
    const std::lock_guard lock(mutex_);
    auto op = std::make_shared<gloo_operation>();
    op->what = std::move(o);
    op->number = number;
    if (failure_) fail_with(*failure_, *op);
    if (is_message(op->what.kind)) {
      begin_message(*op);
      message_queue_.push_back(op);
    } else {
      number_ += number == number_;
      collective_queue_.push_back(op);
    }
    last_ = op;
    changed_.notify_all();
    return op;
  }

  void work_through(queue& q) {
    for (;;) {
      std::shared_ptr<gloo_operation> op;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !q.empty(); });
        if (q.empty()) return;
        op = q.front();
      }
      perform(*op);
      op->buffers.clear();
      const std::lock_guard lock(mutex_);
      q.pop_front();
      op->over = true;
      changed_.notify_all();
    }
  }

  void perform(gloo_operation& op) {
    gloo_attempt attempt;
    try {
      if (is_message(op.what.kind)) finish_message(op, attempt);
      else perform_collective(op, attempt);
      return;
    } catch (const given_up&) {
    } catch (const comm_error& e) {
      watch_->give_up(e.what());
    } catch (const std::bad_alloc&) {
      watch_->give_up("weft: rank " + std::to_string(own()) + " gave up: no memory for " + doing(op));
    } catch (const std::exception&) {  // of Gloo, not only gloo::Exception
      watch_->report_lost(members_[static_cast<std::size_t>(attempt.peer)], wait_of(op));
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_.has_value(); });
    op.failure = failure_;
  }

  void exchange(std::uint64_t slot, const std::vector<transfer>& transfers, gloo_attempt& attempt) {
    for (const transfer& t : transfers) {
      attempt.peer = t.peer;
      auto& b = attempt.buffers.emplace_back(context_->createUnboundBuffer(t.data, t.bytes));
      if (t.sends) b->send(t.peer, slot);
      else b->recv(t.peer, slot);
    }
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      attempt.peer = transfers[i].peer;
      wait_for(*attempt.buffers[i], transfers[i].sends);
    }
    attempt.buffers.clear();
  }
  /// Throws given_up if the group fails meanwhile. Gloo keeps no time: where it is late, it closes all
  /// connections without a word.
  void wait_for(::gloo::transport::UnboundBuffer& b, bool sends) {
    const std::pair<::gloo::transport::UnboundBuffer*, bool> entry(&b, sends);
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
      done = sends ? b.waitSend(std::chrono::milliseconds(for_ever))
                   : b.waitRecv(std::chrono::milliseconds(for_ever));
    } catch (...) {
      forget();
      throw;
    }
    forget();
    if (!done) throw given_up();
  }

  void begin_message(gloo_operation& op) {
    const operation& o = op.what;
    const std::uint64_t slot = std::uint64_t{1} << 62 | static_cast<std::uint32_t>(o.tag);
    const bool sends = o.kind == collective::send;
    void* data = sends ? const_cast<void*>(o.in.data) : o.out.data;
    const auto bytes =
        static_cast<std::size_t>(sends ? o.in.bytes() : static_cast<const_elements>(o.out).bytes());
    op.buffers.push_back(context_->createUnboundBuffer(data, bytes));
    try {
      if (sends) op.buffers[0]->send(o.root, slot);
      else op.buffers[0]->recv(o.root, slot);
    } catch (const std::exception&) {
      op.refused = true;  // its thread finds out why
    }
  }
  void finish_message(gloo_operation& op, gloo_attempt& attempt) {
    attempt.peer = op.what.root;
    if (op.refused) throw ::gloo::IoException("the connection is closed");
    wait_for(*op.buffers[0], op.what.kind == collective::send);
  }

  void perform_collective(gloo_operation& op, gloo_attempt& attempt) {
    const operation& o = op.what;
    agree(op, attempt);
    const std::uint64_t slot = 4 * op.number;
    if (!is_reduction(o.kind)) {
      exchange(slot + 1, moves(o, rank_, ranks_), attempt);
      return;
    }
    // Parts to those who add them.
    const auto size = static_cast<std::size_t>(size_of(o.type()));
    const rank_counts shares = o.in_counts.empty() ? even_parts(o.out.count, ranks_) : o.in_counts;
    const index_t mine = shares[static_cast<std::size_t>(rank_)];
    const auto part = static_cast<std::size_t>(mine) * size;
    char* const parts = attempt.allocate(part * static_cast<std::size_t>(ranks_));
    std::vector<transfer> to_adders;
    std::vector<const void*> sources;
    index_t at = 0;
    for (int r = 0; r < ranks_; ++r) {
      char* from =
          const_cast<char*>(static_cast<const char*>(o.in.data)) + static_cast<std::size_t>(at) * size;
      const index_t count = shares[static_cast<std::size_t>(r)];
      char* received = parts + static_cast<std::size_t>(r) * part;
      if (r != rank_) {
        add_transfer(to_adders, r, true, from, static_cast<std::size_t>(count) * size);
        add_transfer(to_adders, r, false, received, part);
      }
      sources.push_back(r == rank_ ? from : received);
      at += count;
    }
    exchange(slot + 1, to_adders, attempt);
    char* const sums = attempt.allocate(part);
    visit_type(o.type(),
               [&]<class T>(T) { reduce_ranks<T>(sources, 0, mine, o.op, reinterpret_cast<T*>(sums)); });
    // Sums to those who want them.
    std::vector<transfer> to_all;
    at = 0;
    const bool all = o.kind == collective::all_reduce,
               wants = all || (o.kind == collective::reduce && o.root == rank_);
    for (int r = 0; r < ranks_ && o.kind != collective::reduce_scatter; ++r) {
      const index_t count = shares[static_cast<std::size_t>(r)];
      char* to = static_cast<char*>(o.out.data) + static_cast<std::size_t>(at) * size;
      at += count;
      if (r == rank_) continue;
      if (all || r == o.root) add_transfer(to_all, r, true, sums, part);
      if (wants) add_transfer(to_all, r, false, to, static_cast<std::size_t>(count) * size);
    }
    exchange(slot + 2, to_all, attempt);
    at = 0;
    for (int r = 0; r < rank_; ++r) at += shares[static_cast<std::size_t>(r)];
    if (o.kind == collective::reduce_scatter) at = 0;
    if (part && (wants || o.kind == collective::reduce_scatter))
      std::memcpy(static_cast<char*>(o.out.data) + static_cast<std::size_t>(at) * size, sums, part);
  }

  /// Each rank tells each other which operation it means.
  void agree(const gloo_operation& op, gloo_attempt& attempt) {
    char* const meant = attempt.allocate(text_bytes * static_cast<std::size_t>(ranks_));
    const auto text_of = [&](int r) { return meant + static_cast<std::size_t>(r) * text_bytes; };
    const std::string text = op.what.text();
    std::copy_n(text.begin(), std::min(text.size(), text_bytes - 1), text_of(rank_));
    std::vector<transfer> all;
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      all.push_back({r, false, text_of(r), text_bytes});
      all.push_back({r, true, text_of(rank_), text_bytes});
    }
    exchange(4 * op.number, all, attempt);
    std::vector<std::string> texts;
    for (int r = 0; r < ranks_; ++r) texts.emplace_back(text_of(r), ::strnlen(text_of(r), text_bytes));
    if (const std::string wrong = disagreement(texts, op.number); !wrong.empty()) throw comm_error(wrong);
  }

  std::shared_ptr<store> store_;
  std::shared_ptr<rank_watch> watch_;
  std::string id_;
  std::vector<int> members_;
  int rank_, ranks_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::string token_;
  std::shared_ptr<::gloo::Context> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  queue collective_queue_, message_queue_;
  std::uint64_t number_ = 0;
  std::vector<const gloo_operation*> waiting_;  // that somebody waits for
  std::vector<std::pair<::gloo::transport::UnboundBuffer*, bool>>
      blocked_;  // that threads wait for, and whether it sends
  std::shared_ptr<gloo_operation> last_;
  std::optional<watch_verdict> failure_;
  bool connecting_ = true, ending_ = false;
  std::thread collectives_, messages_;
};

class gloo_state : public work::state {
 public:
  gloo_state(std::shared_ptr<gloo_group> g, std::shared_ptr<gloo_operation> o)
      : group_(std::move(g)), operation_(std::move(o)) {}
  bool poll() override { return operation_->over; }
  void wait(std::chrono::milliseconds limit) override { group_->wait(*operation_, limit); }
  std::exception_ptr failure() const override {
    if (!operation_->over || !operation_->failure) return nullptr;
    try {
      group_->fail_with(*operation_->failure, *operation_);
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  std::shared_ptr<gloo_group> group_;
  std::shared_ptr<gloo_operation> operation_;
};

}  // namespace weft::detail
