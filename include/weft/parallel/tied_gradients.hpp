// SPDX-License-Identifier: MIT
// The gradients of parameters that several chunks of a pipeline read, such as an embedding that is also the
// head.
//
// Its first chunk owns such a parameter. Within a stage, the gradient of a micro-batch is handed from the
// last chunk to the first, so that the sum is reduced once. Between stages, every stage reduces its own
// gradients, and after the last micro-batch their sum is exchanged: two messages for each other stage. In
// deterministic mode the gradients of every micro-batch are handed to the owner in the order of the backward
// pass, as on one rank.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include <weft/parallel/data_parallel.hpp>
#include <weft/parallel/stage_messages.hpp>

namespace weft::parallel {

/// A parameter that several chunks read.
struct tied_parameter {
  std::string name;
  state_ptr whole;          // what the model holds
  std::vector<int> chunks;  // ascending
  std::vector<int> stages;  // distinct; the first one owns the parameter
};

/// Exchanges the gradients of tied parameters between the chunks and stages that hold them.
class tied_gradients {
 public:
  /// `first_tag`: messages have this tag and the next ones, one for each parameter. All stages must pass the
  /// same list.
  tied_gradients(std::vector<tied_parameter> all, std::vector<int> stage_of, communicator& stages,
                 int first_tag, bool deterministic)
      : all_(std::move(all)),
        stage_of_(std::move(stage_of)),
        stages_(&stages),
        first_tag_(first_tag),
        deterministic_(deterministic) {}
  tied_gradients(const tied_gradients&) = delete;
  tied_gradients& operator=(const tied_gradients&) = delete;
  ~tied_gradients() {
    for (const auto& s : sent_) s.second.finish();
  }

  /// Before the backward pass of a chunk: takes over the gradients from the chunk that reads a parameter
  /// next. Returns the parameters whose gradients must not be reduced by this pass.
  tensor_list before_backward(int chunk, int micro_batch, const comm_options& o) {
    tensor_list withheld;
    for (std::size_t t = 0; t < all_.size(); ++t) {
      const tied_parameter& p = all_[t];
      if (const int after = neighbor(p, chunk, 1); after >= 0)
        add(*p.whole, on_this_stage(after)
                          ? take(t, micro_batch)
                          : receive(t, stage(after), p.whole, handed(after, micro_batch, o)));
      if (neighbor(p, chunk, -1) >= 0) withheld.push_back(p.whole);
    }
    return withheld;
  }
  /// After it: hands gradients to the chunk that reads a parameter before this one.
  void after_backward(int chunk, int micro_batch, const comm_options& o) {
    for (std::size_t t = 0; t < all_.size(); ++t) {
      const tied_parameter& p = all_[t];
      const int before = neighbor(p, chunk, -1);
      if (before < 0) continue;
      state_ptr g = std::exchange(p.whole->grad, nullptr);
      if (on_this_stage(before)) handed_[{t, micro_batch}] = std::move(g);
      else send(t, stage(before), g, p.whole, handed(chunk, micro_batch, o));
    }
  }

  /// Sums the reduced gradients of the stages; `local`: the parameters that this rank updates, by name.
  void deliver(const state_dict_t& local, const comm_options& o) {
    std::vector<state_ptr> own;
    for (std::size_t t = 0; t < all_.size(); ++t) {
      own.push_back(nullptr);
      for (const auto& [name, p] : local)
        if (name == all_[t].name) own[t] = p;
      if (exchanges(t) && own[t] && !owns(t) && !deterministic_)
        send(t, all_[t].stages[0], own[t]->grad, own[t], o);
    }
    for (std::size_t t = 0; t < all_.size(); ++t)
      if (exchanges(t) && own[t] && owns(t)) collect(t, *own[t], o);
    for (std::size_t t = 0; t < all_.size(); ++t)
      if (exchanges(t) && own[t] && !owns(t)) own[t]->grad = receive(t, all_[t].stages[0], own[t], o);
    for (const auto& s : sent_) s.second.wait();
    sent_.clear();
  }

  /// The name of a parameter that several chunks read; empty if there is none.
  std::string first_name() const { return all_.empty() ? "" : all_[0].name; }

  /// Whether another stage owns the parameter whose rows `local` are.
  bool owned_elsewhere(const std::string& name) const {
    for (std::size_t t = 0; t < all_.size(); ++t)
      if (all_[t].name == name) return !owns(t);
    return false;
  }

 private:
  int stage(int chunk) const { return stage_of_[static_cast<std::size_t>(chunk)]; }
  bool on_this_stage(int chunk) const { return stage(chunk) == stages_->rank(); }
  bool owns(std::size_t t) const { return all_[t].stages[0] == stages_->rank(); }
  bool exchanges(std::size_t t) const { return all_[t].stages.size() > 1; }
  /// The chunk that reads the parameter next after `chunk` (`direction` 1) or before it (-1), and that
  /// exchanges the gradients of micro-batches with it; -1 if there is none.
  int neighbor(const tied_parameter& p, int chunk, int direction) const {
    const auto count = static_cast<std::ptrdiff_t>(p.chunks.size());
    const auto at = std::find(p.chunks.begin(), p.chunks.end(), chunk) - p.chunks.begin();
    if (at == count) return -1;
    for (auto i = at + direction; i >= 0 && i < count; i += direction)
      if (const int other = p.chunks[static_cast<std::size_t>(i)];
          deterministic_ || stage(other) == stage(chunk))
        return other;
    return -1;
  }

  /// Adds `g`, which may be null, to the gradient of a parameter.
  static void add(tensor_state& to, const state_ptr& g) {
    if (to.grad && g) run::add(*to.where, *to.grad, *g, *to.grad);
    else if (g) to.grad = g;
  }
  state_ptr take(std::size_t t, int micro_batch) {
    const auto found = handed_.find({t, micro_batch});
    if (found == handed_.end()) return nullptr;
    state_ptr g = std::move(found->second);
    handed_.erase(found);
    return g;
  }
  /// With the label of the gradient of a micro-batch.
  static comm_options handed(int chunk, int micro_batch, comm_options o) {
    o.label = " from chunk " + std::to_string(chunk) + ", micro-batch " + std::to_string(micro_batch);
    return o;
  }
  comm_options labelled(std::size_t t, comm_options o) const {
    o.label = "gradient of " + all_[t].name + o.label;
    return o;
  }
  /// Sends a gradient, zeros if there is none, of the shape of `like`.
  void send(std::size_t t, int to, state_ptr g, const state_ptr& like, const comm_options& o) {
    if (!g) g = zeros_like(*like);
    const state_ptr message = reachable(message_device(g->where), g);
    sent_.emplace_back(message, work());
    sent_.back().second =
        stages_->send(elements_of(*message), to, first_tag_ + static_cast<int>(t), labelled(t, o));
  }
  state_ptr receive(std::size_t t, int from, const state_ptr& like, const comm_options& o) {
    const device messages = message_device(like->where);
    const state_ptr message = make_state(messages, like->extents, like->type);
    stages_->receive(elements_of(*message), from, first_tag_ + static_cast<int>(t), labelled(t, o)).wait();
    if (messages == like->where) return message;
    const state_ptr value = make_state(like->where, like->extents, like->type);
    copy_rows(value, 0, message, 0, value->extents.size());
    return value;
  }
  /// Adds what the other stages have sent, and sends them the sum.
  void collect(std::size_t t, tensor_state& own, const comm_options& o) {
    const auto like = alias_of(own);
    for (std::size_t s = all_[t].stages.size(); !deterministic_ && s-- > 1;)
      add(own, receive(t, all_[t].stages[s], like, o));
    for (std::size_t s = 1; s < all_[t].stages.size(); ++s) send(t, all_[t].stages[s], own.grad, like, o);
  }

  std::vector<tied_parameter> all_;
  std::vector<int> stage_of_;
  communicator* stages_;
  int first_tag_;
  bool deterministic_;
  std::map<std::pair<std::size_t, int>, state_ptr> handed_;  // by parameter and micro-batch
  std::deque<std::pair<state_ptr, work>> sent_;
};

}  // namespace weft::parallel
