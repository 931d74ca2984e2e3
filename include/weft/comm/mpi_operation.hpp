// SPDX-License-Identifier: MIT
// An operation of a group under mpirun and its stages: ranks exchange descriptions of the operation, then
// data, and reductions collect the results.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>

#include <algorithm>
#include <limits>
#include <memory>

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/reduce.hpp>
#include <weft/comm/traffic.hpp>

namespace weft::detail {

/// Data shared by the operations of a group.
struct mpi_channels {
  boost::mpi::communicator data, control, headers;  // `control` of collectives, `headers` of messages
  std::vector<int> members;  // by their ranks in the world
};

/// An operation and its stage.
class mpi_operation {
 public:
  mpi_operation(operation o, const mpi_channels& over, std::uint64_t number)
      : what_(std::move(o)),
        data_(over.data),
        control_(over.control),
        headers_(over.headers),
        members_(over.members),
        number_(number) {
    if (is_message(what_.kind)) as_int(std::max(what_.in.count, what_.out.count));
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &ranks_);
  }
  mpi_operation(const mpi_operation&) = delete;
  mpi_operation& operator=(const mpi_operation&) = delete;

  bool over() const { return stage_ == stage::over; }
  std::string failure;  // empty, or the reason for its failure

  /// Advances as far as possible without waiting.
  void advance() {
    while (stage_ != stage::over && requests_done()) next_stage();
  }
  /// Whether later receives must wait: they would take the data of this message.
  bool holds_back() const { return stage_ == stage::agree || !failure.empty(); }

  /// Cancels messages without a counterpart. False if MPI may still access the buffers.
  bool withdraw() {
    if (stage_ == stage::over || stage_ == stage::start) return true;
    if (stage_ != stage::agree && !is_message(what_.kind)) return false;
    for (MPI_Request& r : requests_)
      if (r != MPI_REQUEST_NULL) {
        MPI_Cancel(&r);
        MPI_Request_free(&r);
      }
    return false;
  }

  const operation& what() const { return what_; }
  std::string doing() const {
    return (is_message(what_.kind) ? "" : "#" + std::to_string(number_) + " ") + what_.text();
  }
  std::uint64_t number() const { return number_; }

 private:
  enum class stage { start, agree, move, collect, over };

  bool requests_done() {
    int done = 1;
    if (!requests_.empty())
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done;
  }

  void next_stage() {
    requests_.clear();
    switch (stage_) {
      case stage::start:
        if (what_.kind == collective::send) begin_send();
        else if (what_.kind == collective::receive) begin_receive();
        else if (ranks_ == 1) begin_move();
        else begin_agreement();
        break;
      case stage::agree:
        failure = is_message(what_.kind) ? disagreement_of_both() : disagreement_of_all();
        if (failure.empty()) begin_move();
        else stage_ = stage::over;
        break;
      case stage::move:
        if (is_reduction(what_.kind)) return begin_collect();
        stage_ = stage::over;
        break;
      default: stage_ = stage::over;
    }
  }

  /// Each rank sends a description of its operation to every other rank.
  void begin_agreement() {
    const auto n = static_cast<std::size_t>(ranks_);
    meant_.assign(n, {});
    fingerprint& mine = meant_[static_cast<std::size_t>(rank_)] = fingerprint(what_);
    requests_.assign(2 * n, MPI_REQUEST_NULL);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const auto at = static_cast<std::size_t>(r);
      MPI_Irecv(&meant_[at], sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at]);
      MPI_Isend(&mine, sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at + 1]);
    }
    stage_ = stage::agree;
  }
  /// A sender sends its description and the data at once; the receiver checks the former before it accepts
  /// the latter.
  void begin_send() {
    meant_.assign(1, fingerprint(what_));
    requests_.assign(2, MPI_REQUEST_NULL);
    MPI_Isend(meant_.data(), sizeof(fingerprint), MPI_BYTE, what_.root, what_.tag, headers_, &requests_[0]);
    MPI_Isend(what_.in.data, as_int(what_.in.count), element(), what_.root, what_.tag, data_, &requests_[1]);
    stage_ = stage::move;
  }
  void begin_receive() {
    meant_.assign(1, {});
    requests_.assign(1, MPI_REQUEST_NULL);
    MPI_Irecv(meant_.data(), sizeof(fingerprint), MPI_BYTE, what_.root, what_.tag, headers_, &requests_[0]);
    stage_ = stage::agree;
  }
  std::string disagreement_of_both() const {
    if (fingerprint(what_).same_message(meant_[0])) return "";
    return message_disagreement(members_[static_cast<std::size_t>(what_.root)], meant_[0].words(),
                                members_[static_cast<std::size_t>(rank_)], what_.text());
  }
  std::string disagreement_of_all() const {
    std::vector<std::string> texts;
    for (const fingerprint& f : meant_) texts.push_back(f.words());
    return disagreement(texts, members_, number_);
  }

  MPI_Datatype element() const {
    switch (size_of(what_.type())) {
      case 8: return MPI_UINT64_T;
      case 4: return MPI_UINT32_T;
      case 2: return MPI_UINT16_T;
      default: return MPI_BYTE;
    }
  }
  static int as_int(index_t n) {
    if (n > std::numeric_limits<int>::max())
      throw comm_error("weft: mpi: " + std::to_string(n) + " elements in one part; MPI counts to 2^31");
    return static_cast<int>(n);
  }
  struct parts {
    std::vector<int> count, at;
  };
  static parts parts_of(const rank_counts& counts) {
    parts p;
    index_t at = 0;
    for (index_t c : counts) {
      p.count.push_back(as_int(c));
      p.at.push_back(as_int(at));
      at += c;
    }
    return p;
  }

  void begin_move() {
    stage_ = stage::move;
    requests_.assign(1, MPI_REQUEST_NULL);
    MPI_Request* r = requests_.data();
    const void* in = what_.in.data;
    void* out = what_.out.data;
    const MPI_Datatype type = element();
    sent_ = parts_of(what_.in_counts);
    received_ = parts_of(what_.out_counts);
    const auto own = static_cast<std::size_t>(rank_);
    switch (what_.kind) {
      case collective::all_reduce:
      case collective::reduce: sent_ = parts_of(even_parts(what_.out.count, ranks_)); [[fallthrough]];
      case collective::reduce_scatter: {
        const index_t mine = sent_.count[own];
        received_ = parts_of(rank_counts(static_cast<std::size_t>(ranks_), mine));
        gathered_.resize(static_cast<std::size_t>(mine * ranks_ * size_of(what_.type())));
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, gathered_.data(),
                       received_.count.data(), received_.at.data(), type, data_, r);
        break;
      }
      case collective::broadcast: MPI_Ibcast(out, as_int(what_.out.count), type, what_.root, data_, r); break;
      case collective::all_gather:
        MPI_Iallgatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(),
                        type, data_, r);
        break;
      case collective::gather:
        MPI_Igatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(), type,
                     what_.root, data_, r);
        break;
      case collective::scatter:
        MPI_Iscatterv(in, sent_.count.data(), sent_.at.data(), type, out, as_int(what_.out.count), type,
                      what_.root, data_, r);
        break;
      case collective::all_to_all:
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, out, received_.count.data(),
                       received_.at.data(), type, data_, r);
        break;
      case collective::receive:
        MPI_Irecv(out, as_int(what_.out.count), type, what_.root, what_.tag, data_, r);
        break;
      default: break;  // barrier: the agreement is all it needs
    }
  }

  /// Called when the parts of all ranks have arrived: reduces them and sends the results.
  void begin_collect() {
    const index_t mine = sent_.count[static_cast<std::size_t>(rank_)];
    visit_type(what_.type(), [&]<class T>(T) {
      std::vector<const void*> sources;
      for (int r = 0; r < ranks_; ++r)
        sources.push_back(gathered_.data() + static_cast<std::size_t>(r * mine) * sizeof(T));
      const std::unique_ptr<T[]> sums(new T[static_cast<std::size_t>(mine)]);
      reduce_ranks<T>(sources, 0, mine, what_.op, sums.get());
      char* to =
          what_.kind == collective::reduce_scatter ? static_cast<char*>(what_.out.data) : gathered_.data();
      if (mine) std::memcpy(to, sums.get(), static_cast<std::size_t>(mine) * sizeof(T));
    });
    stage_ = stage::collect;
    requests_.assign(1, MPI_REQUEST_NULL);
    if (what_.kind == collective::all_reduce)
      MPI_Iallgatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(),
                      sent_.at.data(), element(), data_, requests_.data());
    else if (what_.kind == collective::reduce)
      MPI_Igatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(),
                   sent_.at.data(), element(), what_.root, data_, requests_.data());
  }

  operation what_;
  MPI_Comm data_, control_, headers_;
  const std::vector<int>& members_;
  std::uint64_t number_;
  int rank_ = 0, ranks_ = 1;
  stage stage_ = stage::start;
  std::vector<MPI_Request> requests_;
  std::vector<fingerprint> meant_;
  parts sent_, received_;
  std::vector<char> gathered_;
};

}  // namespace weft::detail
