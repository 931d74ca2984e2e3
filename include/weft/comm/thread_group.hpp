// SPDX-License-Identifier: MIT
// The shared state of a group of threads: the sequence of posted collectives, the messages by sender,
// receiver and tag, and the reports of mismatches.
//
// The last rank to arrive at a rendezvous (rendezvous.hpp) has all arguments and starts the work. A rank that
// gives up before that cancels the rendezvous, so that no rank accesses memory that has been freed.
#pragma once

#include <algorithm>

#include <weft/comm/rendezvous.hpp>
#include <weft/comm/standing.hpp>

namespace weft {

namespace detail {

/// The state of a group that is shared by its ranks.
class thread_group {
 public:
  /// A group of all ranks, or of the given ranks.
  thread_group(std::shared_ptr<thread_world> world, int ranks)
      : thread_group(std::move(world), first_ranks(ranks)) {}
  thread_group(std::shared_ptr<thread_world> world, std::vector<int> members);
  thread_group(const thread_group&) = delete;
  thread_group& operator=(const thread_group&) = delete;
  ~thread_group();

  int size() const { return ranks_; }
  std::string name(int rank) const { return "rank " + std::to_string(in_world(rank)); }  // in the world
  thread_world& world() const { return *world_; }

  /// Returns the rendezvous of the next collective of `rank`; the caller must release it.
  rendezvous& post(int rank, operation o);
  /// The last collective that `rank`, which calls this, has posted.
  rendezvous& last_of(int rank) const { return *at(rank).place; }
  void release(rendezvous& m, int uses = 1) {
    if (m.users.fetch_sub(uses) == uses) delete &m;
  }

  std::shared_ptr<message> post_message(int rank, operation o);

  /// Executes the chunks that no rank has taken, starting with those of this rank. True when the operation is
  /// complete. A complete rendezvous is executed even if the group has failed, because other ranks access its
  /// buffers.
  bool help(rendezvous& m, int rank);

  void wait(rendezvous& m, int rank, std::chrono::milliseconds limit);

  void wait(message& m, bool sends, int rank, std::chrono::milliseconds limit);

  /// For short messages, the sender is done when the message has been copied.
  bool is_over(const message& m, bool sends) const {
    return m.over || (sends && !m.copy.empty()) || (sends && m.sent && m.from.count == 0);
  }

  std::exception_ptr failure(const rendezvous& m) const;
  std::exception_ptr failure(const message& m) const {
    const std::lock_guard lock(world_->mutex);
    return m.over ? nullptr : world_->aborted;
  }
  bool over_or_aborted(const message& m, bool sends) const {
    const std::lock_guard lock(world_->mutex);
    return is_over(m, sends) || world_->aborted;
  }

  void leave(int rank);

  /// The groups that result from a split, by rank.
  std::vector<std::pair<std::shared_ptr<thread_group>, int>> divided(const rendezvous& m) const;

 private:
  static constexpr std::uint64_t none = static_cast<std::uint64_t>(-1);  // precedes the first number

  /// The activity of a rank.
  struct alignas(64) member {
    std::mutex guard;             // reports of other ranks read the following
    rendezvous* place = nullptr;  // the last collective that it has posted
    std::string message;          // the last message that it has posted after that
    std::atomic<bool> left = false;
  };
  member& at(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  static std::vector<int> first_ranks(int n) {
    std::vector<int> all;
    for (int r = 0; r < n; ++r) all.push_back(r);
    return all;
  }
  int in_world(int rank) const { return in_world_[static_cast<std::size_t>(rank)]; }

  void rethrow_aborted() const {  // requires the lock
    if (world_->aborted) std::rethrow_exception(world_->aborted);
  }

  rendezvous& next_of(rendezvous& m) const;

  void look_for_gone(const rendezvous& m, int rank);
  bool has_posted(int rank, const rendezvous& m) const {
    const std::lock_guard lock(at(rank).guard);
    return at(rank).place->number + 1 > m.number;
  }

  /// Fails because the peer of an operation of `rank` has left. Requires the lock.
  void give_up_on(int gone, int rank);

  /// Called by `rank` without the lock when all ranks have arrived. It executes small operations at once.
  void begin(rendezvous& m, int rank);
  void prepare(rendezvous& m);
  /// Makes everything fail by the exception that `rank` is handling.
  void give_up_after_exception(int rank);

  std::string disagreement_of(const rendezvous& m) const;

  std::string what_does(int rank) const;
  rank_wait wait_of(const thread_wait& w, int rank) const;

  /// The state of all ranks: the operations that sleeping ranks wait in, and the progress of their groups.
  rank_standings standings() const;
  std::string report_of(const thread_wait& w, int rank, std::chrono::milliseconds limit) const {
    return late_report(wait_of(w, rank), in_world(rank), limit.count(), standings());
  }

  void deliver(message& m, int from, int to);

  std::shared_ptr<thread_world> world_;
  int ranks_;
  std::vector<int> in_world_;  // by rank
  std::unique_ptr<member[]> members_;
  std::atomic<int> gone_ = 0;
  /// Registers a thread that tell() must wake, before it checks whether it must wait. Requires the lock.
  struct sleeper {
    sleeper(thread_world& w, int r, const thread_wait& in) : world(w), rank(r) {
      ++world.sleepers;
      world.waits.insert_or_assign(rank, in);
    }
    sleeper(const sleeper&) = delete;
    sleeper& operator=(const sleeper&) = delete;
    ~sleeper() {
      --world.sleepers;
      world.waits.erase(rank);
    }
    thread_world& world;
    int rank;
  };
  static constexpr int spins = 1000;  // between two yields, which take as long as a few hundred spins
  static constexpr std::chrono::microseconds awake{50};  // longer waits sleep
  static constexpr index_t small_bytes = 1 << 16;

  std::map<std::tuple<int, int, int>, std::vector<std::shared_ptr<message>>> messages_;
};

/// The handle of a collective. Made before the collective is posted: without a handle, nobody would wait
/// until the other ranks no longer use its buffers.
class collective_state : public work::state {
 public:
  collective_state(std::shared_ptr<thread_group> g, int rank) : group_(std::move(g)), rank_(rank) {}
  collective_state(const collective_state&) = delete;
  collective_state& operator=(const collective_state&) = delete;
  ~collective_state() override {
    if (rendezvous_) group_->release(*rendezvous_);
  }
  void post(operation o) { rendezvous_ = &group_->post(rank_, std::move(o)); }
  bool poll() override { return group_->help(*rendezvous_, rank_); }
  void wait(std::chrono::milliseconds limit) override { group_->wait(*rendezvous_, rank_, limit); }
  std::exception_ptr failure() const override { return group_->failure(*rendezvous_); }

 private:
  std::shared_ptr<thread_group> group_;
  rendezvous* rendezvous_ = nullptr;
  int rank_;
};

/// The handle of a message; likewise.
class message_state : public work::state {
 public:
  message_state(std::shared_ptr<thread_group> g, bool sends, int rank)
      : group_(std::move(g)), sends_(sends), rank_(rank) {}
  void post(operation o) { message_ = group_->post_message(rank_, std::move(o)); }
  bool poll() override { return group_->over_or_aborted(*message_, sends_); }
  void wait(std::chrono::milliseconds limit) override { group_->wait(*message_, sends_, rank_, limit); }
  std::exception_ptr failure() const override {
    return sends_ && !message_->copy.empty() ? nullptr : group_->failure(*message_);
  }

 private:
  std::shared_ptr<thread_group> group_;
  std::shared_ptr<message> message_;
  bool sends_;
  int rank_;
};

}  // namespace detail
}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/thread_group.ipp>
#endif
