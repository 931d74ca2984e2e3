// SPDX-License-Identifier: MIT
// What the ranks of a group of threads share: the operations they have posted, matched by number
// or by sender, receiver and tag; and the reports when they do not match.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include <weft/base/recycled.hpp>
#include <weft/comm/chunks.hpp>
#include <weft/comm/work.hpp>

namespace weft {

namespace detail {

/// What the threads of a run share: one lock for all that is small, and the reason to give up.
struct thread_world {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers = 0;  // threads that wait for a change, or are about to
  std::exception_ptr aborted;
  std::atomic<bool> gave_up = false;  // the same, without the lock

  /// The lock; held for so short that trying again is mostly quicker than sleeping.
  std::unique_lock<std::mutex> lock() {
    constexpr int tries = 100;
    for (int i = 0; i < tries; ++i)
      if (std::unique_lock<std::mutex> held(mutex, std::try_to_lock); held) return held;
    return std::unique_lock<std::mutex>(mutex);
  }
  /// Without the lock: wakes those who wait for something that has been set before.
  void tell() {
    if (sleepers == 0) return;
    const auto held = lock();
    changed.notify_all();
  }

  /// With the lock held: everything fails from now on.
  template <class Error = comm_error>
  void give_up(const std::string& report) {
    if (!aborted) aborted = std::make_exception_ptr(Error(report));
    gave_up = true;
    changed.notify_all();
  }
};

class thread_group;

/// One collective: what each rank has posted, and the chunks of its work.
struct meeting {
  std::vector<operation> posted;
  std::vector<bool> here;
  int arrived = 0;
  std::atomic<bool> complete = false;  // all are here, and no one leaves before it is over
  std::atomic<bool> ready = false, over = false;
  std::vector<std::function<void()>> chunks;
  std::atomic<std::size_t> next{0}, finished{0};
  std::shared_ptr<std::vector<std::pair<std::shared_ptr<thread_group>, int>>> divided;  // a split's groups, by rank

  explicit meeting(int ranks) : posted(static_cast<std::size_t>(ranks)), here(static_cast<std::size_t>(ranks), false) {}
};

/// One message, posted by its sender, its receiver, or both.
struct message {
  bool sent = false, wanted = false, over = false;
  const_elements from;
  elements to;
  std::vector<char> copy;  // of a short message, so that its sender goes on
  std::string sender, receiver;
};

/// The state of a group that its ranks share.
class thread_group {
 public:
  thread_group(std::shared_ptr<thread_world> world, int ranks)
      : world_(std::move(world)), ranks_(ranks),
        next_(static_cast<std::size_t>(ranks_), 0), doing_(static_cast<std::size_t>(ranks_)),
        left_(static_cast<std::size_t>(ranks_), false) {}

  int size() const { return ranks_; }
  thread_world& world() const { return *world_; }

  std::shared_ptr<meeting> post(int rank, operation o) {
    auto lock = world_->lock();
    throw_if_aborted();
    const auto own = static_cast<std::size_t>(rank);
    const std::uint64_t number = next_[own]++;
    auto& m = meetings_[number];
    if (!m) m = make_recycled<meeting>(ranks_);
    m->posted[own] = std::move(o);
    m->here[own] = true;
    doing_[own] = {m, number, ""};
    const std::shared_ptr<meeting> kept = m;
    for (int r = 0; r < ranks_; ++r)
      if (!kept->here[static_cast<std::size_t>(r)] && left_[static_cast<std::size_t>(r)])
        give_up_on(r, rank);
    if (++kept->arrived == ranks_) {
      meetings_.erase(number);
      kept->complete = true;
      lock.unlock();
      begin(*kept, number);
      if (!world_->gave_up) return kept;
      lock.lock();
    }
    throw_if_aborted();
    return kept;
  }

  std::shared_ptr<message> post_message(int rank, operation o) {
    constexpr index_t short_bytes = 1 << 16;
    const std::lock_guard lock(world_->mutex);
    throw_if_aborted();
    const bool sends = o.kind == collective::send;
    const auto own = static_cast<std::size_t>(rank);
    doing_[own] = {nullptr, 0, o.text()};
    const int from = sends ? rank : o.root, to = sends ? o.root : rank;
    auto& queue = messages_[{from, to, o.tag}];
    auto found = std::find_if(queue.begin(), queue.end(), [&](const auto& m) { return sends ? !m->sent : !m->wanted; });
    if (found == queue.end()) {
      if (left_[static_cast<std::size_t>(o.root)])
        give_up_on(o.root, rank);
      throw_if_aborted();
      queue.push_back(std::make_shared<message>());
      found = std::prev(queue.end());
    }
    const std::shared_ptr<message> m = *found;
    (sends ? m->sent : m->wanted) = true;
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
    if (m->sent && m->wanted) {
      queue.erase(found);
      deliver(*m, from, to);
    }
    throw_if_aborted();
    return m;
  }

  /// Runs chunks while there are any; true when the operation is over. One that is complete is
  /// carried out even if the group has been given up: others are at work in its buffers.
  bool help(meeting& m) {
    if (m.over) return true;
    if (!m.ready) return world_->gave_up && !m.complete;
    for (std::size_t c; (c = m.next.fetch_add(1)) < m.chunks.size();) {
      m.chunks[c]();
      if (m.finished.fetch_add(1) + 1 == m.chunks.size()) {
        m.over = true;
        world_->tell();
      }
    }
    return m.over;
  }

  void wait(meeting& m, int rank, std::chrono::milliseconds limit) {
    const auto start = std::chrono::steady_clock::now(), deadline = start + limit;
    do {  // others are often about to come: sleeping would take longer
      for (int i = 0; i < spins; ++i)
        if (help(m)) return;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() - start < std::min<std::chrono::nanoseconds>(limit, awake));
    while (!help(m)) {
      std::unique_lock lock(world_->mutex);
      const sleeper asleep(*world_);
      if (world_->changed.wait_until(lock, deadline, [&] { return m.over || (!m.complete && world_->aborted) || (m.ready && m.next < m.chunks.size()); }))
        continue;
      if (m.complete) continue;
      world_->give_up<timeout_error>(late_report(m, rank, limit));
    }
  }

  void wait(message& m, bool sends, int rank, std::chrono::milliseconds limit) {
    std::unique_lock lock(world_->mutex);
    const sleeper asleep(*world_);
    if (world_->changed.wait_for(lock, limit, [&] { return is_over(m, sends) || world_->aborted; })) return;
    const std::string& what = sends ? m.sender : m.receiver;
    world_->give_up<timeout_error>("weft: rank " + std::to_string(rank) + " waited " + std::to_string(limit.count()) + " ms in " +
                                   what + "; the other side has not called its part\n" + all_doing());
  }

  /// With short messages the sender's part is over when it is copied.
  bool is_over(const message& m, bool sends) const { return m.over || (sends && !m.copy.empty()) || (sends && m.sent && m.from.count == 0); }

  std::exception_ptr failure(const meeting& m) const {
    if (m.over) return nullptr;
    const std::lock_guard lock(world_->mutex);
    return m.over ? nullptr : world_->aborted;
  }
  std::exception_ptr failure(const message& m) const {
    const std::lock_guard lock(world_->mutex);
    return m.over ? nullptr : world_->aborted;
  }
  bool over_or_aborted(const message& m, bool sends) const {
    const std::lock_guard lock(world_->mutex);
    return is_over(m, sends) || world_->aborted;
  }

  void leave(int rank) {
    const std::lock_guard lock(world_->mutex);
    left_[static_cast<std::size_t>(rank)] = true;
    for (const auto& [number, m] : meetings_)
      if (!m->here[static_cast<std::size_t>(rank)] && m->arrived > 0) {
        world_->give_up("weft: rank " + std::to_string(rank) + " is gone; others wait for it in #" + std::to_string(number) +
                        "; its last operation was " + what_does(rank));
        return;
      }
    for (const auto& [path, queue] : messages_)
      for (const auto& m : queue)
        if ((std::get<0>(path) == rank && !m->sent) || (std::get<1>(path) == rank && !m->wanted && m->copy.empty())) {
          world_->give_up("weft: rank " + std::to_string(rank) + " is gone; another waits for it in " + (m->sent ? m->sender : m->receiver));
          return;
        }
  }

  /// The groups that a split makes, by rank.
  std::vector<std::pair<std::shared_ptr<thread_group>, int>> divided(const meeting& m) const {
    std::map<int, std::vector<std::pair<int, int>>> by_color;  // key, rank
    for (int r = 0; r < ranks_; ++r) {
      const operation& o = m.posted[static_cast<std::size_t>(r)];
      if (o.tag >= 0) by_color[o.tag].emplace_back(o.key, r);
    }
    std::vector<std::pair<std::shared_ptr<thread_group>, int>> result(static_cast<std::size_t>(ranks_));
    for (auto& [color, members] : by_color) {
      std::sort(members.begin(), members.end());
      const auto group = std::make_shared<thread_group>(world_, static_cast<int>(members.size()));
      for (std::size_t i = 0; i < members.size(); ++i)
        result[static_cast<std::size_t>(members[i].second)] = {group, static_cast<int>(i)};
    }
    return result;
  }

 private:
  void throw_if_aborted() const {
    if (world_->aborted) std::rethrow_exception(world_->aborted);
  }

  /// With the lock held: nobody will come for what `rank` does.
  void give_up_on(int gone, int rank) {
    world_->give_up("weft: rank " + std::to_string(gone) + " is gone; rank " + std::to_string(rank) + " waits for it in " +
                    what_does(rank));
  }

  /// Without the lock: all ranks are here. What is small is done at once, by who came last.
  void begin(meeting& m, std::uint64_t number) {
    const auto agrees = [&](const operation& each) { return each.means_what(m.posted[0]); };
    try {
      if (!std::all_of(m.posted.begin() + 1, m.posted.end(), agrees)) throw comm_error(disagreement_of(m, number));
      m.chunks = chunked_collective(m.posted).take();
    } catch (const comm_error& e) {
      const auto lock = world_->lock();
      m.complete = false;
      world_->give_up(e.what());
      return;
    }
    const operation& o = m.posted[0];
    const index_t bytes = std::max(o.in.bytes(), o.out.count * size_of(o.out.type)) * ranks_;
    if (m.chunks.empty() || bytes <= small_bytes) {
      for (const auto& chunk : m.chunks) chunk();
      m.chunks.clear();
      m.over = true;
    }
    m.ready = true;
    world_->tell();
  }

  std::string disagreement_of(const meeting& m, std::uint64_t number) const {
    std::vector<std::string> texts;
    for (const operation& each : m.posted) texts.push_back(each.text());
    return disagreement(texts, number);
  }

  std::string what_does(int rank) const {
    const last_operation& d = doing_[static_cast<std::size_t>(rank)];
    if (!d.in) return d.text.empty() ? "nothing yet" : d.text;
    return "#" + std::to_string(d.number) + " " + d.in->posted[static_cast<std::size_t>(rank)].text();
  }
  std::string all_doing() const {
    std::string t = "last operations:";
    for (int r = 0; r < ranks_; ++r)
      t += "\n  rank " + std::to_string(r) + (left_[static_cast<std::size_t>(r)] ? " (gone): " : ": ") + what_does(r);
    return t;
  }

  std::string late_report(const meeting& m, int rank, std::chrono::milliseconds limit) const {
    std::string t = "weft: rank " + std::to_string(rank) + " waited " + std::to_string(limit.count()) + " ms in " +
                    m.posted[static_cast<std::size_t>(rank)].text() + "; not there:";
    for (int r = 0; r < ranks_; ++r)
      if (!m.here[static_cast<std::size_t>(r)]) t += " rank " + std::to_string(r);
    return t + "\n" + all_doing();
  }

  void deliver(message& m, int from, int to) {
    if (m.from.count != m.to.count || m.from.type != m.to.type) {
      world_->give_up("weft: rank " + std::to_string(from) + " called " + m.sender + ", but rank " + std::to_string(to) +
                      " called " + m.receiver);
      return;
    }
    if (m.from.count) std::memcpy(m.to.data, m.from.data, static_cast<std::size_t>(m.from.bytes()));
    m.over = true;
    world_->changed.notify_all();
  }

  std::shared_ptr<thread_world> world_;
  int ranks_;
  std::vector<std::uint64_t> next_;  // by rank: the number of its next collective
  /// A collective as its meeting and number, a message as text.
  struct last_operation {
    std::shared_ptr<meeting> in;
    std::uint64_t number = 0;
    std::string text;
  };
  /// Counts itself among those that `tell` must wake, before it looks whether it must wait.
  struct sleeper {
    explicit sleeper(thread_world& w) : world(w) { ++world.sleepers; }
    sleeper(const sleeper&) = delete;
    sleeper& operator=(const sleeper&) = delete;
    ~sleeper() { --world.sleepers; }
    thread_world& world;
  };
  static constexpr int spins = 64;                       // between two yields
  static constexpr std::chrono::microseconds awake{50};  // longer waits sleep
  static constexpr index_t small_bytes = 1 << 16;

  std::vector<last_operation> doing_;
  std::vector<bool> left_;
  std::map<std::uint64_t, std::shared_ptr<meeting>> meetings_;
  std::map<std::tuple<int, int, int>, std::vector<std::shared_ptr<message>>> messages_;
};

class collective_state : public work::state {
 public:
  collective_state(std::shared_ptr<thread_group> g, std::shared_ptr<meeting> m, int rank)
      : group_(std::move(g)), meeting_(std::move(m)), rank_(rank) {}
  bool poll() override { return group_->help(*meeting_); }
  void wait(std::chrono::milliseconds limit) override { group_->wait(*meeting_, rank_, limit); }
  std::exception_ptr failure() const override { return group_->failure(*meeting_); }

 private:
  std::shared_ptr<thread_group> group_;
  std::shared_ptr<meeting> meeting_;
  int rank_;
};

class message_state : public work::state {
 public:
  message_state(std::shared_ptr<thread_group> g, std::shared_ptr<message> m, bool sends, int rank)
      : group_(std::move(g)), message_(std::move(m)), sends_(sends), rank_(rank) {}
  bool poll() override { return group_->over_or_aborted(*message_, sends_); }
  void wait(std::chrono::milliseconds limit) override { group_->wait(*message_, sends_, rank_, limit); }
  std::exception_ptr failure() const override {
    return sends_ && !message_->copy.empty() ? nullptr : group_->failure(*message_);
  }

 private:
  std::shared_ptr<thread_group> group_;
  std::shared_ptr<message> message_;
  bool sends_;
  int rank_;
};

}  // namespace detail
}  // namespace weft
