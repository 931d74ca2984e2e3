// SPDX-License-Identifier: MIT
// Failure detection, the part of each rank: it reports to rank 0 (watch_server.hpp), answers inquiries about
// its standing, and fails its groups when a verdict arrives. docs/reliability.md describes the protocol.
//
// Rank 0 itself has failed when its connection closes, and is stopped or cut off when it does not answer a
// report: every rank concludes that on its own. Ranks that only compute are not asked.
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
  /// network. Throws timeout_error, naming the missing ranks.
  rank_watch(store& meet, int rank, int size, const std::string& host, milliseconds limit)
      : rank_(rank), size_(size) {
    if (size == 1) return;
    if (rank == 0) {
      secret_ = drawn_bytes(32);
      server_ = std::make_unique<watch_server>(host, secret_, size);
      meet.set("watch", frame_writer().text(host).text(std::to_string(server_->port())).text(secret_).take());
    }
    try {
      frame_reader where(meet.get("watch", limit));
      const std::string at = where.text(), port = where.text();
      secret_ = where.text();
      socket_ = std::make_unique<frame_socket>(connect_to(at, port, limit));
    } catch (const timeout_error& e) {
      throw timeout_error(std::string("weft: rank 0 is not there: ") + e.what());
    } catch (const comm_error& e) {
      throw comm_error(std::string("weft: rank 0 is not there: ") + e.what());
    }
    thread_ = std::thread([this] { listen(); });
    wait_for_all(limit);
  }
  rank_watch(const rank_watch&) = delete;
  rank_watch& operator=(const rank_watch&) = delete;
  ~rank_watch() { stop(); }

  void add(watched_group& g) {
    const std::lock_guard lock(groups_mutex_);
    groups_.push_back(&g);
    if (const auto v = verdict()) g.fail(*v);
  }
  /// Stops notifying a group. A rank without groups has left.
  void remove(watched_group& g) {
    const std::lock_guard lock(groups_mutex_);
    std::erase(groups_, &g);
    if (groups_.empty()) leave();
  }

  /// Reports that this rank has waited for `limit`. The verdict arrives within seconds.
  void report_late(const rank_wait& w, milliseconds limit) {
    frame_writer frame = report(watch_report::late);
    write(frame, w);
    const std::string text = "weft: " + own_name() + " waited " + std::to_string(limit.count()) + " ms in " +
                             w.doing + "; not there: ";
    send_report(frame.number(limit.count()),
                {true, text + "rank 0, which does not answer: stopped or cut off"},
                {true, text + names_of(others(w))});
  }
  /// Reports a broken connection to `peer`.
  void report_lost(int peer, const rank_wait& w) {
    frame_writer frame = report(watch_report::lost).number(peer);
    write(frame, w);
    const std::string text =
        "; " + own_name() + " has lost its connection to rank " + std::to_string(peer) + ", in " + w.doing;
    send_report(frame, {false, "weft: rank 0 does not answer: stopped or cut off" + text},
                {false, "weft: rank " + std::to_string(peer) + " is gone" + text});
  }
  /// Makes everything fail, with this reason.
  void give_up(const std::string& reason) {
    send_report(report(watch_report::give_up).text(reason), {false, reason}, {false, reason});
  }

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

  void wait_for_all(milliseconds limit) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return all_there_ || verdict_; };
    if (!changed_.wait_for(lock, limit, over)) {
      lock.unlock();
      rank_wait start{"", rank_wait::connecting, {}, "the start of " + std::to_string(size_) + " ranks"};
      for (int r = 0; r < size_; ++r) start.members.push_back(r);
      report_late(start, limit);
      lock.lock();
      changed_.wait(lock, over);
    }
    if (!verdict_) return;
    const watch_verdict v = *verdict_;
    lock.unlock();
    stop();
    throw_verdict(v);
  }

  void stop() {
    if (!thread_.joinable()) return;
    leave();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.now();
    thread_.join();
    socket_.reset();
    server_.reset();
  }
  void leave() {
    if (size_ > 1 && !left_.exchange(true)) send(report(watch_report::leave).take());
  }
  /// Sends a frame, or holds it back until rank 0 knows who this is: it ends connections of strangers.
  void send(const std::string& frame) {
    const std::lock_guard lock(sending_);
    if (introduced_) socket_->send(frame);
    else held_.push_back(frame);
  }
  void introduce(const std::string& nonce) {
    const std::lock_guard lock(sending_);
    socket_->send(report(watch_report::come).number(rank_).text(watch_proof(secret_, nonce, rank_)).take());
    for (const std::string& frame : held_) socket_->send(frame);
    held_.clear();
    introduced_ = true;
  }

  /// Sends a report, with the conclusions for the case that rank 0 does not answer, and that it has left.
  void send_report(frame_writer& frame, watch_verdict if_silent, watch_verdict if_alone) {
    {
      const std::lock_guard lock(mutex_);
      if (verdict_) return;
      if (!report_) report_ = pending_report{std::move(if_silent), std::move(if_alone)};
    }
    if (size_ > 1) send(frame.take());
    wake_.now();
    if (size_ == 1) conclude();
  }

  void listen() {
    for (bool open = true;;) {
      pollfd all[] = {{wake_.get(), POLLIN, 0}, {open ? socket_->get() : -1, POLLIN, 0}};
      const auto before = clock::now();
      const bool news = ::poll(all, 2, waits_for_verdict() ? 50 : -1) > 0;
      const auto passed =
          std::min(std::chrono::duration_cast<milliseconds>(clock::now() - before), milliseconds(100));
      if (news && all[0].revents) wake_.clear();
      if (news && all[1].revents) open = hear();
      {
        const std::lock_guard lock(mutex_);
        if (ending_) return;
        if (report_ && !verdict_) report_->since += passed;
      }
      conclude();
    }
  }
  bool waits_for_verdict() const {
    const std::lock_guard lock(mutex_);
    return report_ && !verdict_;
  }

  /// Handles notices of rank 0; false when its connection is closed.
  bool hear() {
    bool open = socket_->receive();
    try {
      while (const auto frame = socket_->next()) obey(frame_reader(*frame));
    } catch (const comm_error&) {
      open = false;
    }
    if (!open) {
      {
        const std::lock_guard lock(mutex_);
        if (std::exchange(alone_, true) || left_) return false;
      }
      decide({false, "weft: rank 0 is gone: its process has ended"});
    }
    return open;
  }

  void obey(frame_reader in) {
    const auto what = static_cast<watch_notice>(in.byte());
    {
      const std::lock_guard lock(mutex_);
      if (report_) report_->heard = true;
      if (what == watch_notice::farewell) alone_ = true;
      if (what == watch_notice::all_there) all_there_ = true;
    }
    changed_.notify_all();
    if (what == watch_notice::nonce) introduce(in.text());
    if (what == watch_notice::verdict) {
      const bool late = in.byte();
      decide({late, in.text()});
    }
    if (what == watch_notice::where_are_you) {
      rank_standing own;
      {
        const std::lock_guard lock(groups_mutex_);
        for (watched_group* g : groups_) g->describe(own);
      }
      frame_writer answer = report(watch_report::standing);
      write(answer, own);
      send(answer.take());
    }
  }

  /// Concludes in the place of rank 0, if that cannot.
  void conclude() {
    std::optional<watch_verdict> own;
    {
      const std::lock_guard lock(mutex_);
      if (!report_ || verdict_) return;
      if (alone_ || size_ == 1) own = report_->if_alone;
      else if (report_->since > (report_->heard ? inquiry : silence)) own = report_->if_silent;
    }
    if (own) decide(*own);
  }

  void decide(watch_verdict v) {
    const std::lock_guard lock(groups_mutex_);
    {
      const std::lock_guard inner(mutex_);
      if (verdict_) return;
      verdict_ = v;
    }
    changed_.notify_all();
    for (watched_group* g : groups_) g->fail(v);
  }

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
