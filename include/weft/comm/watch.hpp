// SPDX-License-Identifier: MIT
// Failure detection, the part that runs on each rank: it reports to rank 0 (watch_server.hpp), answers
// inquiries about its standing, and fails its groups when a verdict arrives. docs/reliability.md describes
// the protocol.
//
// Rank 0 itself has failed when its connection closes, and is stopped or cut off when it does not answer a
// report: every rank concludes that independently. Ranks that only compute are not asked.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include <weft/comm/watch_server.hpp>

namespace weft::detail {

/// A group of ranks that is notified of the verdict, on the thread of the watch.
class watched_group {
 public:
  virtual ~watched_group() = default;
  virtual void describe(rank_standing& s) = 0;
  virtual void fail(const watch_verdict& why) = 0;
};

class rank_watch {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Collective: completes when all ranks have connected. `host` is the address of rank 0 on the ranks'
  /// network. Throws timeout_error, naming the missing ranks, comm_error or usage_error if `size` differs
  /// from that of rank 0, and usage_error if another process has connected as `rank`.
  rank_watch(store& meet, int rank, int size, const std::string& host, milliseconds limit);
  rank_watch(const rank_watch&) = delete;
  rank_watch& operator=(const rank_watch&) = delete;
  ~rank_watch() { stop(); }

  void add(watched_group& g);
  /// Stops notifying a group. A rank without groups counts as having left.
  void remove(watched_group& g);

  /// Reports that this rank has waited for `limit`. The verdict arrives within seconds.
  void report_late(const rank_wait& w, milliseconds limit);
  /// Reports a broken connection to `peer`.
  void report_lost(int peer, const rank_wait& w);
  /// Makes everything fail, with this reason.
  void give_up(const std::string& reason);

  std::optional<watch_verdict> verdict() const {
    const std::lock_guard lock(mutex_);
    return verdict_;
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr milliseconds silence = watch_judge::answer_limit, inquiry = 3 * watch_judge::answer_limit;

  static frame_writer report(watch_report what) {
    return frame_writer().byte(static_cast<std::uint8_t>(what));
  }
  std::string own_name() const { return "rank " + std::to_string(rank_); }
  std::vector<int> others(const rank_wait& w) const {
    std::vector<int> ranks = w.members;
    std::erase(ranks, rank_);
    return ranks;
  }

  void wait_for_all(milliseconds limit);

  void stop();
  void leave() {
    if (size_ > 1 && !left_.exchange(true)) send(report(watch_report::leave).take());
  }
  /// Sends a frame, or holds it back until rank 0 knows this rank, because rank 0 closes connections of
  /// strangers.
  void send(const std::string& frame);
  void introduce(const std::string& nonce);

  /// Sends a report, with the verdicts to reach if rank 0 does not answer, and if it has left.
  void send_report(frame_writer& frame, watch_verdict if_silent, watch_verdict if_alone);

  void listen();
  bool waits_for_verdict() const {
    const std::lock_guard lock(mutex_);
    return report_ && !verdict_;
  }

  /// What to poll the connection to rank 0 for.
  short events();
  /// Handles notices of rank 0; false when its connection is closed.
  bool hear();

  void obey(frame_reader in);

  /// Reaches a verdict in place of rank 0 if rank 0 cannot.
  void conclude();

  void decide(watch_verdict v);

  struct pending_report {
    watch_verdict if_silent, if_alone;
    milliseconds since{0};  // time during which this process ran
    bool heard = false;     // whether rank 0 was heard from since then
  };

  int rank_, size_;
  std::string secret_;
  std::unique_ptr<watch_server> server_;
  std::unique_ptr<frame_socket> socket_;
  wake_up wake_;
  std::mutex groups_mutex_, sending_;
  bool introduced_ = false;  // this and the next are guarded by sending_
  std::vector<std::string> held_;
  mutable std::mutex mutex_;  // locked after groups_mutex_
  std::condition_variable changed_;
  std::vector<watched_group*> groups_;
  std::optional<watch_verdict> verdict_;
  std::optional<pending_report> report_;
  bool all_there_ = false, alone_ = false, ending_ = false;
  std::atomic<bool> left_ = false;
  std::thread thread_;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/watch.ipp>
#endif
