// SPDX-License-Identifier: MIT
// Definitions of <weft/planner/simulate.hpp>.
#pragma once

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include <weft/base/config.hpp>
#include <weft/planner/simulate.hpp>

namespace weft::planner {
namespace detail {

/// An operation of several ranks, or a message.
struct joint_operation {
  int missing = 0;   // ranks that have not begun it
  double ready = 0;  // when the last one began it
  double bytes = 0;
  double end = -1;                              // -1: unknown
  std::vector<std::size_t> begun{}, waiting{};  // ranks, as indices of their traces
};

class step_simulator {
 public:
  step_simulator(const cluster& c, std::span<const step_trace> traces)
      : cluster_(c), traces_(traces), ranks_(traces.size()) {
    for (std::size_t i = 0; i < traces.size(); ++i) {
      if (!position_of_.emplace(traces[i].rank, i).second)
        refuse<value_error>({"weft: planner: simulate: rank ", traces[i].rank, " has two traces"});
      for (const step_trace::event& e : traces[i].events)
        if (e.what == step_trace::kind::wait_for_last) repeats_ = 2;
      for (const rank_operation& o : traces[i].operations)
        if (o.kind == collective::send) sends_.insert(key_of(traces[i], o, 0));
      queue_.emplace(0, 0, i);
    }
    for (std::size_t i = 0; i < traces.size(); ++i)
      ranks_[i].operations.resize(repeats_ * traces[i].operations.size());
  }

  step_times run() {
    while (!queue_.empty()) {
      const std::size_t r = std::get<2>(queue_.top());
      queue_.pop();
      advance(r);
    }
    step_times t;
    double begin = 0, end = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < events(r)) refuse_cycle();
      begin = std::max(begin, ranks_[r].begin);
      end = std::max(end, ranks_[r].clock);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const auto steps = static_cast<double>(traces_[r].steps);
      rank_times of = ranks_[r].times;
      of.computing /= steps;
      of.waiting /= steps;
      of.end = (ranks_[r].clock - ranks_[r].begin) / steps;
      t.seconds = std::max(t.seconds, (end - begin) / steps);
      t.ranks.push_back(of);
    }
    return t;
  }

 private:
  using operation_key = std::tuple<std::string, int, int, int, std::int64_t, std::size_t>;
  /// When the links of a rank are free: within its machine, and to other machines.
  struct free_times {
    double out[2] = {}, in[2] = {};
  };
  struct simulated_rank {
    std::size_t next = 0;  // index of the next event, counted over all repetitions
    double clock = 0, begin = 0;
    rank_times times{};  // of the last repetition
    free_times free{};
    std::vector<joint_operation*> operations{};  // by repetition and number in the trace
  };

  std::size_t events(std::size_t r) const { return repeats_ * traces_[r].events.size(); }

  const rank_group& group_of(const step_trace& t, const rank_operation& o) const {
    return t.groups[static_cast<std::size_t>(o.group)];
  }
  /// Equal for all ranks of an operation and for both sides of a message.
  operation_key key_of(const step_trace& t, const rank_operation& o, std::size_t repetition) const {
    const std::string& group = group_of(t, o).key;
    if (!is_message(o.kind)) return {group, -1, -1, -1, o.number, repetition};
    const bool sends = o.kind == collective::send;
    return {group, sends ? t.rank : o.peer, sends ? o.peer : t.rank, o.tag, o.number, repetition};
  }

  /// Executes one event of a rank. The rank with the least clock is executed first, so that operations become
  /// ready in order of time; among several, the one that has executed the fewest events, so that equal ranks
  /// stay together.
  void advance(std::size_t r) {
    simulated_rank& rank = ranks_[r];
    const step_trace& trace = traces_[r];
    if (rank.next == events(r)) return;
    const std::size_t repetition = rank.next / trace.events.size();
    const step_trace::event e = trace.events[rank.next % trace.events.size()];
    if (rank.next == events(r) - trace.events.size()) {
      rank.times = {};
      rank.begin = rank.clock;
    }
    const bool is_earlier = e.what == step_trace::kind::wait_for_last;
    if (e.what == step_trace::kind::wait || (is_earlier && repetition > 0)) {
      joint_operation* const found =
          rank.operations[(repetition - is_earlier) * trace.operations.size() + e.index];
      if (!found)
        refuse<value_error>({"weft: planner: simulate: rank ", trace.rank, " waits for operation ", e.index,
                             ", which it has not begun"});
      if (found->end < 0) return found->waiting.push_back(r);
      rank.times.waiting += std::max(0.0, found->end - rank.clock);
      rank.clock = std::max(rank.clock, found->end);
    } else if (e.what == step_trace::kind::call) {
      const double seconds = seconds_of_call(trace.calls[e.index]);
      rank.times.computing += seconds;
      rank.clock += seconds;
    } else if (e.what == step_trace::kind::begin) {
      begin(r, e.index, repetition);
    }
    ++rank.next;
    enqueue(r);
  }

  double seconds_of_call(const device_call& c) const {
    const device_rates& d = cluster_.device;
    const double of_type = c.is_narrow ? d.narrow_products : d.products,
                 rate = c.is_attention && d.attention > 0 ? d.attention : of_type;
    const double copying = c.host_bytes > 0 && d.host > 0 ? c.host_bytes / d.host : 0;
    return d.launch + std::max({c.operations / rate, c.bytes / d.bytes, copying});
  }
  void enqueue(std::size_t r) { queue_.emplace(ranks_[r].clock, ranks_[r].next, r); }

  void begin(std::size_t r, std::size_t number, std::size_t repetition) {
    const step_trace& trace = traces_[r];
    const rank_operation& o = trace.operations[number];
    const operation_key key = key_of(trace, o, repetition);
    const auto [at, is_new] = operations_.try_emplace(key);
    joint_operation& joint = at->second;
    ranks_[r].operations[repetition * trace.operations.size() + number] = &joint;
    const bool receives = o.kind == collective::receive;
    // A message does not need its receiver to start. A message from a rank that is not simulated, or sent
    // before the step, is assumed to be sent now.
    if (receives && position_of_.count(o.peer) && sends_.count(key_of(trace, o, 0))) return;
    if (is_new && !is_message(o.kind))
      for (const int m : group_of(trace, o).members) joint.missing += static_cast<int>(position_of_.count(m));
    joint.ready = ranks_[r].clock;  // the greatest so far
    joint.bytes = std::max(joint.bytes, o.bytes);
    joint.begun.push_back(r);
    if (is_message(o.kind) || --joint.missing == 0) start(joint, trace, o);
  }

  void start(joint_operation& joint, const step_trace& trace, const rank_operation& o) {
    const rank_group& group = group_of(trace, o);
    const bool is_one = is_message(o.kind);
    const int pair[] = {std::min(trace.rank, o.peer), std::max(trace.rank, o.peer)};
    const std::span<const int> members = is_one ? std::span<const int>(pair) : group.members;
    const std::size_t lane = is_one_node(cluster_, members) ? 0 : 1;
    std::vector<double*> links;
    for (const std::size_t r : joint.begun) {
      if (o.kind != collective::receive) links.push_back(&ranks_[r].free.out[lane]);
      if (o.kind != collective::send) links.push_back(&ranks_[r].free.in[lane]);
    }
    if (const auto to = position_of_.find(o.peer); o.kind == collective::send && to != position_of_.end())
      links.push_back(&ranks_[to->second].free.in[lane]);
    double from = joint.ready;
    for (const double* free : links) from = std::max(from, *free);
    joint.end = from + seconds_of(cluster_, o.kind, joint.bytes, members);
    // The next message can start before this one has arrived.
    const double latency = is_one ? (lane ? cluster_.between : cluster_.within).latency : 0;
    for (double* free : links) *free = joint.end - latency;
    for (const std::size_t r : joint.waiting) enqueue(r);
    joint.waiting.clear();
  }

  [[noreturn]] void refuse_cycle() const {
    std::string text = "weft: planner: simulate: ranks wait for each other:";
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const step_trace& t = traces_[r];
      if (ranks_[r].next == events(r)) continue;
      const step_trace::event& e = t.events[ranks_[r].next % t.events.size()];
      text += "\n  rank " + std::to_string(t.rank) + " for " + t.operations[e.index].text;
    }
    throw comm_error(text);
  }

  const cluster cluster_;
  std::span<const step_trace> traces_;
  std::vector<simulated_rank> ranks_;
  std::map<int, std::size_t> position_of_;  // index of a rank's trace
  std::set<operation_key> sends_;           // of the traces
  std::map<operation_key, joint_operation> operations_;
  std::size_t repeats_ = 1;
  using entry = std::tuple<double, std::size_t, std::size_t>;  // clock, events, rank
  std::priority_queue<entry, std::vector<entry>, std::greater<>> queue_;
};

}  // namespace detail

WEFT_DEFINE step_times simulate(const cluster& c, std::span<const step_trace> traces) {
  return detail::step_simulator(checked(c), traces).run();
}

}  // namespace weft::planner
