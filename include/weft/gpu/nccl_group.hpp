// SPDX-License-Identifier: MIT
// A group of ranks over NCCL: its collectives, and its messages, for which each pair of ranks has an NCCL
// communicator.
//
// NCCL's messages have no tags and block their stream until both sides are there. So both sides first agree
// by messages between hosts: the higher rank of a pair announces its side; when the lower rank has the other
// side, it answers with a number; both queue the messages of the pair in the order of these numbers.
#pragma once

#include <cstring>
#include <map>

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/transfers.hpp>
#include <weft/comm/traffic.hpp>
#include <weft/gpu/nccl_rank.hpp>

namespace weft::gpu {

/// A group of ranks over NCCL, and the group of their hosts.
class nccl_group : public nccl_part {
 public:
  /// Collective over `ranks`.
  nccl_group(std::shared_ptr<nccl_rank> of, std::shared_ptr<communicator> ranks);
  nccl_group(const nccl_group&) = delete;
  nccl_group& operator=(const nccl_group&) = delete;
  ~nccl_group() override { owner->remove(*this); }

  const std::shared_ptr<nccl_rank> owner;
  const std::shared_ptr<communicator> host, letters;  // `letters`: for agreeing on messages
  const int rank, size;
  std::vector<int> members;  // as ranks of the world
  std::uint64_t posted = 0;  // number of collectives

  /// The channel of collectives; all ranks start to form it at the first call.
  nccl_channel& collectives();
  /// Throws the error of a failed channel, or timeout_error if it is not formed within `limit`.
  [[gnu::cold]] void await_collectives(std::chrono::milliseconds limit);

  /// The messages with another rank.
  struct pair_state {
    std::unique_ptr<nccl_channel> channel;
    std::uint64_t next = 0;                                     // number of the next message
    std::map<std::uint64_t, std::shared_ptr<nccl_task>> later;  // that wait for earlier ones
    std::map<int, std::deque<const void*>>
        unmet;  // by tag and direction: those whose other side is not there
  };
  pair_state& pair(int peer);

  void advance() override;
  [[gnu::cold]] void abort() noexcept override {
    collectives_.abort();
    for (auto& [peer, p] : pairs_) p.channel->abort();
  }

  /// A task for an operation, whose stages come after the work now queued on the device. If the memory of its
  /// operands is freed earlier, it is not reused until the task is over.
  std::shared_ptr<nccl_task> new_task(const operation& o) const;

 private:
  bool is_formed() const {
    const auto current = owner->gpu.queue().use();
    return collectives_.is_settled();
  }

  nccl_id id_{};
  std::optional<work> joining_;
  nccl_channel collectives_;
  std::map<int, pair_state> pairs_;
};

/// A collective: it is queued once the ranks have agreed on it.
class nccl_collective : public nccl_operation {
 public:
  nccl_collective(std::shared_ptr<nccl_group> g, operation o);

  void advance() override;
  bool is_over() const override { return task_->is_over; }
  bool is_queued() const override { return task_->is_queued; }
  std::string doing() const override { return "#" + std::to_string(number_) + " " + what_.text(); }
  const work* host_work() const override { return agreement_ && !task_->may_start ? &*agreement_ : nullptr; }

 private:
  const nccl_functions& nccl() const { return group_->owner->nccl; }

  template <class F>
  void then(F f) {
    task_->stages.emplace_back(std::move(f));
  }
  static bool is_even(const rank_counts& counts) {
    return std::all_of(counts.begin(), counts.end(), [&](index_t c) { return c == counts[0]; });
  }

  /// An operation without a reduction: by an NCCL call if there is one for it, otherwise by messages.
  void plan(const operation& o);
  void plan_gather(const operation& o);
  void plan_broadcast(const operation& o);
  void exchange(const operation& o);

  void plan_reduction();
  void plan_reduction_of_nccl();
  /// The parts from all ranks that this rank adds, followed by their sums.
  char* parts() { return channel_->scratch(bytes(mine_ * (group_->size + 1))); }
  void send_parts();
  char* sums() { return parts() + bytes(mine_ * group_->size); }
  void add_parts();
  void send_sums();
  std::size_t bytes(index_t count) const { return static_cast<std::size_t>(count * size_of(what_.type())); }

  std::shared_ptr<nccl_group> group_;
  operation what_;
  std::uint64_t number_;
  nccl_channel* channel_ = nullptr;
  std::optional<work> agreement_;
  std::shared_ptr<nccl_task> task_;
  rank_counts shares_;  // elements that each rank adds
  index_t mine_ = 0;
};

/// One side of a message.
class nccl_message : public nccl_operation {
 public:
  nccl_message(std::shared_ptr<nccl_group> g, operation o);

  /// Messages with the same tag are matched in the order in which they were posted, although they may arrive
  /// at any time.
  void advance() override;
  bool is_over() const override { return has_met_ && send_.is_completed() && (task_->is_over || is_empty()); }
  bool is_queued() const override { return has_met_ && (task_->is_queued || is_empty()); }
  std::string doing() const override { return what_.text(); }
  const work* host_work() const override { return has_met_ ? nullptr : &receive_; }

 private:
  struct letter {
    std::uint64_t number;
    nccl_id id;
  };
  template <class T>
  static elements bytes_of(T& x) {
    return {&x, sizeof x, dtype::u8};
  }
  bool is_empty() const { return own_.count == 0; }

  void answer();
  /// Queues the message after those of the pair with lower numbers.
  void queue_up();

  std::shared_ptr<nccl_group> group_;
  operation what_;
  weft::detail::fingerprint own_, others_;
  letter answer_{};
  bool leads_ = false, has_met_ = false;
  int tag_ = 0;
  std::shared_ptr<nccl_task> task_;
  work send_, receive_;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/nccl_group.ipp>
#endif
