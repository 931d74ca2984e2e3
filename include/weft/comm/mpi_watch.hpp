// SPDX-License-Identifier: MIT
// Under mpirun, detects ranks that keep others waiting and coordinates the end of the job, by messages of its
// own.
//
// It knows all groups of the process: waiting or polling in one group advances the operations of all groups.
// A rank whose wait takes too long asks all others for their state. Since only ranks that wait or poll read
// messages of the watch, a rank that does not answer within a second is stopped, disconnected, or was busy
// with other work for the whole time limit. The verdict is sent to all ranks. Ranks that terminate are
// detected by mpirun, which ends the job.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include <weft/base/deadline.hpp>
#include <weft/base/running_clock.hpp>
#include <weft/comm/environment.hpp>
#include <weft/comm/mpi_link.hpp>
#include <weft/comm/standing_frames.hpp>
#include <weft/comm/watch_verdict.hpp>

namespace weft::detail {

/// A group that this rank belongs to.
class mpi_watched_group {
 public:
  virtual ~mpi_watched_group() = default;
  /// Adds the state of the group to `s`.
  virtual void describe(rank_standing& s) const = 0;
  /// Advances its operations as far as possible without waiting; not called after a verdict.
  virtual void advance() = 0;
  /// Called when there is a verdict, after which callers may free the buffers of its operations.
  virtual void cancel() = 0;
  /// Whether MPI is done with those buffers.
  virtual bool released() = 0;
};

class mpi_watch {
 public:
  using clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  explicit mpi_watch(const boost::mpi::communicator& world)
      : link_(world),
        end_(world, boost::mpi::comm_duplicate),
        heard_(static_cast<std::size_t>(world.size())) {}
  mpi_watch(const mpi_watch&) = delete;
  mpi_watch& operator=(const mpi_watch&) = delete;

  mpi_link& link() { return link_; }
  int rank() const { return link_.rank(); }
  const std::optional<watch_verdict>& verdict() const { return verdict_; }

  void add(mpi_watched_group& g) { groups_.push_back(&g); }
  void remove(mpi_watched_group& g) { std::erase(groups_, &g); }

  /// Reads and answers messages; advances all groups.
  void progress() {
    link_.receive([&](int from, mpi_link::kind what, frame_reader in) { obey(from, what, std::move(in)); });
    for (mpi_watched_group* g : groups_)
      if (!verdict_) g->advance();
  }

  /// Determines which rank keeps this rank waiting. Afterwards there is a verdict, which is the same on all
  /// ranks except those that determined one at the same time.
  void report_late(const rank_wait& w, milliseconds limit) {
    std::fill(heard_.begin(), heard_.end(), std::nullopt);
    heard_[static_cast<std::size_t>(rank())] = standing();
    tell_others(mpi_link::kind::where_are_you, {});
    running_clock ran;
    const auto all_have = [&] {
      return std::all_of(heard_.begin(), heard_.end(), [](const auto& s) { return s.has_value(); });
    };
    while (!verdict_ && !all_have() && ran.elapsed() < answer_limit) {
      progress();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::vector<int> silent;
    for (int r = 0; r < link_.size(); ++r)
      if (!heard_[static_cast<std::size_t>(r)]) silent.push_back(r);
    decide({true, late_report(w, rank(), limit.count(), heard_, silent)});
  }
  /// Makes everything fail on all ranks, for the given reason.
  void give_up(const std::string& reason) { decide({false, reason}); }

  /// Waits until all ranks have called it, and sets `code` to the same value on all. False if this takes
  /// longer than `limit`.
  bool end_together(int& code, milliseconds limit) {
    const auto until = deadline_after(limit);
    own_severity_ = severity(code);
    MPI_Iallreduce(&own_severity_, &worst_, 1, MPI_INT, MPI_MAX, end_, &ending_);
    for (int done = 0;;) {
      MPI_Test(&ending_, &done, MPI_STATUS_IGNORE);
      if (done) break;
      if (clock::now() > until) return false;
      progress();
      std::this_thread::sleep_for(milliseconds(1));
    }
    code = worst_ < 2 ? worst_ * exit_codes::others_failed : worst_ - 2;
    return true;
  }

 private:
  static constexpr milliseconds answer_limit{1000}, release_limit{1000};
  /// Codes of ranks that failed take precedence over codes of ranks that failed because of others.
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
    tell_others(mpi_link::kind::verdict, frame_writer().byte(verdict_->late).text(verdict_->text).take());
    release_buffers();
  }
  void obey(int from, mpi_link::kind what, frame_reader in) {
    if (what == mpi_link::kind::where_are_you) {
      frame_writer answer;
      write(answer, standing());
      link_.send(from, mpi_link::kind::standing, answer.take());
    } else if (what == mpi_link::kind::standing) {
      heard_[static_cast<std::size_t>(from)] = read_standing(in);
    } else if (!verdict_) {
      const bool late = in.byte();
      verdict_ = {late, in.text()};
      release_buffers();
    }
  }
  /// Waits until MPI is done with the buffers of callers. Messages on their way arrive; the limit is for
  /// those to and from ranks that are stopped, and for those whose receiver has given up before they began.
  void release_buffers() {
    for (mpi_watched_group* g : groups_) g->cancel();
    const auto all_are = [&] {
      bool all = true;
      for (mpi_watched_group* g : groups_) all = g->released() && all;
      return all;
    };
    for (const auto until = deadline_after(release_limit); !all_are() && clock::now() < until;)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  void tell_others(mpi_link::kind what, const std::string& bytes) {
    for (int r = 0; r < link_.size(); ++r)
      if (r != rank()) link_.send(r, what, bytes);
  }

  mpi_link link_;
  boost::mpi::communicator end_;
  int own_severity_ = 0, worst_ = 0;  // MPI may use them after end_together() has returned false
  MPI_Request ending_ = MPI_REQUEST_NULL;
  std::vector<mpi_watched_group*> groups_;
  rank_standings heard_;
  std::optional<watch_verdict> verdict_;
};

}  // namespace weft::detail
