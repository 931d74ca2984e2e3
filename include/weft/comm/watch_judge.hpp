// SPDX-License-Identifier: MIT
// Failure detection, the conclusions of rank 0 from the connections, reports and answers of all ranks.
//
// Certain facts take precedence: a connection that the kernel has closed without a farewell is a rank that
// has ended. A report (of a wait that took too long, or of a broken connection to another rank) only starts
// an inquiry: every rank is asked for its standing, and one that does not answer in time is stopped or cut
// off. If all answer, the cause is a rank that does not wait for others. There is one verdict, for all ranks.
#pragma once

#include <chrono>

#include <weft/comm/standing.hpp>
#include <weft/comm/watch_verdict.hpp>

namespace weft::detail {

class watch_judge {
 public:
  using milliseconds = std::chrono::milliseconds;
  static constexpr milliseconds answer_limit{1000};

  explicit watch_judge(int ranks)
      : ranks_(static_cast<std::size_t>(ranks)), standings_(static_cast<std::size_t>(ranks)) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  bool expects(int rank) const { return rank >= 0 && rank < size() && at(rank) == presence::expected; }
  bool all_have_come() const { return std::count(ranks_.begin(), ranks_.end(), presence::expected) == 0; }
  /// Whether nobody is to be told the verdict any more. A rank that has not come yet may still do so, unless
  /// the others have waited for it in vain.
  bool all_have_left() const {
    const bool some_may_come = !verdict_ || !verdict_->late;
    return std::none_of(ranks_.begin(), ranks_.end(), [&](presence p) {
      return p == presence::here || (p == presence::expected && some_may_come);
    });
  }
  const std::optional<watch_verdict>& verdict() const { return verdict_; }
  bool asks() const { return report_ && !verdict_; }

  void comes(int rank) { at(rank) = presence::here; }
  /// The rank has said farewell.
  void leaves(int rank) {
    at(rank) = presence::left;
    if (asks()) look();
  }
  /// The connection of the rank is closed.
  void closes(int rank) {
    if (at(rank) != presence::here) return;
    at(rank) = presence::ended;
    decide({false, "weft: rank " + std::to_string(rank) + " is gone: its process has ended"});
  }
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

  void decide(watch_verdict v, const std::vector<int>& silent = {}) {
    if (verdict_) return;
    verdict_ = std::move(v);
    for (const int r : silent) at(r) = presence::ended;
  }
  void look() {
    if (report_->peer >= 0 && at(report_->peer) == presence::left)
      return decide({false, "weft: " + name(report_->peer) + " is gone: it has left while " +
                                name(report_->rank) + " waits for it in " + report_->in.doing});
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r] == presence::here && !standings_[r]) return;
    conclude();
  }

  void conclude() {
    std::vector<int> missing, silent;
    for (int r = 0; r < size(); ++r) {
      if (at(r) == presence::expected) missing.push_back(r);
      if (at(r) == presence::here && !standings_[static_cast<std::size_t>(r)]) silent.push_back(r);
    }
    const std::string who = name(report_->rank);
    if (report_->peer < 0) return decide({true, late_text(missing, silent)}, silent);
    std::string text = silent.empty() ? "weft: the connection between " + who + " and " +
                                            name(report_->peer) + " is lost, though both are there"
                                      : "weft: " + names_of(silent) + (silent.size() > 1 ? " do" : " does") +
                                            " not answer: stopped or cut off; " + who +
                                            " has lost its connection to " + name(report_->peer);
    text += ", in " + report_->in.doing;
    if (silent.empty() && report_->in.number == rank_wait::connecting) text += ": " + apart(report_->in);
    decide({false, text}, silent);
  }

  std::string late_text(const std::vector<int>& missing, const std::vector<int>& silent) const {
    if (missing.empty()) return late_report(report_->in, report_->rank, report_->limit, standings_, silent);
    return "weft: " + name(report_->rank) + " waited " + std::to_string(report_->limit) + " ms in " +
           report_->in.doing + "; not there: " + names_of(missing) +
           (missing.size() > 1 ? ", which have" : ", which has") + " not been started, or not met the others";
  }

  std::vector<presence> ranks_;
  rank_standings standings_;
  std::optional<report> report_;
  milliseconds asked_for_{0};
  std::optional<watch_verdict> verdict_;
};

}  // namespace weft::detail
