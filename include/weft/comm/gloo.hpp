// SPDX-License-Identifier: MIT
// Ranks as plain processes over TCP, on Gloo's connections (Debian's libgloo-dev).
//
//   auto store = std::make_shared<tcp_store>(address, port, token);
//   gloo_communicator ranks(store, rank, size);
//
// An operation is a list of transfers: ranks tell each other what they mean, exchange parts, add
// what is theirs to add in the order of the tree, exchange sums. A thread of the group waits for
// transfers in the order of operations. When something goes wrong, the first rank that knows leaves
// the reason in the store, and closes its connections; the others find it there.
#pragma once

#include <cstring>
#include <deque>
#include <thread>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/unbound_buffer.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/gloo_network.hpp>
#include <weft/comm/gloo_proof.hpp>
#include <weft/comm/reduce.hpp>
#include <weft/comm/store.hpp>

namespace weft {

namespace detail {

/// A store as Gloo's rendezvous asks for it.
class gloo_rendezvous : public ::gloo::rendezvous::Store {
 public:
  gloo_rendezvous(std::shared_ptr<store> of, std::chrono::milliseconds limit) : of_(std::move(of)), limit_(limit) {}
  void set(const std::string& key, const std::vector<char>& data) override { of_->set(key, {data.begin(), data.end()}); }
  std::vector<char> get(const std::string& key) override {
    const std::string value = of_->get(key, limit_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { of_->wait(keys, limit_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& limit) override { of_->wait(keys, limit); }

 private:
  std::shared_ptr<store> of_;
  std::chrono::milliseconds limit_;
};

/// Bytes to or from another rank.
struct transfer {
  int peer;
  bool sends;
  void* data;
  std::size_t bytes;
};

/// What performs an operation: memory of its own and the buffers that transfers are in. Where one
/// fails, both stay until the reason is in the store: a buffer that goes takes its connection along.
struct gloo_attempt {
  std::chrono::steady_clock::time_point until;
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
  std::atomic<bool> over = false;
  std::exception_ptr failure;  // valid when it is over
};

/// What the rank of a group shares with its thread.
class gloo_group {
 public:
  gloo_group(std::shared_ptr<store> s, int rank, int size, std::shared_ptr<::gloo::transport::Device> device,
             std::string token, std::chrono::milliseconds limit)
      : store_(std::move(s)), rank_(rank), ranks_(size), device_(std::move(device)), token_(std::move(token)) {
    const without_sigpipe quiet;
    try {
      auto context = std::make_shared<::gloo::rendezvous::Context>(rank, size);
      context->setTimeout(limit);
      gloo_rendezvous rendezvous(store_, limit);
      const gloo_proof proof(*store_, token_, rank);
      context->connectFullMesh(rendezvous, device_);
      proof.exchange(*context, limit);
      context_ = context;
    } catch (const ::gloo::Exception& e) {
      throw comm_error("weft: gloo: rank " + std::to_string(rank) + " of " + std::to_string(size) + " could not be connected: " + e.what());
    }
    gloo_operation all_there;  // none may leave, and close its connections, before all have theirs
    all_there.what.kind = collective::barrier;
    all_there.what.timeout = limit;
    perform(all_there);
    if (all_there.failure) std::rethrow_exception(all_there.failure);
    collectives_ = std::thread([this] { work_through(collective_queue_); });
    messages_ = std::thread([this] { work_through(message_queue_); });
  }
  gloo_group(const gloo_group&) = delete;
  gloo_group& operator=(const gloo_group&) = delete;
  ~gloo_group() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
      if (!collective_queue_.empty() || !message_queue_.empty()) context_->closeConnections();
    }
    collectives_.join();
    messages_.join();
  }

  int rank() const { return rank_; }
  int size() const { return ranks_; }
  const std::shared_ptr<store>& shared_store() const { return store_; }
  const std::shared_ptr<::gloo::transport::Device>& device() const { return device_; }
  const std::string& token() const { return token_; }

  std::shared_ptr<gloo_operation> post(operation o) {
    const without_sigpipe quiet;
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    auto op = std::make_shared<gloo_operation>();
    op->what = std::move(o);
    if (is_message(op->what.kind)) {
      begin_message(*op);
      message_queue_.push_back(op);
    } else {
      op->number = number_++;
      collective_queue_.push_back(op);
    }
    changed_.notify_all();
    return op;
  }

  void wait(const gloo_operation& op) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return op.over.load(); });
  }

  void give_up(const std::string& reason) {
    fail(reason);
    context_->closeConnections();
  }

 private:
  using queue = std::deque<std::shared_ptr<gloo_operation>>;
  static constexpr std::size_t text_bytes = 512;

  void work_through(queue& q) {
    for (;;) {
      std::shared_ptr<gloo_operation> op;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ending_ || !q.empty(); });
        if (q.empty()) return;
        op = q.front();
        op->failure = failure_;
      }
      if (!op->failure) perform(*op);
      op->buffers.clear();
      const std::lock_guard lock(mutex_);
      q.pop_front();
      op->over = true;
      changed_.notify_all();
    }
  }

  void perform(gloo_operation& op) {
    gloo_attempt attempt{.until = std::chrono::steady_clock::now() + op.what.timeout};
    try {
      if (is_message(op.what.kind)) finish_message(op, attempt);
      else perform_collective(op, attempt);
    } catch (const ::gloo::Exception&) {
      const bool late = std::chrono::steady_clock::now() >= attempt.until;
      const std::string doing = "rank " + std::to_string(rank_) + " in #" + std::to_string(op.number) + " " + op.what.text();
      const std::string who = "rank " + std::to_string(attempt.peer);
      if (late) fail<timeout_error>("weft: " + doing + " waited " + std::to_string(op.what.timeout.count()) + " ms; not there: " + who);
      else fail("weft: " + who + " is gone; " + doing + " waits for it");
      op.failure = failure_;
    } catch (const comm_error& e) {
      fail(e.what());
      op.failure = failure_;
    }
  }

  /// Everything fails from now on: with the reason of the first rank that knew one.
  template <class Error = comm_error>
  void fail(const std::string& reason) {
    std::string first = reason;
    try {
      first = store_->compare_set("failed", "", reason);
    } catch (const error&) {  // the store may be gone with its rank
    }
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = first == reason ? std::make_exception_ptr(Error(reason)) : std::make_exception_ptr(comm_error(first));
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
      wait_for(*attempt.buffers[i], transfers[i].sends, attempt.until);
    }
    attempt.buffers.clear();
  }
  static void wait_for(::gloo::transport::UnboundBuffer& b, bool sends, std::chrono::steady_clock::time_point until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());  // not early
    const auto limit = std::max(left, std::chrono::milliseconds(1));
    if (sends) b.waitSend(limit);
    else b.waitRecv(limit);
  }

  void begin_message(gloo_operation& op) {
    const operation& o = op.what;
    const std::uint64_t slot = std::uint64_t{1} << 62 | static_cast<std::uint32_t>(o.tag);
    const bool sends = o.kind == collective::send;
    void* data = sends ? const_cast<void*>(o.in.data) : o.out.data;
    const auto bytes = static_cast<std::size_t>(sends ? o.in.bytes() : static_cast<const_elements>(o.out).bytes());
    op.buffers.push_back(context_->createUnboundBuffer(data, bytes));
    try {
      if (sends) op.buffers[0]->send(o.root, slot);
      else op.buffers[0]->recv(o.root, slot);
    } catch (const ::gloo::Exception& e) {
      throw comm_error("weft: rank " + std::to_string(o.root) + " is gone: " + o.text());
    }
  }
  void finish_message(gloo_operation& op, gloo_attempt& attempt) {
    attempt.peer = op.what.root;
    wait_for(*op.buffers[0], op.what.kind == collective::send, attempt.until);
  }

  void perform_collective(gloo_operation& op, gloo_attempt& attempt) {
    const operation& o = op.what;
    agree(op, attempt);
    const std::uint64_t slot = 4 * op.number;
    if (!is_reduction(o.kind)) {
      exchange(slot + 1, moves(o), attempt);
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
      char* from = const_cast<char*>(static_cast<const char*>(o.in.data)) + static_cast<std::size_t>(at) * size;
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
    visit_type(o.type(), [&]<class T>(T) { reduce_ranks<T>(sources, 0, mine, o.op, reinterpret_cast<T*>(sums)); });
    // Sums to those who want them.
    std::vector<transfer> to_all;
    at = 0;
    const bool all = o.kind == collective::all_reduce, wants = all || (o.kind == collective::reduce && o.root == rank_);
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

  static void add_transfer(std::vector<transfer>& to, int peer, bool sends, void* data, std::size_t bytes) {
    if (bytes > 0) to.push_back({peer, sends, data, bytes});
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

  /// The transfers of an operation that adds nothing; what stays on the rank is copied at once.
  std::vector<transfer> moves(const operation& o) const {
    std::vector<transfer> all;
    const auto size = static_cast<std::size_t>(size_of(o.type()));
    const auto bytes = [&](index_t count) { return static_cast<std::size_t>(count) * size; };
    char* const in = const_cast<char*>(static_cast<const char*>(o.in.data));
    char* const out = static_cast<char*>(o.out.data);
    const auto count = [](const rank_counts& c, int r) { return c[static_cast<std::size_t>(r)]; };
    index_t sent = 0, received = 0;
    for (int r = 0; r < ranks_; ++r) {
      const bool self = r == rank_;
      switch (o.kind) {
        case collective::broadcast:
          if (self) break;
          if (rank_ == o.root) add_transfer(all, r, true, in, bytes(o.in.count));
          else if (r == o.root) add_transfer(all, r, false, out, bytes(o.out.count));
          break;
        case collective::all_gather: case collective::gather: {
          const bool all_want = o.kind == collective::all_gather;
          if (!self && (all_want || r == o.root)) add_transfer(all, r, true, in, bytes(o.in.count));
          if (all_want || rank_ == o.root) {
            if (self) copy(out + bytes(received), in, bytes(o.in.count));
            else add_transfer(all, r, false, out + bytes(received), bytes(count(o.out_counts, r)));
          }
          received += count(o.out_counts, r);
          break;
        }
        case collective::scatter:
          if (rank_ == o.root) {
            if (self) copy(out, in + bytes(sent), bytes(count(o.in_counts, r)));
            else add_transfer(all, r, true, in + bytes(sent), bytes(count(o.in_counts, r)));
          } else if (r == o.root) {
            add_transfer(all, r, false, out, bytes(o.out.count));
          }
          sent += count(o.in_counts, r);
          break;
        case collective::all_to_all:
          if (self) {
            copy(out + bytes(received), in + bytes(sent), bytes(count(o.in_counts, r)));
          } else {
            add_transfer(all, r, true, in + bytes(sent), bytes(count(o.in_counts, r)));
            add_transfer(all, r, false, out + bytes(received), bytes(count(o.out_counts, r)));
          }
          sent += count(o.in_counts, r);
          received += count(o.out_counts, r);
          break;
        default: break;  // a barrier, a split: all have agreed
      }
    }
    return all;
  }
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes && to != from) std::memmove(to, from, bytes);
  }

  std::shared_ptr<store> store_;
  int rank_, ranks_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::string token_;
  std::shared_ptr<::gloo::Context> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  queue collective_queue_, message_queue_;
  std::uint64_t number_ = 0;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread collectives_, messages_;
};

class gloo_state : public work::state {
 public:
  gloo_state(std::shared_ptr<gloo_group> g, std::shared_ptr<gloo_operation> o) : group_(std::move(g)), operation_(std::move(o)) {}
  bool poll() override { return operation_->over; }
  void wait(std::chrono::milliseconds) override { group_->wait(*operation_); }  // its thread keeps the time
  std::exception_ptr failure() const override { return operation_->over ? operation_->failure : nullptr; }

 private:
  std::shared_ptr<gloo_group> group_;
  std::shared_ptr<gloo_operation> operation_;
};

}  // namespace detail

class gloo_communicator : public communicator {
 public:
  /// Meets the others in `s`. Throws comm_error or timeout_error.
  gloo_communicator(std::shared_ptr<store> s, int rank, int size, const gloo_network& network = {},
                    std::chrono::milliseconds limit = default_timeout)
      : group_(std::make_shared<detail::gloo_group>(std::move(s), rank, size, detail::device_on(network), network.token, limit)) {}
  explicit gloo_communicator(std::shared_ptr<detail::gloo_group> group) : group_(std::move(group)) {}

  const char* name() const override { return "gloo"; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override {
    std::vector<std::int64_t> mine{color, key}, all(2 * static_cast<std::size_t>(size()));
    o.control = true;
    const std::chrono::milliseconds limit = o.timeout;
    all_gather(mine, all, {}, std::move(o)).wait();
    const int number = splits_++;
    if (color < 0) return nullptr;
    std::vector<std::pair<std::int64_t, int>> members;
    for (int r = 0; r < size(); ++r)
      if (all[2 * static_cast<std::size_t>(r)] == color) members.emplace_back(all[2 * static_cast<std::size_t>(r) + 1], r);
    std::sort(members.begin(), members.end());
    const auto own = std::find(members.begin(), members.end(), std::pair<std::int64_t, int>(key, rank()));
    const auto inner = std::make_shared<prefix_store>("split" + std::to_string(number) + "." + std::to_string(color), group_->shared_store());
    return std::make_shared<gloo_communicator>(std::make_shared<detail::gloo_group>(
        inner, static_cast<int>(own - members.begin()), static_cast<int>(members.size()), group_->device(), group_->token(), limit));
  }

  void abort(const std::string& reason) override { group_->give_up("weft: rank " + std::to_string(rank()) + " gave up: " + reason); }

 protected:
  work start(operation o) override {
    const auto limit = o.timeout;
    return work(std::make_shared<detail::gloo_state>(group_, group_->post(std::move(o))), limit);
  }

 private:
  std::shared_ptr<detail::gloo_group> group_;
  int splits_ = 0;
};

}  // namespace weft
