// SPDX-License-Identifier: MIT
// Who keeps the ranks of mpirun waiting, and how they end: by messages beside those of operations.
//
// It knows all groups of the process: whoever waits or polls in one moves the operations of all on. Only a
// rank that waits or polls reads messages of the watch, which is what is asked: a rank that is late asks all
// where they stand, who does not answer within a second is stopped, cut off, or at work on something else for
// as long as the time-out, and the verdict goes to all. A rank that dies is mpirun's affair: it ends the job.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <thread>

#include <weft/comm/environment.hpp>
#include <weft/comm/standing_frames.hpp>
#include <weft/comm/watch_verdict.hpp>

namespace weft::detail {

/// A group of this rank.
class mpi_watched_group {
 public:
  virtual ~mpi_watched_group() = default;
  /// Says where it stands.
  virtual void describe(rank_standing& s) const = 0;
  /// Moves its operations on as far as they go without waiting.
  virtual void advance() = 0;
};

class mpi_watch {
 public:
  using clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  explicit mpi_watch(const boost::mpi::communicator& world)
      : comm_(world, boost::mpi::comm_duplicate),
        end_(world, boost::mpi::comm_duplicate),
        heard_(static_cast<std::size_t>(world.size())) {}
  mpi_watch(const mpi_watch&) = delete;
  mpi_watch& operator=(const mpi_watch&) = delete;
  ~mpi_watch() {
    for (sent& s : sent_) {
      int done = 0;
      MPI_Test(&s.request, &done, MPI_STATUS_IGNORE);
      if (!done) new std::string(std::move(s.bytes));  // to a rank that does not read: MPI may still do
    }
  }

  int rank() const { return comm_.rank(); }
  const std::optional<watch_verdict>& verdict() const { return verdict_; }

  void add(mpi_watched_group& g) { groups_.push_back(&g); }
  void remove(mpi_watched_group& g) { std::erase(groups_, &g); }

  /// Moves all groups on, reads what has come and answers it.
  void progress() {
    for (mpi_watched_group* g : groups_) g->advance();
    for (;;) {
      int there = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, &status);
      if (!there) break;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      std::string bytes(static_cast<std::size_t>(size), '\0');
      MPI_Recv(bytes.data(), size, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comm_, MPI_STATUS_IGNORE);
      obey(status.MPI_SOURCE, static_cast<kind>(status.MPI_TAG), frame_reader(std::move(bytes)));
    }
    std::erase_if(sent_, [](sent& s) {
      int done = 0;
      MPI_Test(&s.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
  }

  /// Finds out who keeps this rank waiting. There is a verdict then, the same on all ranks but for such
  /// as found it out at the same time.
  void report_late(const rank_wait& w, milliseconds limit) {
    std::fill(heard_.begin(), heard_.end(), std::nullopt);
    heard_[static_cast<std::size_t>(rank())] = standing();
    tell_others(kind::where_are_you, {});
    const auto until = clock::now() + answer_limit;
    const auto all_have = [&] {
      return std::all_of(heard_.begin(), heard_.end(), [](const auto& s) { return s.has_value(); });
    };
    while (!verdict_ && !all_have() && clock::now() < until) {
      progress();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::vector<int> silent;
    for (int r = 0; r < comm_.size(); ++r)
      if (!heard_[static_cast<std::size_t>(r)]) silent.push_back(r);
    decide({true, late_report(w, rank(), limit.count(), heard_, silent)});
  }
  /// Everything fails on all ranks, with this reason.
  void give_up(const std::string& reason) { decide({false, reason}); }

  /// Waits until all ranks have come here, and makes `code` the same on all; false after `limit`.
  bool end_together(int& code, milliseconds limit) {
    const auto until = clock::now() + limit;
    int mine = severity(code), worst = 0, done = 0;
    MPI_Request request;
    MPI_Iallreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, end_, &request);
    for (;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done) break;
      if (clock::now() > until) return false;
      progress();
      std::this_thread::sleep_for(milliseconds(1));
    }
    code = worst < 2 ? worst * exit_codes::others_failed : worst - 2;
    return true;
  }

 private:
  static constexpr milliseconds answer_limit{1000};
  enum class kind { where_are_you, standing, verdict };
  struct sent {
    std::string bytes;
    MPI_Request request;
  };

  /// A rank at fault comes before those that failed because of it.
  static int severity(int code) {
    return code == exit_codes::done ? 0 : code == exit_codes::others_failed ? 1 : 2 + code;
  }

  rank_standing standing() const {
    rank_standing s;
    for (const mpi_watched_group* g : groups_) g->describe(s);
    return s;
  }
  void decide(watch_verdict v) {
    if (verdict_) return;
    verdict_ = std::move(v);
    tell_others(kind::verdict, frame_writer().byte(verdict_->late).text(verdict_->text).take());
  }
  void obey(int from, kind what, frame_reader in) {
    if (what == kind::where_are_you) {
      frame_writer answer;
      write(answer, standing());
      tell(from, kind::standing, answer.take());
    } else if (what == kind::standing) {
      heard_[static_cast<std::size_t>(from)] = read_standing(in);
    } else if (!verdict_) {
      const bool late = in.byte();
      verdict_ = {late, in.text()};
    }
  }
  void tell(int to, kind what, std::string bytes) {
    sent& s = sent_.emplace_back(sent{std::move(bytes), MPI_REQUEST_NULL});
    MPI_Isend(s.bytes.data(), static_cast<int>(s.bytes.size()), MPI_BYTE, to, static_cast<int>(what), comm_,
              &s.request);
  }
  void tell_others(kind what, const std::string& bytes) {
    for (int r = 0; r < comm_.size(); ++r)
      if (r != rank()) tell(r, what, bytes);
  }

  boost::mpi::communicator comm_, end_;
  std::vector<mpi_watched_group*> groups_;
  rank_standings heard_;
  std::list<sent> sent_;
  std::optional<watch_verdict> verdict_;
};

}  // namespace weft::detail
