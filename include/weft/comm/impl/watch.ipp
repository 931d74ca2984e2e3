// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/watch.hpp>.
#pragma once

#include <poll.h>

#include <weft/base/config.hpp>
#include <weft/base/running_clock.hpp>
#include <weft/comm/operation.hpp>
#include <weft/comm/watch.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE rank_watch::rank_watch(store& meet, int rank, int size, const std::string& host,
                                   milliseconds limit)
    : rank_(rank), size_(size) {
  if (size == 1) return;
  if (meet.add("processes of rank " + std::to_string(rank), 1) > 1)
    refuse<usage_error>({"weft: another process of this job is rank ", rank, " already (RANK)"});
  if (rank == 0) {
    secret_ = random_bytes(nonce_bytes);
    server_ = std::make_unique<watch_server>(host, secret_, size);
    frame_writer where;
    where.text(host).text(std::to_string(server_->port())).text(secret_).number(size);
    meet.set("watch", where.take());
  }
  try {
    frame_reader where(meet.get("watch", limit));
    const std::string at = where.text(), port = where.text();
    secret_ = where.text();
    const auto expected = where.number();
    if (rank >= expected) throw usage_error(size_disagreement(expected, size, rank));
    socket_ = std::make_unique<frame_socket>(connect_to(at, port, limit));
  } catch (const timeout_error& e) {
    throw timeout_error(std::string("weft: rank 0 is not there: ") + e.what());
  } catch (const comm_error& e) { throw comm_error(std::string("weft: rank 0 is not there: ") + e.what()); }
  thread_ = std::thread([this] { listen(); });
  wait_for_all(limit);
}

WEFT_DEFINE void rank_watch::add(watched_group& g) {
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(&g);
  if (const auto v = verdict()) g.fail(*v);
}

WEFT_DEFINE void rank_watch::remove(watched_group& g) {
  const std::lock_guard lock(groups_mutex_);
  std::erase(groups_, &g);
  if (groups_.empty()) leave();
}

WEFT_DEFINE void rank_watch::report_late(const rank_wait& w, milliseconds limit) {
  frame_writer frame = report(watch_report::late);
  write(frame, w);
  const std::string text = "weft: " + own_name() + " waited " + std::to_string(limit.count()) + " ms in " +
                           w.doing + "; not there: ";
  send_report(frame.number(limit.count()), {true, text + "rank 0, which does not answer: stopped or cut off"},
              {true, text + names_of(others(w))});
}

WEFT_DEFINE void rank_watch::report_lost(int peer, const rank_wait& w) {
  frame_writer frame = report(watch_report::lost).number(peer);
  write(frame, w);
  const std::string text =
      "; " + own_name() + " has lost its connection to rank " + std::to_string(peer) + ", in " + w.doing;
  send_report(frame, {false, "weft: rank 0 does not answer: stopped or cut off" + text},
              {false, "weft: rank " + std::to_string(peer) + " is gone" + text});
}

WEFT_DEFINE void rank_watch::give_up(const std::string& reason) {
  const watch_verdict own{false, shortened(reason, 1 << 16)};  // far below what fits into a frame
  send_report(report(watch_report::give_up).text(own.text), own, own);
}

WEFT_DEFINE void rank_watch::wait_for_all(milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return all_there_ || verdict_; };
  if (!wait_while_running(changed_, lock, limit, over)) {
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

WEFT_DEFINE void rank_watch::stop() {
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

WEFT_DEFINE void rank_watch::send(const std::string& frame) {
  {
    const std::lock_guard lock(sending_);
    if (introduced_) socket_->send(frame);
    else held_.push_back(frame);
  }
  wake_.now();  // listen() sends what is left, and counts the time of a report
}

WEFT_DEFINE void rank_watch::introduce(const std::string& nonce) {
  const std::lock_guard lock(sending_);
  socket_->send(
      report(watch_report::come).number(rank_).text(watch_proof(secret_, nonce, rank_)).number(size_).take());
  for (const std::string& frame : held_) socket_->send(frame);
  held_.clear();
  introduced_ = true;
}

WEFT_DEFINE void rank_watch::send_report(frame_writer& frame, watch_verdict if_silent,
                                         watch_verdict if_alone) {
  {
    const std::lock_guard lock(mutex_);
    if (verdict_) return;
    if (!report_) report_ = pending_report{std::move(if_silent), std::move(if_alone)};
  }
  if (size_ > 1) send(frame.take());
  else conclude();
}

WEFT_DEFINE void rank_watch::listen() {
  for (bool open = true;;) {
    pollfd all[] = {{wake_.get(), POLLIN, 0}, {open ? socket_->get() : -1, events(), 0}};
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

WEFT_DEFINE short rank_watch::events() {
  const std::lock_guard lock(sending_);
  return socket_->events();
}

WEFT_DEFINE bool rank_watch::hear() {
  {
    const std::lock_guard lock(sending_);
    socket_->flush();
  }
  bool open = socket_->receive();
  try {
    while (const auto frame = socket_->next()) obey(frame_reader(*frame));
  } catch (const comm_error&) { open = false; }
  if (!open) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(alone_, true) || left_) return false;
    }
    decide({false, "weft: rank 0 is gone: its process has ended"});
  }
  return open;
}

WEFT_DEFINE void rank_watch::obey(frame_reader in) {
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

WEFT_DEFINE void rank_watch::conclude() {
  std::optional<watch_verdict> own;
  {
    const std::lock_guard lock(mutex_);
    if (!report_ || verdict_) return;
    if (alone_ || size_ == 1) own = report_->if_alone;
    else if (report_->since > (report_->heard ? inquiry : silence)) own = report_->if_silent;
  }
  if (own) decide(*own);
}

WEFT_DEFINE void rank_watch::decide(watch_verdict v) {
  const std::lock_guard lock(groups_mutex_);
  {
    const std::lock_guard inner(mutex_);
    if (verdict_) return;
    verdict_ = v;
  }
  changed_.notify_all();
  for (watched_group* g : groups_) g->fail(v);
}

}  // namespace detail
}  // namespace weft
