// SPDX-License-Identifier: MIT
// Simulates a schedule: when each step starts and ends, and how long stages are idle.
//
//   auto r = pipeline::simulate(pipeline::one_f_one_b(4, 16), {.forward = 1, .input = 1, .weight = 1});
//   r.bubble();       // (4 - 1) (1 + 2)
#pragma once

#include <algorithm>

#include <weft/parallel/schedule/check.hpp>

namespace weft::pipeline {

/// The duration of the steps of one chunk and of a message, in any unit. An undivided backward step takes
/// input + weight. Messages overlap with computation and do not slow each other down.
struct costs {
  double forward = 1, input = 1, weight = 1, send = 0;
  constexpr double of(step_kind k) const {
    switch (k) {
      case step_kind::forward: return forward;
      case step_kind::backward: return input + weight;
      case step_kind::backward_input: return input;
      case step_kind::backward_weight: return weight;
      default: return send;
    }
  }
};

/// A step with its times, simulated or measured. A message has two records: a send of its source and a
/// receive of its destination.
struct record {
  int stage = 0;
  step_kind kind{};
  int chunk = 0;
  int micro_batch = 0;
  double start = 0, end = 0;
  friend constexpr bool operator==(const record&, const record&) = default;
};

/// The result of a simulation. Without steps, all times are 0.
struct timing {
  struct stage_times {
    double busy = 0;              // time spent computing
    double first = 0, last = 0;   // start of the first step, end of the last
    constexpr double span() const { return last - first; }
  };
  std::vector<record> records{};  // the computations of each stage are in the order of their start
  std::vector<stage_times> stages{};
  double makespan = 0;

  /// The time during which a stage does not compute.
  constexpr double idle(int stage) const { return makespan - detail::at(stages, stage).busy; }
  /// The bubble as defined in the literature: the maximum over stages of the time from the first start to the
  /// last end, minus the time spent computing. Equals the idle time of a stage that is active from beginning
  /// to end, such as stage 0 in most schedules.
  constexpr double bubble() const {
    double most = 0;
    for (const stage_times& t : stages) most = std::max(most, t.span() - t.busy);
    return most;
  }
  /// Idle time of all stages divided by (makespan * stages).
  constexpr double bubble_fraction() const {
    double busy = 0;
    for (const stage_times& t : stages) busy += t.busy;
    return makespan > 0 ? 1 - busy / (makespan * static_cast<double>(stages.size())) : 0;
  }
};

namespace detail {
class simulator {
 public:
  constexpr simulator(const schedule& s, const costs& c)
      : s_(s),
        costs_(c),
        next_(s.steps.size(), 0),
        activation_(cells(s), unknown),
        gradient_(cells(s), unknown) {
    out_.stages.assign(s.steps.size(), {.busy = 0, .first = unknown, .last = 0});
  }

  constexpr timing run() {
    std::vector<int> ready;
    for (int stage = s_.stages() - 1; stage >= 0; --stage) ready.push_back(stage);
    while (!ready.empty()) {
      const int stage = ready.back();
      ready.pop_back();
      advance(stage, ready);
    }
    for (auto& t : out_.stages) {
      out_.makespan = std::max(out_.makespan, t.last);
      if (t.first == unknown) t.first = 0;
    }
    return std::move(out_);
  }

 private:
  static constexpr double unknown = -1;

  constexpr void advance(int stage, std::vector<int>& ready) {
    const auto& list = at(s_.steps, stage);
    for (int& next = at(next_, stage); next < static_cast<int>(list.size()); ++next) {
      const step& e = at(list, next);
      if (is_message(e.kind)) continue;  // messages are generated from the steps
      const double input = input_time(e);
      if (input == unknown) return;
      execute(stage, e, input, ready);
    }
  }
  /// When the input of a step is available on its stage.
  constexpr double input_time(const step& e) const {
    const std::size_t i = cell(s_, e.chunk, e.micro_batch);
    if (e.kind == step_kind::forward) return e.chunk == 0 ? 0 : activation_[i];
    return !yields_gradient(e.kind) || e.chunk == s_.chunks() - 1 ? 0 : gradient_[i];
  }
  constexpr void execute(int stage, const step& e, double input, std::vector<int>& ready) {
    auto& t = at(out_.stages, stage);
    const double start = std::max(t.last, input), cost = costs_.of(e.kind);
    if (t.first == unknown) t.first = start;
    t.last = start + cost;
    t.busy += cost;
    out_.records.push_back({stage, e.kind, e.chunk, e.micro_batch, start, t.last});
    if (e.kind != step_kind::backward_weight) deliver(e, t.last, ready);
  }
  constexpr void deliver(const step& e, double time, std::vector<int>& ready) {
    const bool up = e.kind == step_kind::forward;
    const int to = up ? e.chunk + 1 : e.chunk - 1;
    if (to < 0 || to >= s_.chunks()) return;
    const bool travels = crosses(s_, e.chunk, to);
    const int from_stage = at(s_.stage_of, e.chunk), to_stage = at(s_.stage_of, to);
    const double arrival = time + (travels ? costs_.send : 0);
    (up ? activation_ : gradient_)[cell(s_, to, e.micro_batch)] = arrival;
    if (!travels) return;
    out_.records.push_back({from_stage, up ? step_kind::send_activation : step_kind::send_gradient, e.chunk,
                            e.micro_batch, time, arrival});
    out_.records.push_back({to_stage, up ? step_kind::receive_activation : step_kind::receive_gradient, to,
                            e.micro_batch, time, arrival});
    ready.push_back(to_stage);
  }

  const schedule& s_;
  const costs& costs_;
  std::vector<int> next_;                     // by stage
  std::vector<double> activation_, gradient_; // by chunk and micro-batch: when the chunk can read it
  timing out_{};
};
}  // namespace detail

/// Executes every step as soon as its stage is free and its input has arrived. Messages start when their data
/// is computed, regardless of their position in the schedule. Throws value_error if a cost is negative or,
/// with the finding, if the schedule does not pass `check`. Cost: linear in the number of steps.
constexpr timing simulate(const schedule& s, const costs& c = {}) {
  for (const double cost : {c.forward, c.input, c.weight, c.send})
    if (!(cost >= 0)) throw value_error("simulate: a cost is negative or not a number");
  if (const auto f = check(s)) throw value_error("simulate: " + to_text(*f));
  return detail::simulator(s, c).run();
}

}  // namespace weft::pipeline
