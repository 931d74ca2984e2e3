// SPDX-License-Identifier: MIT
// A plain executor of pipeline schedules: ranks with lists, memories and blocking messages. It shares only
// the types with the code that it checks.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/parallel/schedule/schedule.hpp>

namespace weft::test {

/// How messages are sent: a send waits until the peer is at a receive; or it leaves its message and goes on;
/// or lists hold no messages, and results appear where they are read.
enum class transport { blocking, buffered, implied };

/// Ranks that execute their lists one entry at a time, as far as possible.
class pipeline_ranks {
 public:
  /// `tied`: the chunks that read one parameter, ascending; each passes the gradients of a micro-batch to the
  /// previous one, and goes on.
  pipeline_ranks(const pipeline::schedule& s, transport how, std::vector<int> tied = {})
      : s_(s),
        transport_(how),
        size_(s.stage_of.size() * std::size_t(s.micro_batches)),
        tied_(std::move(tied)) {
    for (auto* t : {&input_, &output_, &seed_, &input_gradient_, &forward_, &backward_, &weight_})
      t->assign(size_, false);
    next_.assign(s.steps.size(), 0);
  }

  /// Whether all lists reach their ends with every step done.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank)
        while (!failed_ && next_[rank] < s_.steps[rank].size() && move(rank)) moved = true;
      if (failed_) return false;
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] != s_.steps[rank].size()) return false;
    for (const auto& [from_to, messages] : wire_)
      if (!messages.empty()) return false;
    for (std::size_t i = 0; i < size_; ++i)
      if (!forward_[i] || !backward_[i] || !weight_[i]) return false;
    return true;
  }

 private:
  using table = std::vector<bool>;
  using step = pipeline::step;
  using kind = pipeline::step_kind;
  struct message {
    int chunk_before, micro_batch;
    std::int64_t size;
    bool operator==(const message&) const = default;
  };
  using channel = std::tuple<std::size_t, std::size_t, bool>;  // from, to, whether it carries gradients

  std::size_t index(int chunk, int j) const {
    return std::size_t(chunk) * std::size_t(s_.micro_batches) + std::size_t(j);
  }
  int last() const { return int(s_.stage_of.size()) - 1; }
  bool holds(std::size_t rank, int chunk) const {
    return chunk >= 0 && chunk <= last() && std::size_t(s_.stage_of[std::size_t(chunk)]) == rank;
  }
  bool fail() {
    failed_ = true;
    return false;
  }

  /// Executes one entry; false if the rank must wait, or the program is wrong.
  bool move(std::size_t rank) {
    const step& e = s_.steps[rank][next_[rank]];
    if (!holds(rank, e.chunk) || e.micro_batch < 0 || e.micro_batch >= s_.micro_batches) return fail();
    const std::size_t i = index(e.chunk, e.micro_batch);
    switch (e.kind) {
      case kind::forward: return compute_forward(rank, e, i);
      case kind::backward: return compute_backward(rank, e, i, true);
      case kind::backward_input: return compute_backward(rank, e, i, false);
      case kind::backward_weight:
        if (!backward_[i] || weight_[i]) return fail();
        if (!hand_over(rank, e)) return false;
        weight_[i] = true;
        ++next_[rank];
        return true;
      default: return exchange(rank, e, i);
    }
  }
  /// A missing result may still come from another rank if messages are implied.
  bool not_there(std::size_t rank, int from) {
    return transport_ == transport::implied && !holds(rank, from) ? false : fail();
  }
  bool compute_forward(std::size_t rank, const step& e, std::size_t i) {
    if (forward_[i]) return fail();
    if (e.chunk > 0 && !input_[i]) return not_there(rank, e.chunk - 1);
    forward_[i] = output_[i] = true;
    if (e.chunk < last() && (holds(rank, e.chunk + 1) || transport_ == transport::implied))
      input_[index(e.chunk + 1, e.micro_batch)] = true;
    ++next_[rank];
    return true;
  }
  bool compute_backward(std::size_t rank, const step& e, std::size_t i, bool whole) {
    if (!forward_[i] || backward_[i] || (whole && weight_[i])) return fail();
    if (e.chunk < last() && !seed_[i]) return not_there(rank, e.chunk + 1);
    if (whole && !hand_over(rank, e)) return false;
    backward_[i] = input_gradient_[i] = true;
    if (whole) weight_[i] = true;
    if (e.chunk > 0 && (holds(rank, e.chunk - 1) || transport_ == transport::implied))
      seed_[index(e.chunk - 1, e.micro_batch)] = true;
    ++next_[rank];
    return true;
  }

  /// Takes the gradient of the next chunk that reads the parameter, and leaves its own for the previous one.
  bool hand_over(std::size_t rank, const step& e) {
    const auto place = std::find(tied_.begin(), tied_.end(), e.chunk);
    if (place == tied_.end()) return true;
    const auto stage = [&](int chunk) { return std::size_t(s_.stage_of[std::size_t(chunk)]); };
    if (place + 1 != tied_.end()) {
      auto& waiting = handed_[{stage(place[1]), rank}];
      const std::pair wanted(place[1], e.micro_batch);
      const auto found = stage(place[1]) == rank ? std::find(waiting.begin(), waiting.end(), wanted)
                                                 : waiting.begin();  // a message: the first one
      if (found == waiting.end()) return false;
      if (*found != wanted) return fail();
      waiting.erase(found);
    }
    if (place != tied_.begin()) handed_[{rank, stage(place[-1])}].push_back({e.chunk, e.micro_batch});
    return true;
  }

  bool exchange(std::size_t rank, const step& e, std::size_t i) {
    const bool gradient = e.kind == kind::send_gradient || e.kind == kind::receive_gradient;
    const bool sends = e.kind == kind::send_activation || e.kind == kind::send_gradient;
    const int other = sends == gradient ? e.chunk - 1 : e.chunk + 1;
    if (other < 0 || other > last() || holds(rank, other)) return fail();
    if (sends && !(gradient ? input_gradient_ : output_)[i]) return fail();
    const auto peer = std::size_t(s_.stage_of[std::size_t(other)]);
    const message m{std::min(e.chunk, other), e.micro_batch, e.size};
    if (!tied_.empty() && sends && gradient && !may_send(rank, e, peer)) return false;
    if (transport_ == transport::buffered)
      return sends ? post(rank, peer, gradient, m) : collect(rank, peer, gradient, m, i);
    return sends ? meet(rank, peer, gradient, m) : false;  // the sender moves both
  }
  /// With a tied parameter: whether nothing more is computed before the receive of the gradient that the rank
  /// has sent before.
  bool may_send(std::size_t rank, const step& e, std::size_t peer) {
    if (const auto before = sent_.find(rank); before != sent_.end()) {
      const auto [to, chunk, j] = before->second;
      for (std::size_t k = next_[to] + 1; k < s_.steps[to].size(); ++k) {
        const step& other = s_.steps[to][k];
        if (other.kind == kind::receive_gradient && other.chunk == chunk && other.micro_batch == j) break;
        const bool computes = other.kind == kind::forward || other.kind == kind::backward ||
                              other.kind == kind::backward_input || other.kind == kind::backward_weight;
        const bool comes =
            std::any_of(s_.steps[to].begin() + std::ptrdiff_t(k), s_.steps[to].end(),
                        [&, chunk = chunk, j = j](const step& r) {
                          return r.kind == kind::receive_gradient && r.chunk == chunk && r.micro_batch == j;
                        });
        if (computes && comes) return false;
      }
    }
    sent_[rank] = {peer, e.chunk - 1, e.micro_batch};
    return true;
  }
  bool post(std::size_t rank, std::size_t peer, bool gradient, const message& m) {
    wire_[{rank, peer, gradient}].push_back(m);
    ++next_[rank];
    return true;
  }
  bool collect(std::size_t rank, std::size_t peer, bool gradient, const message& m, std::size_t i) {
    auto& messages = wire_[{peer, rank, gradient}];
    if (messages.empty()) return false;
    if (!(messages.front() == m)) return fail();
    messages.pop_front();
    (gradient ? seed_ : input_)[i] = true;
    ++next_[rank];
    return true;
  }
  bool meet(std::size_t rank, std::size_t peer, bool gradient, const message& m) {
    if (next_[peer] >= s_.steps[peer].size()) return false;
    const step& r = s_.steps[peer][next_[peer]];
    if (r.kind != (gradient ? kind::receive_gradient : kind::receive_activation)) return false;
    const int from = gradient ? r.chunk + 1 : r.chunk - 1;
    if (!holds(rank, from)) return false;
    if (!holds(peer, r.chunk) || r.micro_batch < 0 || r.micro_batch >= s_.micro_batches) return fail();
    if (!(message{std::min(r.chunk, from), r.micro_batch, r.size} == m)) return fail();
    (gradient ? seed_ : input_)[index(r.chunk, r.micro_batch)] = true;
    ++next_[rank];
    ++next_[peer];
    return true;
  }

  const pipeline::schedule& s_;
  transport transport_;
  std::size_t size_;
  table input_, output_, seed_, input_gradient_, forward_, backward_, weight_;  // by chunk and micro-batch
  std::vector<std::size_t> next_;                                               // by rank
  std::map<channel, std::deque<message>> wire_{};
  std::vector<int> tied_;
  std::map<std::size_t, std::tuple<std::size_t, int, int>> sent_{};  // by rank: receiver, chunk, micro-batch
  std::map<std::pair<std::size_t, std::size_t>, std::deque<std::pair<int, int>>> handed_{};  // chunk, number
  bool failed_ = false;
};

inline bool runs(const pipeline::schedule& s, transport t, std::vector<int> tied = {}) {
  return pipeline_ranks(s, t, std::move(tied)).run();
}

}  // namespace weft::test
