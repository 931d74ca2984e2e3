// SPDX-License-Identifier: MIT
// The gradients of tied parameters, which several chunks of a pipeline read, such as an embedding that is
// also the head.
//
// The first chunk that reads such a parameter owns it. Within a stage, the gradient of a micro-batch is
// handed from the last chunk to the first, so that the sum is reduced once. Between stages, every stage
// reduces its own gradients, and after the last micro-batch the sum over stages is exchanged: two messages
// for each stage other than the owner. In deterministic mode the gradients of every micro-batch are handed to
// the owner in the order of the backward pass, as on one rank. A message before each gradient says whether
// there is one; a parameter without a gradient on any stage does not change.
//
// A schedule without a flush hands gradients over in both modes, and the owner sends the sum of each
// micro-batch to the other stages. All chunks read the version of a tied parameter that the first chunk reads
// in its forward step of the micro-batch; the message for that version is sent before, so stages do not wait
// in a cycle.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include <weft/parallel/data_parallel.hpp>
#include <weft/parallel/schedule/handing.hpp>
#include <weft/parallel/stage_messages.hpp>

namespace weft::parallel {

/// A parameter that several chunks read.
struct tied_parameter {
  std::string name;
  state_ptr whole;          // the parameter of the model
  std::vector<int> chunks;  // ascending
  std::vector<int> stages;  // distinct; the first one owns the parameter
};

/// Exchanges the gradients of tied parameters between the chunks and stages that hold them.
class tied_gradients {
 public:
  /// `where`: the device that computes gradients. `first_tag`: messages have this tag and the next ones, one
  /// for each parameter. All stages must pass the same list.
  tied_gradients(std::vector<tied_parameter> all, std::vector<int> stage_of, communicator& stages,
                 const device& where, int first_tag, bool deterministic);
  tied_gradients(const tied_gradients&) = delete;
  tied_gradients& operator=(const tied_gradients&) = delete;
  ~tied_gradients() {
    for (const sent& s : sent_) s.in_flight.finish();
  }

  /// Throws usage_error if, under schedule `s`, which must have messages, the chunks that hand over gradients
  /// would wait in a cycle or receive the wrong gradients.
  [[gnu::cold]] void check(const pipeline::schedule& s) const;

  /// Must be called before the first backward pass of a step.
  void begin_step(const pipeline::schedule& s);

  /// Parameters whose gradients a backward pass must not reduce, and parameters whose gradients it completes,
  /// even if it computes none itself.
  struct taken_over {
    tensor_list withheld, found;
  };
  /// Before the backward pass of a chunk: takes over the gradients from the chunk that reads a parameter
  /// next.
  taken_over before_backward(int chunk, int micro_batch, const comm_options& o);
  /// After the backward pass of a chunk: hands gradients to the chunk that reads a parameter before this one.
  void after_backward(int chunk, int micro_batch, const comm_options& o);

  /// Without a flush, after the gradients of a micro-batch have been reduced on this stage: sends the
  /// gradients of the parameters that it owns. `local`: the parameters that this rank updates, by name.
  void share(const state_dict_t& local, const comm_options& o);
  /// Without a flush, before the forward step of a micro-batch, or after the last one: receives the gradient
  /// sums of the updates that the parameters' first chunks had executed by then, and calls update(n) after
  /// each, where n is the number of updates before it.
  template <class F>
  void follow(int micro_batch, const state_dict_t& local, const comm_options& o, F update) {
    for (std::size_t t = 0; t < all_.size(); ++t) {
      const state_ptr own = rows(t, local);
      if (!exchanges(t) || !own || owns(t)) continue;
      for (int& n = sums_[t]; n < of_forward(t, micro_batch); ++n) {
        own->grad = receive(t, all_[t].stages[0], *own, o);
        drop(t, n + 1);
        if (own->grad) update(n);
      }
    }
  }

  /// Sums the reduced gradients of the stages, once after the last micro-batch of a step.
  void deliver(const state_dict_t& local, const comm_options& o);
  /// Waits until everything has been sent.
  void complete() {
    for (std::size_t t = 0; t < all_.size(); ++t) drop(t, std::numeric_limits<int>::max());
  }

  /// Whether another stage owns the parameter.
  bool owned_elsewhere(const std::string& name) const;

 private:
  struct sent {
    std::size_t parameter;
    int number;  // number among the gradients of a parameter that are sent in a step
    state_ptr message;
    work in_flight;
  };

  /// A gradient handed from one chunk of this stage to another.
  struct handed_gradient {
    std::size_t parameter;
    int micro_batch;
    state_ptr gradient;
  };

  int stage(int chunk) const { return stage_of_[static_cast<std::size_t>(chunk)]; }
  bool on_this_stage(int chunk) const { return stage(chunk) == stages_->rank(); }
  bool owns(std::size_t t) const { return all_[t].stages[0] == stages_->rank(); }
  bool exchanges(std::size_t t) const { return all_[t].stages.size() > 1; }
  /// The rows of a parameter that this rank updates; null if it has none.
  state_ptr rows(std::size_t t, const state_dict_t& local) const {
    for (const auto& [name, p] : local)
      if (name == all_[t].name) return p;
    return nullptr;
  }
  /// The number of updates of a chunk before its forward step of each micro-batch, and, last, of all its
  /// updates.
  static std::vector<int> updates_before(const pipeline::schedule& s, int chunk);
  int of_forward(std::size_t t, int micro_batch) const {
    return updates_before_[t][static_cast<std::size_t>(micro_batch)];
  }

  /// The chunk that reads the parameter next after `chunk` (`direction` 1) or before it (-1), and that
  /// exchanges the gradients of micro-batches with it, on other stages if `each`; -1 if there is none.
  int neighbor(const tied_parameter& p, int chunk, int direction, bool each) const;

  /// Adds `g`, which may be null, to the gradient of a parameter.
  static void add(tensor_state& to, const state_ptr& g) {
    if (to.grad && g) runtime::add(*to.grad->where, *to.grad, *g, *to.grad);
    else if (g) to.grad = g;
  }
  state_ptr take(std::size_t t, int micro_batch);
  /// `o` with the label of the gradient of a micro-batch.
  static comm_options handed(int chunk, int micro_batch, comm_options o);
  comm_options labelled(std::size_t t, comm_options o) const {
    o.label = weft::detail::joined({"gradient of ", all_[t].name, o.label});
    return o;
  }
  static comm_options as_control(comm_options o) {
    o.control = true;
    return o;
  }
  int tag(std::size_t t) const { return first_tag_ + static_cast<int>(t); }
  /// Sends a gradient; if null, a message that there is none.
  void send(std::size_t t, int to, const state_ptr& g, comm_options o);
  /// Waits until the sent messages of a parameter with numbers below `number` have arrived, and frees them.
  void drop(std::size_t t, int number);
  /// Receives a gradient of the shape of `like`; null if there is none.
  state_ptr receive(std::size_t t, int from, const tensor_state& like, comm_options o);
  /// Adds the gradients that the other stages have sent, and sends them the sum.
  void collect(std::size_t t, tensor_state& own, const comm_options& o);

  std::vector<tied_parameter> all_;
  std::vector<int> stage_of_;
  communicator* stages_;
  device where_, messages_;
  int first_tag_;
  bool deterministic_;
  std::vector<handed_gradient> handed_;
  bool delivered_ = false;                        // deliver() has been called in this step
  bool hands_each_ = false;                       // gradients of each micro-batch go to other stages
  std::vector<std::vector<int>> updates_before_;  // by parameter, without a flush; see of_forward
  std::vector<int> sums_, handed_over_;           // number of messages in this step, by parameter
  std::vector<sent> sent_;                        // messages of a parameter in the order of their numbers
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/tied_gradients.ipp>
#endif
