// SPDX-License-Identifier: MIT
// Definitions of <weft/planner/trace.hpp>.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <weft/base/config.hpp>
#include <weft/device/counting.hpp>
#include <weft/planner/trace.hpp>
#include <weft/run/step_text.hpp>

namespace weft::planner {
namespace detail {

/// What a rank has done so far in the traced step, and the operations of the previous step that this one
/// waits for.
struct recording {
  bool is_on = false, is_done = false;
  step_trace trace{};
  /// Operations of one kind and group by number, with the index in the trace at which they begin or are
  /// waited for.
  using numbered = std::map<std::int64_t, std::size_t>;
  std::map<std::string, numbered> unfinished{}, earlier{};

  void call(const device_call& c) {
    if (!is_on) return;
    trace.events.push_back({step_trace::kind::call, trace.calls.size()});
    trace.calls.push_back(c);
  }
  /// Matches the operations begun in the previous step with those that this step begins and does not wait
  /// for, if their numbers are equal; otherwise they cannot be matched.
  void match_earlier() {
    std::vector<std::size_t> unknown;
    for (const auto& [key, waits] : earlier) {
      const numbered& begun = unfinished[key];
      auto b = begun.begin();
      for (const auto& [number, event] : waits)
        if (begun.size() == waits.size()) trace.events[event].index = (b++)->second;
        else unknown.push_back(event);
    }
    std::sort(unknown.begin(), unknown.end(), std::greater<>());
    for (const std::size_t event : unknown)
      trace.events.erase(trace.events.begin() + static_cast<std::ptrdiff_t>(event));
  }
};

class tracing_backend final : public counting_backend {
 public:
  tracing_backend(std::shared_ptr<recording> r, bool holds_messages)
      : counting_backend(holds_messages), recording_(std::move(r)) {}

  void launch(const kernel_call& call) override {
    recording_->call({.bytes = static_cast<double>(runtime::bytes_of_kernel(call))});
  }
  void launch_together(std::span<const kernel_call* const> calls) override {
    device_call all;
    for (const kernel_call* c : calls) all.bytes += static_cast<double>(runtime::bytes_of_kernel(*c));
    recording_->call(all);
  }
  void multiply(const native_code&, const strided& a, const strided& b, const strided& c) override {
    const strided operands[] = {a, b, c};
    recording_->call({.operations = runtime::operations_of_product(operands),
                      .bytes = bytes_of(operands) + (c.adds ? bytes_of({&c, 1}) : 0),
                      .is_narrow = is_narrow(a.type)});
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    recording_->call({.host_bytes = static_cast<double>(bytes)});
    counting_backend::upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    recording_->call({.host_bytes = static_cast<double>(bytes)});
    counting_backend::download(to, from, bytes);
  }
  void copy(const strided& from, const strided& to) override {
    const strided both[] = {from, to};
    recording_->call({.bytes = bytes_of(both)});
  }
  void copy_together(std::span<const strided> from, std::span<const strided> to) override {
    recording_->call({.bytes = bytes_of(from) + bytes_of(to)});
  }
  void fill_zero(void*, std::size_t bytes) override {
    recording_->call({.bytes = static_cast<double>(bytes)});
  }
  void call_native(const char*, const native_code& code, const native_operands& o) override {
    const bool is_attention = code.op == native_op::attention || code.op == native_op::attention_backward;
    const double executed = is_attention && o.at[0] != 0 ? 0.5 : 1;  // causal: half of the pairs are computed
    recording_->call({.operations = executed * runtime::operations_of_native(code, o.in, o.out),
                      .bytes = bytes_of(o.in) + bytes_of(o.out),
                      .is_narrow = !o.in.empty() && is_narrow(o.in[0].type),
                      .is_attention = is_attention});
  }

 private:
  static double bytes_of(std::span<const strided> tensors) {
    return static_cast<double>(runtime::bytes_of_tensors(tensors));
  }
  std::shared_ptr<recording> recording_;
};

/// Rank `members[rank]` of a group; operations are traced, and no data moves.
class tracing_communicator final : public communicator {
 public:
  tracing_communicator(std::shared_ptr<recording> r, const backend* reaches, int rank, rank_group group)
      : recording_(std::move(r)), reaches_(reaches), rank_(rank), group_(std::move(group)) {}

  const char* name() const override { return "nowhere"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.members.size()); }
  const backend* reaches() const override { return reaches_; }

  std::shared_ptr<communicator> divide(int, int, comm_options) override {
    throw comm_error("weft: planner: the values of other ranks are not known; use split_by");
  }
  std::shared_ptr<communicator> divide_by(const std::function<int(int rank)>& color, comm_options) override {
    rank_group part;
    int rank = 0;
    for (int r = 0; r < size(); ++r) {
      if (color(r) != color(rank_)) continue;
      rank += r < rank_;
      part.members.push_back(member(r));
    }
    part.key = group_.key + "/" + std::to_string(splits_++) + ":" + std::to_string(part.members[0]);
    return std::make_shared<tracing_communicator>(recording_, reaches_, rank, std::move(part));
  }
  void abort(const std::string&) override {}

 protected:
  work start(operation o) override {
    const std::int64_t number = is_message(o.kind) ? messages_[{o.kind, o.root, o.tag}]++ : collectives_++;
    std::string key = group_.key + " " + std::to_string(static_cast<int>(o.kind));
    if (is_message(o.kind)) key += " " + std::to_string(o.root) + " " + std::to_string(o.tag);
    const auto begun = std::make_shared<late>(recording_, std::move(key), number);
    if (!recording_->is_on) return work(begun);
    step_trace& t = recording_->trace;
    begun->at = recording_->unfinished[begun->key][number] = t.operations.size();
    t.events.push_back({step_trace::kind::begin, t.operations.size()});
    t.operations.push_back({.kind = o.kind,
                            .group = number_of_group(t),
                            .bytes = bytes_of(o),
                            .sent = sent_by(o, rank_, size()) * size_of(o.type()),
                            .peer = is_message(o.kind) ? member(o.root) : 0,
                            .tag = o.tag,
                            .number = number,
                            .text = o.text()});
    return work(begun);
  }

 private:
  /// Completed only when it is waited for, so that memory is held as long as possible.
  struct late final : work::state {
    late(std::shared_ptr<recording> r, std::string k, std::int64_t n)
        : to(std::move(r)), key(std::move(k)), number(n) {}
    bool poll() override { return over; }
    void wait(std::chrono::milliseconds) override {
      if (std::exchange(over, true) || !to->is_on) return;
      if (at) to->unfinished[key].erase(number);
      else to->earlier[key][number] = to->trace.events.size();
      to->trace.events.push_back(
          {at ? step_trace::kind::wait : step_trace::kind::wait_for_last, at.value_or(0)});
    }
    std::exception_ptr failure() const override { return nullptr; }

    std::shared_ptr<recording> to;
    std::string key;
    std::int64_t number;
    std::optional<std::size_t> at{};  // index in the trace; nullopt for the previous step
    bool over = false;
  };

  int member(int rank) const { return group_.members[static_cast<std::size_t>(rank)]; }
  int number_of_group(step_trace& t) const {
    std::size_t i = 0;
    while (i < t.groups.size() && t.groups[i].key != group_.key) ++i;
    if (i == t.groups.size()) t.groups.push_back(group_);
    return static_cast<int>(i);
  }
  /// The `bytes` of seconds_of.
  double bytes_of(const operation& o) const {
    const auto own = static_cast<std::size_t>(rank_);
    index_t n = std::max(o.in.count, o.out.count);
    if (o.kind == collective::all_to_all)
      n = std::max(o.in.count - o.in_counts[own], o.out.count - o.out_counts[own]);
    else if (o.kind == collective::gather) n = operation::sum_of(o.out_counts);
    else if (o.kind == collective::scatter) n = operation::sum_of(o.in_counts);
    return static_cast<double>(n * size_of(o.type()));
  }

  std::shared_ptr<recording> recording_;
  const backend* reaches_;
  int rank_;
  rank_group group_;
  std::int64_t collectives_ = 0;
  int splits_ = 0;
  std::map<std::tuple<collective, int, int>, std::int64_t> messages_;  // by kind, peer and tag
};

}  // namespace detail

WEFT_DEFINE traced_rank::traced_rank(const cluster& c, int rank)
    : recording_(std::make_shared<detail::recording>()),
      where_(std::make_shared<detail::tracing_backend>(recording_, !c.device.is_gpu)),
      host_(std::make_shared<counting_backend>()) {
  if (rank < 0 || rank >= checked(c).ranks)
    refuse<value_error>({"weft: planner: there is no rank ", rank, " among ", c.ranks});
  rank_group world{"world", std::vector<int>(static_cast<std::size_t>(c.ranks))};
  std::iota(world.members.begin(), world.members.end(), 0);
  recording_->trace.rank = rank;
  ranks_ = std::make_shared<detail::tracing_communicator>(recording_, c.device.is_gpu ? &*where_ : nullptr,
                                                          rank, std::move(world));
}

WEFT_DEFINE const step_trace& traced_rank::trace() const {
  if (!recording_->is_done) throw usage_error("weft: planner: the job has traced no step: call rank.step");
  return recording_->trace;
}
WEFT_DEFINE void traced_rank::begin(index_t steps) {
  if (steps < 1) refuse<value_error>({"weft: planner: ", steps, " steps to trace: expected 1 or more"});
  recording_->trace = {.rank = rank(), .steps = steps};
  recording_->unfinished.clear();
  recording_->earlier.clear();
  recording_->is_on = true;
}
WEFT_DEFINE void traced_rank::end() {
  recording_->is_on = false;
  recording_->is_done = true;
  recording_->match_earlier();
  recording_->trace.peak_bytes = where_.memory().figures().peak;
}

}  // namespace weft::planner
