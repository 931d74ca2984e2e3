// SPDX-License-Identifier: MIT
// An operation of a group under mpirun and its stages: ranks exchange headers, then data, and reductions
// distribute the sums.
#pragma once

#include <memory>

#include <weft/comm/mpi_link.hpp>
#include <weft/comm/reduce.hpp>
#include <weft/comm/traffic.hpp>

namespace weft::detail {

/// A group of ranks, numbered as in the world.
struct mpi_group {
  std::string id;            // the same on all members, and unique
  std::uint64_t number = 0;  // likewise
  std::vector<int> members;
  int rank = 0;  // of this process

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int r) const { return members[static_cast<std::size_t>(r)]; }
};

class mpi_operation {
 public:
  mpi_operation(operation o, const mpi_group& group, mpi_link& link, std::uint64_t number)
      : what_(std::move(o)), group_(group), link_(link), number_(number) {}
  mpi_operation(const mpi_operation&) = delete;
  mpi_operation& operator=(const mpi_operation&) = delete;

  bool over() const { return stage_ == stage::over; }
  std::string failure;  // empty, or the reason for its failure

  /// Advances as far as possible without waiting.
  void advance() {
    while (stage_ != stage::over && stage_is_done()) next_stage();
  }
  /// Whether later operations of its stream must wait: they would take its headers.
  bool holds_back() const { return stage_ < stage::move || !failure.empty(); }

  /// Cancels receives that have not begun; called when everything has failed, after which the operation must
  /// not advance.
  void cancel() {
    for (MPI_Request& r : receiving_)
      if (r != MPI_REQUEST_NULL) MPI_Cancel(&r);
  }
  /// Whether MPI is done with the buffers.
  bool released() {
    const bool received = are_over(receiving_);
    return are_over(sending_) && received;
  }
  /// Gives up the operation. False if MPI may still access the buffers.
  bool withdraw() {
    bool pending = false;
    for (auto* requests : {&sending_, &receiving_})
      for (MPI_Request& r : *requests)
        if (r != MPI_REQUEST_NULL) {
          pending = true;
          MPI_Cancel(&r);
          MPI_Request_free(&r);
        }
    return !pending;
  }

  const operation& what() const { return what_; }
  std::string doing() const {
    return (is_message(what_.kind) ? "" : "#" + std::to_string(number_) + " ") + what_.text();
  }
  std::uint64_t number() const { return number_; }

 private:
  enum class stage { start, agree, move, collect, over };

  bool stage_is_done() { return stage_ == stage::agree ? have_headers() : released(); }
  /// Tests all of them, and clears the list if they are.
  static bool are_over(std::vector<MPI_Request>& requests) {
    int over = 1;
    if (!requests.empty())
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &over, MPI_STATUSES_IGNORE);
    if (over) requests.clear();
    return over != 0;
  }

  void next_stage() {
    switch (stage_) {
      case stage::start: return begin();
      case stage::agree:
        failure = what_.kind == collective::receive
                      ? disagreement_of_both()
                      : disagreement_of(what_, meant_, group_.members, group_.rank, number_);
        stage_ = failure.empty() && !what_.agrees_only ? stage::move : stage::over;
        if (stage_ == stage::move) begin_move();
        return;
      case stage::move:
        if (is_reduction(what_.kind)) return begin_collect();
        [[fallthrough]];
      default: stage_ = stage::over;
    }
  }

  /// Sends headers to the ranks that receive something; a message follows its header at once.
  void begin() {
    meant_.resize(group_.members.size());
    own_tags_.resize(group_.members.size());
    tags_.resize(group_.members.size());
    for (int r = 0; r < group_.size(); ++r) {
      const bool message = is_message(what_.kind);
      if (r == group_.rank && !message) meant_[at(r)] = fingerprint(what_, r);
      if (message ? r != what_.root : r == group_.rank) continue;
      peers_.push_back(r);
      if (what_.kind != collective::receive)
        own_tags_[at(r)] =
            link_.send_header(group_.world_rank(r), group_.number, stream_tag(), fingerprint(what_, r));
    }
    stage_ = what_.kind == collective::send ? stage::move : stage::agree;
    if (what_.kind == collective::send) begin_move();
  }
  int stream_tag() const { return is_message(what_.kind) ? what_.tag : mpi_stream::collectives; }

  bool have_headers() {
    for (; heard_ < peers_.size(); ++heard_) {
      const int r = peers_[heard_];
      auto header = link_.take_header({group_.number, stream_tag(), group_.world_rank(r)});
      if (!header) return false;
      meant_[at(r)] = header->meant;
      tags_[at(r)] = header->tag;
    }
    return true;
  }
  std::string disagreement_of_both() const {
    const fingerprint& sent = meant_[at(what_.root)];
    if (fingerprint(what_, what_.root).same_message(sent)) return "";
    return message_disagreement(group_.world_rank(what_.root), sent.words(), group_.world_rank(group_.rank),
                                what_.text());
  }
  static std::size_t at(int r) { return static_cast<std::size_t>(r); }

  /// Starts transfers, whose peers are ranks of the group.
  void start(const std::vector<transfer>& all) {
    for (transfer t : all) {
      const int tag = t.sends ? own_tags_[at(t.peer)] : tags_[at(t.peer)];
      t.peer = group_.world_rank(t.peer);
      link_.start(t, tag, t.sends ? sending_ : receiving_);
    }
  }

  void begin_move() {
    const const_elements message = what_.kind == collective::send ? what_.in : const_elements(what_.out);
    if (is_message(what_.kind))
      start({{what_.root, what_.kind == collective::send, const_cast<void*>(message.data),
              static_cast<std::size_t>(message.bytes())}});
    else if (is_reduction(what_.kind)) begin_reduction();
    else start(moves(what_, group_.rank, group_.size()));
  }

  /// Each rank receives the operands of its part of the result; its own operand stays in place.
  void begin_reduction() {
    parts_ = what_.in_counts.empty() ? even_parts(what_.out.count, group_.size()) : what_.in_counts;
    const std::size_t part = part_bytes();
    received_.resize(part * group_.members.size());
    for (int r = 0; r < group_.size(); ++r) operands_.push_back(received_.data() + at(r) * part);
    start(moves(exchange_of_parts(what_, parts_, group_.rank, received_.data()), group_.rank, group_.size(),
                [&](void*, const void* own, std::size_t) { operands_[at(group_.rank)] = own; }));
  }
  std::size_t part_bytes() const {
    return static_cast<std::size_t>(parts_[at(group_.rank)] * size_of(what_.type()));
  }

  /// Called when the operands have arrived: reduces them and sends the sums to the ranks that need them.
  void begin_collect() {
    stage_ = stage::collect;
    sums_.resize(part_bytes());
    visit_type(what_.type(), [&]<class T>(T) {
      reduce_ranks<T>(operands_, 0, parts_[at(group_.rank)], what_.op, reinterpret_cast<T*>(sums_.data()));
    });
    if (what_.kind == collective::reduce_scatter)
      return copy_bytes(what_.out.data, sums_.data(), sums_.size());
    start(moves(gathering_of_sums(what_, parts_, group_.rank, sums_.data()), group_.rank, group_.size()));
  }

  operation what_;
  const mpi_group& group_;
  mpi_link& link_;
  std::uint64_t number_;
  stage stage_ = stage::start;
  std::vector<int> peers_;            // ranks whose headers it needs, or the receiver of a message
  std::size_t heard_ = 0;             // number of them that were heard
  std::vector<fingerprint> meant_;    // by rank
  std::vector<int> own_tags_, tags_;  // tags of the data to and from each rank
  std::vector<MPI_Request> sending_, receiving_;
  rank_counts parts_;
  std::vector<const void*> operands_;  // of this rank's part, by rank
  std::vector<char> received_, sums_;
};

}  // namespace weft::detail
