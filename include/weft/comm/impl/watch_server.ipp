// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/watch_server.hpp>.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <weft/base/config.hpp>
#include <weft/comm/watch_server.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE watch_server::watch_server(const std::string& host, std::string secret, int ranks)
    : secret_(std::move(secret)), judge_(ranks), listener_(listen_on(host, port_)) {
  thread_ = std::thread([this] { serve(); });
}

WEFT_DEFINE void watch_server::serve() {
  std::optional<clock::time_point> until;
  while (!until || (!judge_.all_have_left() && clock::now() < *until)) {
    const auto before = clock::now();
    wait_for_news();
    judge_.passes(
        std::min(std::chrono::duration_cast<milliseconds>(clock::now() - before), milliseconds(100)));
    if (ending_ && !until) until = clock::now() + linger;
    drop_strangers();
    tell();
  }
  for (peer& p : peers_) p.socket.send(notice(watch_notice::farewell).take());
}

WEFT_DEFINE void watch_server::wait_for_news() {
  std::vector<pollfd> all{{wake_.get(), POLLIN, 0}, {listens() ? listener_.number() : -1, POLLIN, 0}};
  for (const peer& p : peers_) all.push_back({p.socket.get(), p.socket.events(), 0});
  const bool busy = judge_.asks() || ending_;
  if (::poll(all.data(), all.size(), busy ? 50 : judge_.all_have_come() ? -1 : 250) <= 0) return;
  wake_.clear();
  std::size_t i = 2;
  for (peer& p : peers_)
    if (all[i++].revents) hear(p);
  peers_.remove_if([](const peer& p) { return !p.open; });
  if (all[1].revents) accept();
}

WEFT_DEFINE std::size_t watch_server::strangers() const {
  return static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const peer& p) { return p.rank < 0; }));
}

WEFT_DEFINE void watch_server::accept() {
  descriptor fd(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) {
    full_until_ = clock::now() + milliseconds(100);  // no descriptors: do not retry at once
    return;
  }
  peers_.push_back({frame_socket(std::move(fd)), random_bytes(nonce_bytes), clock::now()});
  peers_.back().socket.send(notice(watch_notice::nonce).text(peers_.back().nonce).take());
}

WEFT_DEFINE void watch_server::drop_strangers() {
  const auto time = strangers() < most_strangers ? handshake : crowded;
  peers_.remove_if([&](const peer& p) { return p.rank < 0 && clock::now() - p.since > time; });
}

WEFT_DEFINE void watch_server::hear(peer& p) {
  p.socket.flush();
  bool open = p.socket.receive();
  try {
    while (p.open)
      if (const auto frame = p.socket.next(p.rank < 0 ? 256 : std::size_t{1} << 20))
        p.open = obey(p, frame_reader(*frame));
      else break;
  } catch (const comm_error&) { open = false; }
  if (open && p.open) return;
  p.open = false;
  if (p.rank >= 0) judge_.closes(p.rank);
}

WEFT_DEFINE bool watch_server::obey(peer& p, frame_reader in) {
  const auto what = static_cast<watch_report>(in.byte());
  if (p.rank < 0) {
    const int rank = static_cast<int>(in.number());
    const std::string given = in.text();
    const std::int64_t size = in.number();
    if (what != watch_report::come || !in.at_end() || !judge_.expects(rank) ||
        !proves(given, watch_proof(secret_, p.nonce, rank)))
      return false;
    p.rank = rank;
    judge_.comes(rank, size);
    if (asked_) p.socket.send(notice(watch_notice::where_are_you).take());
    return true;
  }
  switch (what) {
    case watch_report::leave: judge_.leaves(p.rank); return in.at_end();
    case watch_report::give_up: judge_.gives_up(in.text()); return in.at_end();
    case watch_report::standing: judge_.answers(p.rank, read_standing(in)); return in.at_end();
    case watch_report::late: {
      rank_wait w = read_wait(in);
      judge_.is_late(p.rank, std::move(w), in.number());
      return in.at_end();
    }
    case watch_report::lost: {
      const int other = static_cast<int>(in.number());
      judge_.has_lost(p.rank, std::clamp(other, 0, judge_.size() - 1), read_wait(in));
      return in.at_end();
    }
    default: return false;
  }
}

WEFT_DEFINE void watch_server::tell() {
  if (judge_.all_have_come() && listener_) {
    listener_ = descriptor();
    if (!judge_.verdict()) tell_all(notice(watch_notice::all_there).take());
  }
  if (judge_.asks() && !std::exchange(asked_, true)) tell_all(notice(watch_notice::where_are_you).take());
  if (!judge_.verdict()) return;
  for (peer& p : peers_)
    if (p.rank >= 0 && told_.insert(p.rank).second)
      p.socket.send(
          notice(watch_notice::verdict).byte(judge_.verdict()->late).text(judge_.verdict()->text).take());
}

}  // namespace detail
}  // namespace weft
