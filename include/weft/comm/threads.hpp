// SPDX-License-Identifier: MIT
// Ranks as threads of one process: the default, and what every parallel test runs on.
//
//   run_ranks(4, [](communicator& ranks) {
//     std::vector<float> x{1};
//     ranks.all_reduce(x).wait();          // {4} on every rank
//   });
//
// An operation is ready when all ranks have posted it. Its work is divided into chunks, and
// whoever waits or polls takes the next one: nobody's progress depends on a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include <weft/comm/communicator.hpp>
#include <weft/comm/reduce.hpp>

namespace weft {

namespace detail {

/// What the threads of a run share: one lock for all that is small, and the reason to give up.
struct thread_world {
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr aborted;

  /// With the lock held: everything fails from now on.
  void give_up(const std::string& report) {
    if (!aborted) aborted = std::make_exception_ptr(comm_error(report));
    changed.notify_all();
  }
};

class thread_group;

/// One collective: what each rank has posted, and the chunks of its work.
struct meeting {
  std::vector<operation> posted;
  std::vector<bool> here;
  int arrived = 0;
  bool ready = false, over = false;
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
  thread_group(std::shared_ptr<thread_world> world, std::vector<int> world_ranks)
      : world_(std::move(world)), ranks_(static_cast<int>(world_ranks.size())), world_ranks_(std::move(world_ranks)),
        next_(static_cast<std::size_t>(ranks_), 0), doing_(static_cast<std::size_t>(ranks_), "nothing yet"),
        left_(static_cast<std::size_t>(ranks_), false) {}

  int size() const { return ranks_; }
  thread_world& world() const { return *world_; }
  const std::shared_ptr<thread_world>& shared_world() const { return world_; }

  std::shared_ptr<meeting> post(int rank, operation o) {
    const std::lock_guard lock(world_->mutex);
    throw_if_aborted();
    const auto own = static_cast<std::size_t>(rank);
    const std::uint64_t number = next_[own]++;
    auto& m = meetings_[number];
    if (!m) m = std::make_shared<meeting>(ranks_);
    doing_[own] = "#" + std::to_string(number) + " " + o.text();
    m->posted[own] = std::move(o);
    m->here[own] = true;
    const std::shared_ptr<meeting> kept = m;
    for (int r = 0; r < ranks_; ++r)
      if (!kept->here[static_cast<std::size_t>(r)] && left_[static_cast<std::size_t>(r)])
        world_->give_up("weft: rank " + std::to_string(r) + " is gone; rank " + std::to_string(rank) + " waits for it in " + doing_[own]);
    if (++kept->arrived == ranks_) {
      meetings_.erase(number);
      if (const std::string wrong = disagreement(*kept, number); !wrong.empty()) world_->give_up(wrong);
      else make_ready(*kept);
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
    doing_[own] = o.text();
    const int from = sends ? rank : o.root, to = sends ? o.root : rank;
    auto& queue = messages_[{from, to, o.tag}];
    auto found = std::find_if(queue.begin(), queue.end(), [&](const auto& m) { return sends ? !m->sent : !m->wanted; });
    if (found == queue.end()) {
      if (left_[static_cast<std::size_t>(o.root)])
        world_->give_up("weft: rank " + std::to_string(o.root) + " is gone; rank " + std::to_string(rank) + " waits for it in " + doing_[own]);
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

  /// Runs chunks while there are any; true when the operation is over. One that is ready is
  /// completed even if the group has been given up: others are at work in its buffers.
  bool help(meeting& m) {
    {
      const std::lock_guard lock(world_->mutex);
      if (m.over) return true;
      if (!m.ready) return world_->aborted != nullptr;
    }
    for (std::size_t c; (c = m.next.fetch_add(1)) < m.chunks.size();) {
      m.chunks[c]();
      if (m.finished.fetch_add(1) + 1 == m.chunks.size()) {
        const std::lock_guard lock(world_->mutex);
        m.over = true;
        world_->changed.notify_all();
      }
    }
    const std::lock_guard lock(world_->mutex);
    return m.over;
  }

  void wait(meeting& m, int rank, std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!help(m)) {
      std::unique_lock lock(world_->mutex);
      if (world_->changed.wait_until(lock, deadline, [&] { return m.over || (!m.ready && world_->aborted) || (m.ready && m.next < m.chunks.size()); }))
        continue;
      if (m.ready) continue;
      world_->aborted = std::make_exception_ptr(timeout_error(late_report(m, rank, limit)));
      world_->changed.notify_all();
    }
  }

  void wait(message& m, bool sends, int rank, std::chrono::milliseconds limit) {
    std::unique_lock lock(world_->mutex);
    if (world_->changed.wait_for(lock, limit, [&] { return is_over(m, sends) || world_->aborted; })) return;
    const std::string& what = sends ? m.sender : m.receiver;
    world_->aborted = std::make_exception_ptr(timeout_error(
        "weft: rank " + std::to_string(rank) + " waited " + std::to_string(limit.count()) + " ms in " + what +
        "; the other side has not called its part\n" + all_doing()));
    world_->changed.notify_all();
  }

  /// With short messages the sender's part is over when it is copied.
  bool is_over(const message& m, bool sends) const { return m.over || (sends && !m.copy.empty()) || (sends && m.sent && m.from.count == 0); }

  std::exception_ptr failure(const bool& over) const {
    const std::lock_guard lock(world_->mutex);
    return over ? nullptr : world_->aborted;
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
                        "; its last operation was " + doing_[static_cast<std::size_t>(rank)]);
        return;
      }
    for (const auto& [path, queue] : messages_)
      for (const auto& m : queue)
        if ((std::get<0>(path) == rank && !m->sent) || (std::get<1>(path) == rank && !m->wanted && m->copy.empty())) {
          world_->give_up("weft: rank " + std::to_string(rank) + " is gone; another waits for it in " + (m->sent ? m->sender : m->receiver));
          return;
        }
  }

  /// The groups that a split makes, by rank: filled in by its last rank.
  std::vector<std::pair<std::shared_ptr<thread_group>, int>> divided(const meeting& m) const {
    std::map<int, std::vector<std::pair<int, int>>> by_color;  // key, rank
    for (int r = 0; r < ranks_; ++r) {
      const operation& o = m.posted[static_cast<std::size_t>(r)];
      if (o.tag >= 0) by_color[o.tag].emplace_back(o.key, r);
    }
    std::vector<std::pair<std::shared_ptr<thread_group>, int>> result(static_cast<std::size_t>(ranks_));
    for (auto& [color, members] : by_color) {
      std::sort(members.begin(), members.end());
      std::vector<int> names;
      for (const auto& [key, r] : members) names.push_back(world_ranks_[static_cast<std::size_t>(r)]);
      const auto group = std::make_shared<thread_group>(world_, names);
      for (std::size_t i = 0; i < members.size(); ++i)
        result[static_cast<std::size_t>(members[i].second)] = {group, static_cast<int>(i)};
    }
    return result;
  }

 private:
  void throw_if_aborted() const {
    if (world_->aborted) std::rethrow_exception(world_->aborted);
  }

  /// What ranks that do not mean the same have called; empty if all do.
  std::string disagreement(const meeting& m, std::uint64_t number) const {
    std::map<std::string, std::vector<int>> by_text;
    for (int r = 0; r < ranks_; ++r) by_text[m.posted[static_cast<std::size_t>(r)].text()].push_back(r);
    if (by_text.size() == 1) return "";
    std::string report = "weft: ranks disagree about operation #" + std::to_string(number) + ":";
    const auto most = std::max_element(by_text.begin(), by_text.end(), [](const auto& a, const auto& b) {
      return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
    });
    for (const auto& [text, members] : by_text) {
      report += std::string("\n  ") + (text == most->first ? "most: " : "at fault: ") + "rank";
      for (int r : members) report += " " + std::to_string(r);
      report += " called " + text;
    }
    return report;
  }

  std::string all_doing() const {
    std::string t = "last operations:";
    for (int r = 0; r < ranks_; ++r)
      t += "\n  rank " + std::to_string(r) + (left_[static_cast<std::size_t>(r)] ? " (gone): " : ": ") + doing_[static_cast<std::size_t>(r)];
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

  /// Divides the work of a collective into chunks.
  void make_ready(meeting& m) {
    switch (m.posted[0].kind) {
      case collective::all_reduce: case collective::reduce: add_reduction(m, 0, m.posted[0].out.count, -1); break;
      case collective::reduce_scatter: {
        index_t begin = 0;
        for (int r = 0; r < ranks_; ++r) {
          add_reduction(m, begin, m.posted[0].in_counts[static_cast<std::size_t>(r)], r);
          begin += m.posted[0].in_counts[static_cast<std::size_t>(r)];
        }
        break;
      }
      case collective::broadcast: {
        const operation& root = m.posted[static_cast<std::size_t>(m.posted[0].root)];
        for (int r = 0; r < ranks_; ++r)
          if (r != root.root) add_copy(m, m.posted[static_cast<std::size_t>(r)].out, 0, root.in, 0, root.in.count);
        break;
      }
      case collective::all_gather: case collective::gather: {
        const bool all = m.posted[0].kind == collective::all_gather;
        for (int to = 0; to < ranks_; ++to) {
          if (!all && to != m.posted[0].root) continue;
          index_t at = 0;
          for (int r = 0; r < ranks_; ++r) {
            const operation& o = m.posted[static_cast<std::size_t>(r)];
            add_copy(m, m.posted[static_cast<std::size_t>(to)].out, at, o.in, 0, o.in.count);
            at += o.in.count;
          }
        }
        break;
      }
      case collective::scatter: {
        const operation& root = m.posted[static_cast<std::size_t>(m.posted[0].root)];
        index_t at = 0;
        for (int r = 0; r < ranks_; ++r) {
          const operation& o = m.posted[static_cast<std::size_t>(r)];
          add_copy(m, o.out, 0, root.in, at, o.out.count);
          at += o.out.count;
        }
        break;
      }
      case collective::all_to_all: add_exchange(m); break;
      default: break;
    }
    m.ready = true;
    m.over = m.chunks.empty();
    world_->changed.notify_all();
  }

  static constexpr index_t chunk_elements = 1 << 13;

  void add_copy(meeting& m, const elements& to, index_t to_at, const const_elements& from, index_t from_at, index_t count) {
    const index_t size = size_of(from.type), step = chunk_elements * 8 / size;
    for (index_t i = 0; i < count; i += step) {
      char* target = static_cast<char*>(to.data) + (to_at + i) * size;
      const char* source = static_cast<const char*>(from.data) + (from_at + i) * size;
      const auto bytes = static_cast<std::size_t>(std::min(step, count - i) * size);
      if (target != source) m.chunks.push_back([=] { std::memmove(target, source, bytes); });
    }
  }

  /// Reduces elements [begin, begin + count) for rank `only`, or for those that want all of it.
  void add_reduction(meeting& m, index_t begin, index_t count, int only) {
    auto sources = std::make_shared<std::vector<const void*>>();
    for (const operation& o : m.posted) sources->push_back(o.in.data);
    const operation& first = m.posted[0];
    std::vector<void*> targets;
    for (int r = 0; r < ranks_; ++r) {
      const bool wants = only >= 0 ? r == only : first.kind == collective::all_reduce || r == first.root;
      if (wants) targets.push_back(m.posted[static_cast<std::size_t>(r)].out.data);
    }
    const index_t offset = only >= 0 ? begin : 0;
    for (index_t i = begin; i < begin + count; i += chunk_elements) {
      const index_t n = std::min(chunk_elements, begin + count - i);
      m.chunks.push_back([=, op = first.op, type = first.type()] {
        visit_type(type, [&]<class T>(T) {
          const std::unique_ptr<T[]> reduced(new T[static_cast<std::size_t>(n)]);
          reduce_ranks<T>(*sources, i, n, op, reduced.get());
          for (void* to : targets)
            std::memcpy(static_cast<T*>(to) + (i - offset), reduced.get(), static_cast<std::size_t>(n) * sizeof(T));
        });
      });
    }
  }

  void add_exchange(meeting& m) {
    for (int to = 0; to < ranks_; ++to) {
      index_t at = 0;
      for (int from = 0; from < ranks_; ++from) {
        const operation &a = m.posted[static_cast<std::size_t>(from)], &b = m.posted[static_cast<std::size_t>(to)];
        index_t source_at = 0;
        for (int r = 0; r < to; ++r) source_at += a.in_counts[static_cast<std::size_t>(r)];
        const index_t sent = a.in_counts[static_cast<std::size_t>(to)], received = b.out_counts[static_cast<std::size_t>(from)];
        if (sent != received) {
          world_->give_up("weft: all_to_all: rank " + std::to_string(from) + " sends " + std::to_string(sent) + " elements to rank " +
                          std::to_string(to) + ", which expects " + std::to_string(received));
          return;
        }
        add_copy(m, b.out, at, a.in, source_at, sent);
        at += received;
      }
    }
  }

  std::shared_ptr<thread_world> world_;
  int ranks_;
  std::vector<int> world_ranks_;
  std::vector<std::uint64_t> next_;  // by rank: the number of its next collective
  std::vector<std::string> doing_;
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
  std::exception_ptr failure() const override { return group_->failure(meeting_->over); }

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
    return sends_ && !message_->copy.empty() ? nullptr : group_->failure(message_->over);
  }

 private:
  std::shared_ptr<thread_group> group_;
  std::shared_ptr<message> message_;
  bool sends_;
  int rank_;
};

}  // namespace detail

class threads_communicator : public communicator {
 public:
  threads_communicator(std::shared_ptr<detail::thread_group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  threads_communicator(const threads_communicator&) = delete;
  threads_communicator& operator=(const threads_communicator&) = delete;
  ~threads_communicator() override { group_->leave(rank_); }

  const char* name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override {
    const auto m = group_->post(rank_, {.kind = collective::split, .tag = color, .key = key, .label = o.label});
    detail::collective_state state(group_, m, rank_);
    state.wait(o.timeout);
    if (const auto e = state.failure()) std::rethrow_exception(e);
    // Every rank works the same division out; the first one's groups are taken by all.
    std::vector<std::pair<std::shared_ptr<detail::thread_group>, int>> groups;
    {
      const std::lock_guard lock(group_->world().mutex);
      if (!m->divided) m->divided = std::make_shared<decltype(groups)>(group_->divided(*m));
      groups = *m->divided;
    }
    const auto& [group, rank] = groups[static_cast<std::size_t>(rank_)];
    return group ? std::make_shared<threads_communicator>(group, rank) : nullptr;
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(group_->world().mutex);
    group_->world().give_up("weft: rank " + std::to_string(rank_) + " gave up: " + reason);
  }

 protected:
  work start(operation o) override {
    const auto limit = o.timeout;
    if (o.kind == collective::send || o.kind == collective::receive) {
      const bool sends = o.kind == collective::send;
      return work(std::make_shared<detail::message_state>(group_, group_->post_message(rank_, std::move(o)), sends, rank_), limit);
    }
    return work(std::make_shared<detail::collective_state>(group_, group_->post(rank_, std::move(o)), rank_), limit);
  }

 private:
  std::shared_ptr<detail::thread_group> group_;
  int rank_;
};

/// Runs f(communicator) on `n` ranks, each a thread. Throws what went wrong first, when all ranks
/// have ended.
template <class F>
void run_ranks(int n, F f) {
  auto world = std::make_shared<detail::thread_world>();
  std::vector<int> names;
  for (int r = 0; r < n; ++r) names.push_back(r);
  const auto group = std::make_shared<detail::thread_group>(world, names);
  std::exception_ptr first;
  std::mutex guard;
  const auto rank = [&](int r) {
    threads_communicator ranks(group, r);
    try {
      f(static_cast<communicator&>(ranks));
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!first) first = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(rank, r);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace weft
