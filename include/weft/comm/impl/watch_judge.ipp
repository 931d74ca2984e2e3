// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/watch_judge.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/watch_judge.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE bool watch_judge::all_have_left() const {
  const bool some_may_come = !verdict_ || !verdict_->late;
  return std::none_of(ranks_.begin(), ranks_.end(), [&](presence p) {
    return p == presence::here || (p == presence::expected && some_may_come);
  });
}

WEFT_DEFINE void watch_judge::closes(int rank) {
  if (at(rank) != presence::here) return;
  at(rank) = presence::ended;
  decide({false, "weft: rank " + std::to_string(rank) + " is gone: its process has ended"});
}

WEFT_DEFINE void watch_judge::decide(watch_verdict v, const std::vector<int>& stuck) {
  if (verdict_) return;
  verdict_ = std::move(v);
  for (const int r : stuck) at(r) = presence::ended;
}

WEFT_DEFINE void watch_judge::look() {
  if (report_->peer >= 0 && at(report_->peer) == presence::left)
    return decide({false, "weft: " + name(report_->peer) + " is gone: it has left while " +
                              name(report_->rank) + " waits for it in " + report_->in.doing});
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r] == presence::here && !standings_[r]) return;
  conclude();
}

WEFT_DEFINE void watch_judge::conclude() {
  std::vector<int> missing, silent;
  for (int r = 0; r < size(); ++r) {
    if (at(r) == presence::expected) missing.push_back(r);
    if (at(r) == presence::here && !standings_[static_cast<std::size_t>(r)]) silent.push_back(r);
  }
  const std::string who = name(report_->rank);
  if (report_->peer < 0) {
    const bool all_answer = missing.empty() && silent.empty();
    return decide({true, late_text(missing, silent)},
                  all_answer ? keep_waiting(report_->in, report_->rank, standings_) : silent);
  }
  std::string text = silent.empty() ? "weft: the connection between " + who + " and " + name(report_->peer) +
                                          " is lost, though both are there"
                                    : "weft: " + names_of(silent) + (silent.size() > 1 ? " do" : " does") +
                                          " not answer: stopped or cut off; " + who +
                                          " has lost its connection to " + name(report_->peer);
  text += ", in " + report_->in.doing;
  if (silent.empty() && report_->in.number == rank_wait::connecting) text += ": " + apart(report_->in);
  decide({false, text}, silent);
}

WEFT_DEFINE std::string watch_judge::late_text(const std::vector<int>& missing,
                                               const std::vector<int>& silent) const {
  if (missing.empty()) return late_report(report_->in, report_->rank, report_->limit, standings_, silent);
  return "weft: " + name(report_->rank) + " waited " + std::to_string(report_->limit) + " ms in " +
         report_->in.doing + "; not there: " + names_of(missing) +
         (missing.size() > 1 ? ", which have" : ", which has") +
         " not been started, or could not reach the others";
}

}  // namespace detail
}  // namespace weft
