// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/thread_group.hpp>.
#pragma once

#include <thread>

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/base/running_clock.hpp>
#include <weft/comm/thread_group.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE thread_group::thread_group(std::shared_ptr<thread_world> world, std::vector<int> members)
    : world_(std::move(world)),
      ranks_(static_cast<int>(members.size())),
      in_world_(std::move(members)),
      members_(new member[in_world_.size()]) {
  const auto first = new rendezvous(ranks_, none, ranks_);
  for (int r = 0; r < ranks_; ++r) at(r).place = first;
}

WEFT_DEFINE thread_group::~thread_group() {
  for (int r = 0; r < ranks_; ++r) {
    int uses = 1;  // at its own place; further on, the handle as well
    for (rendezvous* m = at(r).place; m; uses = 2) release(*std::exchange(m, m->next.load()), uses);
  }
}

WEFT_DEFINE rendezvous& thread_group::post(int rank, operation o) {
  if (world_->gave_up) {
    const std::lock_guard lock(world_->mutex);
    rethrow_aborted();
  }
  member& own = at(rank);
  rendezvous& m = next_of(*own.place);
  m.posted[static_cast<std::size_t>(rank)] = std::move(o);
  {
    const std::lock_guard lock(own.guard);
    own.message.clear();
    release(*std::exchange(own.place, &m));
  }
  const int before = m.arrived.fetch_add(1);
  if (before + 1 == ranks_) begin(m, rank);
  else if (gone_ > 0) look_for_gone(m, rank);
  if ((before & rendezvous::cancelled || world_->gave_up) && m.cancel()) {
    release(m);
    const std::lock_guard lock(world_->mutex);
    rethrow_aborted();
  }
  return m;
}

WEFT_DEFINE std::shared_ptr<message> thread_group::post_message(int rank, operation o) {
  constexpr index_t short_bytes = 1 << 16;
  const std::lock_guard lock(world_->mutex);
  rethrow_aborted();
  const bool sends = o.kind == collective::send;
  {
    const std::lock_guard own(at(rank).guard);
    at(rank).message = o.text();
  }
  const int from = sends ? rank : o.root, to = sends ? o.root : rank;
  const auto path = messages_.try_emplace({from, to, o.tag}).first;
  auto& queue = path->second;
  auto found =
      std::find_if(queue.begin(), queue.end(), [&](const auto& m) { return sends ? !m->sent : !m->wanted; });
  if (found == queue.end()) {
    if (at(o.root).left) give_up_on(o.root, rank);
    rethrow_aborted();
    queue.push_back(std::make_shared<message>());
    found = std::prev(queue.end());
    (*found)->sender_rank = from;
    (*found)->receiver_rank = to;
  }
  const std::shared_ptr<message> m = *found;
  if (sends) {
    m->from = o.in;
    m->sender = o.text();
    if (o.in.bytes() <= short_bytes) {
      const char* begin = static_cast<const char*>(o.in.data);
      m->copy.assign(begin, begin + o.in.bytes());
      m->from.data = m->copy.data();
    }
  } else {
    m->to = o.out;
    m->receiver = o.text();
  }
  (sends ? m->sent : m->wanted) = true;  // now that nothing can throw
  if (m->sent && m->wanted) {
    queue.erase(found);
    if (queue.empty()) messages_.erase(path);
    deliver(*m, from, to);
  }
  rethrow_aborted();
  return m;
}

WEFT_DEFINE bool thread_group::help(rendezvous& m, int rank) {
  const rendezvous::stage now = m.at;
  if (now == rendezvous::stage::gathering) return world_->gave_up && m.cancel();
  if (now == rendezvous::stage::refused) return true;
  const std::size_t count = m.chunks.size(),
                    own = count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks_);
  for (std::size_t i = 0; i < count && !m.is_over(); ++i) {
    chunk& c = m.chunks[(own + i) % count];
    if (std::atomic_ref(c.taken).exchange(true)) continue;
    try {
      run(c, m.posted);
    } catch (...) {
      give_up_after_exception(rank);
      m.failed = true;
    }
    if (m.finished.fetch_add(1) + 1 < count) continue;
    m.at = m.failed ? rendezvous::stage::refused : rendezvous::stage::over;
    world_->tell();
  }
  const rendezvous::stage then = m.at;
  return then == rendezvous::stage::over || then == rendezvous::stage::refused;
}

WEFT_DEFINE void thread_group::wait(rendezvous& m, int rank, std::chrono::milliseconds limit) {
  for (int i = 0; i < spins; ++i)
    if (help(m, rank)) return;
  const auto sleeps_from = std::min(deadline_after(limit), std::chrono::steady_clock::now() + awake);
  do {  // others often arrive soon: sleeping would take longer
    std::this_thread::yield();
    for (int i = 0; i < spins; ++i)
      if (help(m, rank)) return;
  } while (std::chrono::steady_clock::now() < sleeps_from);
  for (;;) {
    const bool ready = m.at != rendezvous::stage::gathering;
    if (help(m, rank)) return;
    std::unique_lock lock(world_->mutex);  // if it was ready, the remaining work has been taken by others
    const sleeper asleep(*world_, in_world(rank), {this, &m, nullptr, -1});
    const bool woken = wait_while_running(world_->changed, lock, limit, [&] {
      const rendezvous::stage now = m.at;
      return now == rendezvous::stage::gathering ? world_->aborted != nullptr
                                                 : now != rendezvous::stage::ready || !ready;
    });
    if (!woken && m.cancel()) world_->give_up<timeout_error>(report_of({this, &m, nullptr, -1}, rank, limit));
  }
}

WEFT_DEFINE void thread_group::wait(message& m, bool sends, int rank, std::chrono::milliseconds limit) {
  std::unique_lock lock(world_->mutex);
  const thread_wait here{this, nullptr, &m, sends ? m.receiver_rank : m.sender_rank};
  const sleeper asleep(*world_, in_world(rank), here);
  if (wait_while_running(world_->changed, lock, limit, [&] { return is_over(m, sends) || world_->aborted; }))
    return;
  world_->give_up<timeout_error>(report_of(here, rank, limit));
}

WEFT_DEFINE std::exception_ptr thread_group::failure(const rendezvous& m) const {
  if (m.is_over()) return nullptr;
  const std::lock_guard lock(world_->mutex);
  return m.is_over() ? nullptr : world_->aborted;
}

WEFT_DEFINE void thread_group::leave(int rank) {
  const std::lock_guard lock(world_->mutex);
  at(rank).left = true;
  ++gone_;
  for (const rendezvous* m = at(rank).place->next; m; m = m->next)
    if (m->arrived > 0) {
      world_->give_up("weft: " + name(rank) + " is gone; others wait for it in #" +
                      std::to_string(m->number) + "; its last operation was " + what_does(rank));
      return;
    }
  for (const auto& [path, queue] : messages_)
    for (const auto& m : queue)
      if ((std::get<0>(path) == rank && !m->sent) ||
          (std::get<1>(path) == rank && !m->wanted && m->copy.empty())) {
        world_->give_up("weft: " + name(rank) + " is gone; another waits for it in " +
                        (m->sent ? m->sender : m->receiver));
        return;
      }
}

WEFT_DEFINE std::vector<std::pair<std::shared_ptr<thread_group>, int>> thread_group::divided(
    const rendezvous& m) const {
  std::map<int, std::vector<std::pair<int, int>>> by_color;  // key, rank
  for (int r = 0; r < ranks_; ++r) {
    const operation& o = m.posted[static_cast<std::size_t>(r)];
    if (o.tag >= 0) by_color[o.tag].emplace_back(o.key, r);
  }
  std::vector<std::pair<std::shared_ptr<thread_group>, int>> result(static_cast<std::size_t>(ranks_));
  for (auto& [color, members] : by_color) {
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& [key, r] : members) ranks.push_back(in_world(r));
    const auto group = std::make_shared<thread_group>(world_, std::move(ranks));
    for (std::size_t i = 0; i < members.size(); ++i)
      result[static_cast<std::size_t>(members[i].second)] = {group, static_cast<int>(i)};
  }
  return result;
}

WEFT_DEFINE rendezvous& thread_group::next_of(rendezvous& m) const {
  rendezvous* found = m.next;
  if (found) return *found;
  auto made = std::make_unique<rendezvous>(ranks_, m.number + 1, 2 * ranks_);
  return m.next.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
}

WEFT_DEFINE void thread_group::look_for_gone(const rendezvous& m, int rank) {
  const std::lock_guard lock(world_->mutex);
  for (int r = 0; r < ranks_; ++r)
    if (at(r).left && !has_posted(r, m)) give_up_on(r, rank);
}

WEFT_DEFINE void thread_group::give_up_on(int gone, int rank) {
  world_->give_up("weft: " + name(gone) + " is gone; " + name(rank) + " waits for it in " + what_does(rank));
}

WEFT_DEFINE void thread_group::begin(rendezvous& m, int rank) {
  try {
    prepare(m);
  } catch (...) {
    give_up_after_exception(rank);
    m.at = rendezvous::stage::refused;
  }
  world_->tell();
}

WEFT_DEFINE void thread_group::prepare(rendezvous& m) {
  const operation& o = m.posted[0];
  const auto agrees = [&](const operation& each) { return each.means_what(o); };
  if (!std::all_of(m.posted.begin() + 1, m.posted.end(), agrees)) throw comm_error(disagreement_of(m));
  m.chunks = chunks_of(m.posted);  // or the parts do not fit
  if (o.agrees_only) m.chunks.clear();
  const index_t bytes = std::max(o.in.bytes(), o.out.count * size_of(o.out.type)) * ranks_;
  const bool small = m.chunks.empty() || bytes <= small_bytes;
  if (small)
    for (const chunk& c : m.chunks) run(c, m.posted);
  m.at = small ? rendezvous::stage::over : rendezvous::stage::ready;
}

WEFT_DEFINE void thread_group::give_up_after_exception(int rank) {
  std::exception_ptr why = std::current_exception();
  try {
    throw;
  } catch (const comm_error&) {  // names the ranks
  } catch (const std::exception& e) {
    try {
      why = std::make_exception_ptr(
          comm_error("weft: " + name(rank) + " gave up: " + e.what() + ", in " + what_does(rank)));
    } catch (const std::bad_alloc&) {}  // no memory for the text
  } catch (...) {}
  const std::lock_guard lock(world_->mutex);
  world_->give_up(std::move(why));
}

WEFT_DEFINE std::string thread_group::disagreement_of(const rendezvous& m) const {
  std::vector<std::string> texts;
  for (const operation& each : m.posted) texts.push_back(each.text());
  return disagreement(texts, in_world_, m.number);
}

WEFT_DEFINE std::string thread_group::what_does(int rank) const {
  const std::lock_guard lock(at(rank).guard);
  const rendezvous& last = *at(rank).place;
  if (!at(rank).message.empty()) return at(rank).message;
  return last.number == none
             ? "nothing yet"
             : "#" + std::to_string(last.number) + " " + last.posted[static_cast<std::size_t>(rank)].text();
}

WEFT_DEFINE rank_wait thread_group::wait_of(const thread_wait& w, int rank) const {
  const std::string group = std::to_string(reinterpret_cast<std::uintptr_t>(w.group));
  if (w.from) return {group, rank_wait::message, {w.group->in_world(w.peer)}, w.group->what_does(rank)};
  return {group, static_cast<std::int64_t>(w.in->number), w.group->in_world_, w.group->what_does(rank)};
}

WEFT_DEFINE rank_standings thread_group::standings() const {
  rank_standings all(static_cast<std::size_t>(1 + *std::max_element(in_world_.begin(), in_world_.end())));
  for (const auto& [rank, w] : world_->waits)
    for (int r = 0; r < w.group->ranks_; ++r) {
      const auto at = static_cast<std::size_t>(w.group->in_world(r));
      if (at >= all.size()) all.resize(at + 1);
      if (!all[at]) all[at].emplace();
      const rank_wait here = wait_of(w, r);
      const std::lock_guard lock(w.group->at(r).guard);
      all[at]->posted[here.group] = static_cast<std::int64_t>(w.group->at(r).place->number + 1);
      if (w.group->in_world(r) == rank) all[at]->waits = here;
      all[at]->last = here.doing;
    }
  return all;
}

WEFT_DEFINE void thread_group::deliver(message& m, int from, int to) {
  if (m.from.count != m.to.count || m.from.type != m.to.type) {
    world_->give_up(message_disagreement(in_world(from), m.sender, in_world(to), m.receiver));
    return;
  }
  if (m.from.count) std::memcpy(m.to.data, m.from.data, static_cast<std::size_t>(m.from.bytes()));
  m.over = true;
  world_->changed.notify_all();
}

}  // namespace detail
}  // namespace weft
