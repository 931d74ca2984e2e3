// SPDX-License-Identifier: MIT
// Failure detection, the conclusions of rank 0 from the connections, reports and answers of all ranks.
//
// Certain facts take precedence: a connection that the kernel has closed without a farewell is a rank that
// has ended. A report (of a wait that took too long, or of a broken connection to another rank) only starts
// an inquiry: every rank is asked for its standing, and one that does not answer in time is stopped or cut
// off. If all answer, the cause is a rank that does not wait for others. There is one verdict, for all ranks.
#pragma once

#include <algorithm>
#include <chrono>

#include <weft/comm/standing.hpp>
#include <weft/comm/watch_verdict.hpp>

namespace weft::detail {

inline std::string size_disagreement(std::int64_t expected, std::int64_t size, int rank) {
  return joined({"weft: WORLD_SIZE is ", expected, " on rank 0 and ", size, " on rank ", rank});
}

class watch_judge {
 public:
  using milliseconds = std::chrono::milliseconds;
  static constexpr milliseconds answer_limit{1000};

  explicit watch_judge(int ranks)
      : ranks_(static_cast<std::size_t>(ranks)), standings_(static_cast<std::size_t>(ranks)) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  bool expects(int rank) const { return rank >= 0 && rank < size() && at(rank) == presence::expected; }
  bool all_have_come() const { return std::count(ranks_.begin(), ranks_.end(), presence::expected) == 0; }
  /// Whether no rank is left to receive the verdict. A rank that has not connected yet may still do so,
  /// unless the others have waited for it in vain.
  bool all_have_left() const;
  const std::optional<watch_verdict>& verdict() const { return verdict_; }
  bool asks() const { return report_ && !verdict_; }

  /// `size`: the number of ranks according to this rank.
  void comes(int rank, std::int64_t size) {
    at(rank) = presence::here;
    if (size != this->size()) decide({false, size_disagreement(this->size(), size, rank)});
  }
  /// The rank has said farewell.
  void leaves(int rank) {
    at(rank) = presence::left;
    if (asks()) look();
  }
  /// The connection of the rank is closed.
  void closes(int rank);
  void gives_up(const std::string& reason) { decide({false, reason}); }

  /// Starts an inquiry unless there is one: `rank` has waited for `limit` ms.
  void is_late(int rank, rank_wait in, std::int64_t limit) {
    if (!report_) report_ = report{rank, -1, std::move(in), limit};
  }
  /// Likewise: the connection of `rank` to `peer` broke.
  void has_lost(int rank, int peer, rank_wait in) {
    if (report_) return;
    report_ = report{rank, peer, std::move(in), 0};
    look();
  }
  void answers(int rank, rank_standing s) {
    standings_[static_cast<std::size_t>(rank)] = std::move(s);
    if (asks()) look();
  }
  /// Time since the last call during which this process ran: a process that was itself stopped does not count
  /// it.
  void passes(milliseconds time) {
    if (!asks()) return;
    asked_for_ += time;
    if (asked_for_ >= answer_limit) conclude();
  }

 private:
  enum class presence { expected, here, left, ended };
  struct report {
    int rank, peer;
    rank_wait in;
    std::int64_t limit;
  };

  presence& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  presence at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  static std::string name(int rank) { return "rank " + std::to_string(rank); }

  /// `stuck`: ranks that may never leave.
  void decide(watch_verdict v, const std::vector<int>& stuck = {});
  void look();

  void conclude();

  std::string late_text(const std::vector<int>& missing, const std::vector<int>& silent) const;

  std::vector<presence> ranks_;
  rank_standings standings_;
  std::optional<report> report_;
  milliseconds asked_for_{0};
  std::optional<watch_verdict> verdict_;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/watch_judge.ipp>
#endif
