// SPDX-License-Identifier: MIT
// Definitions of <weft/train/profiler.hpp>.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/comm/threads.hpp>
#include <weft/io/files.hpp>
#include <weft/io/json_parser.hpp>
#include <weft/train/agreement.hpp>
#include <weft/run/step_observer.hpp>
#include <weft/train/profiler.hpp>
#include <weft/run/step_text.hpp>

namespace weft {
namespace detail {

using profiler_clock = std::chrono::steady_clock;

/// The ranges of one thread. Locked for each range, without contention while the profiler runs.
struct thread_log {
  struct sums {
    std::int64_t count = 0, total = 0, self = 0, longest = 0, bytes = 0;  // times in ns
    double operations = 0, recomputed = 0;
    bool is_op = false;
  };
  struct event {
    std::size_t name;
    std::int64_t begin, size;  // in ns, from the start of the clock
  };
  explicit thread_log(int n) : number(n) {}

  const int number;
  const std::thread::id thread = std::this_thread::get_id();
  std::mutex lock;
  std::map<std::string, std::size_t> numbers;  // of names
  std::vector<std::string> names;
  std::vector<sums> by_name;
  std::vector<event> events;
};

/// What a profiler collects.
struct profile {
  mutable std::mutex lock;
  std::vector<std::shared_ptr<thread_log>> logs;
  profiler_clock::time_point started = profiler_clock::now(), stopped{};
  std::atomic<bool> is_on{true};

  void clear() {
    const std::lock_guard guard(lock);
    logs.clear();
    started = profiler_clock::now();
  }
  profiler_clock::duration elapsed() const { return (is_on ? profiler_clock::now() : stopped) - started; }
  /// Calls f(log) for the log of each thread, or of this one.
  template <class F>
  void for_each_log(bool own, F f) const {
    std::vector<std::shared_ptr<thread_log>> all;
    {
      const std::lock_guard guard(lock);
      all = logs;
    }
    for (const auto& log : all) {
      if (own && log->thread != std::this_thread::get_id()) continue;
      const std::lock_guard guard(log->lock);
      f(*log);
    }
  }
};

/// The sink of ranges and steps for profilers. Never destroyed, because ranges may end after their profiler.
class profiler_sink final : public range_sink, public runtime::step_observer {
 public:
  static profiler_sink& get() {
    static profiler_sink* const all = new profiler_sink;
    return *all;
  }

  void start(const profiler_options& o, std::shared_ptr<profile> to) {
    if (is_on_.exchange(true)) refuse<usage_error>({"weft: profiler: another one is already running"});
    waits_ = o.wait_for_devices;
    most_events_ = o.most_events;
    {
      const std::lock_guard guard(lock_);
      profile_ = std::move(to);
      events_ = 0;
      ++generation_;
    }
    next_ = set_range_sink(this);
    if (o.ops) runtime::detail::steps_go_to = this;
  }
  void stop() {
    runtime::detail::steps_go_to = nullptr;
    range_sink* self = this;
    ranges_go_to.compare_exchange_strong(self, next_);
    {
      const std::lock_guard guard(lock_);
      profile_.reset();
    }
    is_on_ = false;
  }
  /// Ranges that are open are not counted.
  void clear() {
    const std::lock_guard guard(lock_);
    ++generation_;
    events_ = 0;
    profile_->clear();
  }

  void begin(const char* name, std::int64_t bytes) noexcept override {
    range_sink* const next = next_;
    if (next) next->begin(name, bytes);
    open({.name = name, .bytes = bytes}, next, false);
  }
  void end() noexcept override { close(); }

  void begin_launch(std::span<const kernel_call* const> calls) override {
    open(runtime::text_of_launch(calls), nullptr, true);
  }
  void begin_product(std::span<const strided> t) override {
    open(runtime::text_of_product(t), nullptr, true);
  }
  void begin_native(const char* op, const native_code& code, const attributes& at,
                    std::span<const strided> in, std::span<const strided> out) override {
    open(runtime::text_of_native(op, code, at, in, out), nullptr, true);
  }
  void end(backend* device) override {
    try {
      if (device && waits_ && !device->is_recording()) device->synchronize();
    } catch (...) {
      close();
      throw;
    }
    close();
  }

 private:
  struct open_range {
    std::uint64_t generation;
    runtime::step_text text;
    range_sink* next;  // the other range sink, which also receives the ranges
    bool is_op, recomputes;
    std::int64_t begin, inside = 0;
  };
  static std::vector<open_range>& open_ranges() {
    thread_local std::vector<open_range> open;
    return open;
  }
  static std::int64_t now() {
    return std::chrono::nanoseconds(profiler_clock::now().time_since_epoch()).count();
  }
  void open(runtime::step_text text, range_sink* next, bool is_op) {
    std::vector<open_range>& open = open_ranges();
    const bool recomputes = (!open.empty() && open.back().recomputes) || text.name == "recompute";
    open.push_back({generation_, std::move(text), next, is_op, recomputes, now()});
  }
  void close() {
    if (open_ranges().empty()) return;  // begun by another thread
    const std::int64_t size = now() - open_ranges().back().begin;
    const open_range r = std::move(open_ranges().back());
    open_ranges().pop_back();
    if (r.next) r.next->end();
    if (!open_ranges().empty()) open_ranges().back().inside += size;
    if (!is_on_ || r.generation != generation_) return;
    record(r, size);
  }
  /// Appends to the log of this thread.
  void record(const open_range& r, std::int64_t size) {
    thread_local std::weak_ptr<thread_log> own;  // of the profile
    thread_local std::uint64_t at = 0;
    if (at != generation_) {
      const std::lock_guard guard(lock_);
      if (!profile_ || r.generation != generation_) return;
      const std::lock_guard profile_guard(profile_->lock);
      own =
          profile_->logs.emplace_back(std::make_shared<thread_log>(static_cast<int>(profile_->logs.size())));
      at = generation_;
    }
    const std::shared_ptr<thread_log> alive = own.lock();
    if (!alive) return;
    thread_log& log = *alive;
    const std::lock_guard guard(log.lock);
    const auto [found, is_new] = log.numbers.try_emplace(r.text.name, log.names.size());
    if (is_new) {
      log.names.push_back(r.text.name);
      log.by_name.emplace_back();
    }
    thread_log::sums& s = log.by_name[found->second];
    ++s.count;
    s.total += size;
    s.self += size - r.inside;
    s.longest = std::max(s.longest, size);
    s.bytes += r.text.bytes;
    s.operations += r.text.operations;
    if (r.recomputes) s.recomputed += r.text.operations;
    s.is_op = r.is_op;
    if (events_.fetch_add(1) < most_events_) log.events.push_back({found->second, r.begin, size});
  }

  std::atomic<bool> is_on_{false}, waits_{false};
  std::atomic<std::uint64_t> most_events_{0}, events_{0}, generation_{0};  // generation_: starts and clears
  std::atomic<range_sink*> next_{nullptr};
  std::mutex lock_;
  std::shared_ptr<profile> profile_;
};

/// The sums of all threads by name.
WEFT_DEFINE std::map<std::string, thread_log::sums> sums_by_name(const profile& of, bool shapes) {
  std::map<std::string, thread_log::sums> all;
  of.for_each_log(false, [&](const thread_log& log) {
    for (std::size_t i = 0; i < log.names.size(); ++i) {
      const thread_log::sums& from = log.by_name[i];
      const std::string& name = log.names[i];
      thread_log::sums& to = all[shapes || !from.is_op ? name : name.substr(0, name.find(" ["))];
      to.count += from.count;
      to.total += from.total;
      to.self += from.self;
      to.longest = std::max(to.longest, from.longest);
      to.bytes += from.bytes;
      to.operations += from.operations;
      to.recomputed += from.recomputed;
      to.is_op = from.is_op;
    }
  });
  return all;
}

constexpr const char* waiting_range = "wait for ranks";

/// Appends a space and `cell`, right-aligned in `width` columns.
inline void append_cell(std::string& to, std::size_t width, std::string_view cell) {
  to.append(1 + width - std::min(width, cell.size()), ' ');
  to += cell;
}

}  // namespace detail

WEFT_DEFINE profiler::profiler(profiler_options o) : profile_(std::make_shared<detail::profile>()) {
  detail::profiler_sink::get().start(o, profile_);
}
WEFT_DEFINE profiler::~profiler() { stop(); }
WEFT_DEFINE void profiler::stop() {
  if (!profile_->is_on) return;
  profile_->stopped = detail::profiler_clock::now();
  profile_->is_on = false;
  detail::profiler_sink::get().stop();
}
WEFT_DEFINE void profiler::clear() {
  if (profile_->is_on) detail::profiler_sink::get().clear();
  else profile_->clear();
}
WEFT_DEFINE double profiler::elapsed_ms() const {
  return std::chrono::duration<double, std::milli>(profile_->elapsed()).count();
}

WEFT_DEFINE std::vector<profiled_range> profiler::ranges() const {
  std::vector<profiled_range> all;
  for (const auto& [name, s] : detail::sums_by_name(*profile_, true))
    all.push_back({name, s.count, static_cast<double>(s.total) * 1e-6, static_cast<double>(s.self) * 1e-6,
                   static_cast<double>(s.longest) * 1e-6, s.operations, s.bytes});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.self_ms != b.self_ms ? a.self_ms > b.self_ms : a.name < b.name;
  });
  return all;
}

WEFT_DEFINE std::string profiler::table(table_options o) const {
  using detail::append_cell, detail::fixed;
  const auto sums = detail::sums_by_name(*profile_, o.shapes);
  std::vector<std::pair<std::string, detail::thread_log::sums>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.self != b.second.self ? a.second.self > b.second.self : a.first < b.first;
  });
  std::int64_t self = 0;
  double operations = 0;
  for (const auto& [name, s] : rows) self += s.self, operations += s.operations;
  constexpr std::pair<const char*, std::size_t> columns[] = {{"count", 7},  {"total ms", 10}, {"self ms", 10},
                                                             {"self %", 6}, {"mean us", 10},  {"GFLOP/s", 9},
                                                             {"GB/s", 8}};
  std::string text = "name" + std::string(58, ' ');
  for (const auto& [title, width] : columns) append_cell(text, width, title);
  text += '\n';
  for (std::size_t i = 0; i < std::min(rows.size(), o.rows); ++i) {
    const auto& [name, s] = rows[i];
    const auto total = static_cast<double>(std::max<std::int64_t>(s.total, 1));
    const std::string shown = name.size() <= 62 ? name : name.substr(0, 59) + "...";
    const double share = static_cast<double>(s.self) / static_cast<double>(std::max<std::int64_t>(self, 1));
    text += shown + std::string(62 - shown.size(), ' ');
    append_cell(text, 7, std::to_string(s.count));
    append_cell(text, 10, fixed(total * 1e-6, 3));
    append_cell(text, 10, fixed(static_cast<double>(s.self) * 1e-6, 3));
    append_cell(text, 6, fixed(100 * share, 1));
    append_cell(text, 10, fixed(total * 1e-3 / static_cast<double>(s.count), 1));
    if (s.is_op || s.operations > 0)
      append_cell(text, 9, s.operations > 0 ? fixed(s.operations / total, 1) : "");
    if (s.is_op) append_cell(text, 8, fixed(static_cast<double>(s.bytes) / total, 1));
    text += '\n';
  }
  if (rows.size() > o.rows) text += "and " + std::to_string(rows.size() - o.rows) + " more rows\n";
  const double elapsed = elapsed_ms();
  return text + "elapsed " + fixed(elapsed, 3) + " ms, " +
         fixed(operations * 1e-6 / std::max(elapsed, 1e-9), 1) + " GFLOP/s, waited for ranks " +
         fixed(exposed_communication_ms(), 3) + " ms\n";
}

WEFT_DEFINE flop_utilization profiler::utilization(double peak) const {
  double operations = 0, recomputed = 0;
  for (const auto& [name, s] : detail::sums_by_name(*profile_, true))
    operations += s.operations, recomputed += s.recomputed;
  const double possible = peak * elapsed_ms() * 1e-3;
  return {(operations - recomputed) / possible, operations / possible};
}

WEFT_DEFINE double profiler::exposed_communication_ms() const {
  double ms = 0;
  profile_->for_each_log(false, [&](const detail::thread_log& log) {
    const auto found = log.numbers.find(detail::waiting_range);
    if (found != log.numbers.end()) ms += static_cast<double>(log.by_name[found->second].total) * 1e-6;
  });
  return ms;
}

WEFT_DEFINE std::string profiler::events(int rank, std::int64_t zero, bool own_thread) const {
  const std::string process = std::to_string(rank);
  std::string text = "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + process +
                     ",\"tid\":0,\"args\":{\"name\":\"rank " + process + "\"}}";
  profile_->for_each_log(own_thread, [&](const detail::thread_log& log) {
    std::vector<std::string> names;
    for (const std::string& name : log.names) names.push_back(io::json_string(name));
    for (const auto& e : log.events) {
      text += ",\n{\"name\":" + names[e.name] +
              ",\"ph\":\"X\",\"ts\":" + detail::fixed(static_cast<double>(e.begin - zero) * 1e-3, 3) +
              ",\"dur\":" + detail::fixed(static_cast<double>(e.size) * 1e-3, 3) + ",\"pid\":" + process +
              ",\"tid\":" + std::to_string(log.number) + "}";
    }
  });
  return text;
}

WEFT_DEFINE std::int64_t profiler::first_event(bool own_thread) const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  profile_->for_each_log(own_thread, [&](const detail::thread_log& log) {
    for (const auto& e : log.events) first = std::min(first, e.begin);
  });
  return first;
}

namespace detail {
WEFT_DEFINE void write_trace(const std::string& path, std::string_view events) {
  io::replace_file(io::system_calls(), path,
                   {"{\"traceEvents\":[\n", events, "\n],\"displayTimeUnit\":\"ms\"}\n"});
}
}  // namespace detail

WEFT_DEFINE void profiler::save_trace(const std::string& path, int rank) const {
  detail::write_trace(path, events(rank, first_event(false), false));
}

WEFT_DEFINE void profiler::save_trace(const std::string& path, communicator& ranks) const {
  const bool own = detail::is_rank;  // the other threads of this process are other ranks
  ranks.barrier().wait();
  const std::int64_t now = std::chrono::nanoseconds(detail::profiler_clock::now().time_since_epoch()).count();
  const std::int64_t first = first_event(own);
  std::vector<std::int64_t> before{first > now ? 0 : now - first};  // of the first event of all ranks
  ranks.all_reduce(before, reduction::maximum).wait();
  const std::string text = events(ranks.rank(), now - before[0], own);
  const std::vector<std::int64_t> sizes =
      detail::of_all_ranks(ranks, {static_cast<std::int64_t>(text.size())}, {});
  rank_counts counts;
  counts.append(sizes.data(), sizes.data() + sizes.size());
  std::vector<std::uint8_t> own_bytes(text.begin(), text.end());
  std::vector<std::uint8_t> all(ranks.rank() == 0 ? static_cast<std::size_t>(operation::sum_of(counts)) : 0);
  ranks.gather(own_bytes, all, 0, counts).wait();
  on_all_ranks(ranks, {}, [&] {
    if (ranks.rank() != 0) return;
    std::string events;
    std::size_t at = 0;
    for (const std::int64_t n : sizes) {
      if (at) events += ",\n";
      events.append(reinterpret_cast<const char*>(all.data()) + at, static_cast<std::size_t>(n));
      at += static_cast<std::size_t>(n);
    }
    detail::write_trace(path, events);
  });
}

}  // namespace weft
