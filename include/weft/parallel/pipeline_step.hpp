// SPDX-License-Identifier: MIT
// One training step of a stage: executes the stage's list of a schedule.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/stage_messages.hpp>
#include <weft/parallel/step_statements.hpp>
#include <weft/parallel/weight_versions.hpp>

namespace weft {
class pipeline_context;
}

namespace weft::parallel {

/// The steps of one stage for the micro-batches of one training step.
class pipeline_step {
 public:
  /// All objects must outlive the step.
  pipeline_step(pipeline_context& run, step_statements& statements, const pipeline::schedule& s);

  /// Executes the list. `losses`: by number of the micro-batch among those of all ranks; set on the stage
  /// that computes them.
  void execute(std::span<double> losses);

  /// The step that execute() is at, for example "forward of chunk 3, micro-batch 0".
  std::string position() const { return at_ ? pipeline::to_text(*at_) : "loss of micro-batch 0"; }

  /// When this stage executed each step, in seconds since the training step began; see
  /// pipeline_context::records.
  const std::vector<pipeline::record>& records() const { return records_; }
  std::chrono::steady_clock::time_point begin() const { return begin_; }
  /// Sets this stage's entries of `times`: its compute time and its end, both in seconds.
  void set_times(std::span<double> times) const;

 private:
  using kind = pipeline::step_kind;
  using clock = std::chrono::steady_clock;

  /// What a chunk keeps of a micro-batch between its steps.
  struct saved {
    std::shared_ptr<tape_entries> recorded;
    state_ptr in, out;          // operand of the chunk's first block; value after its last one, or the loss
    state_ptr gradient;         // gradient of `in`, until it is sent
    bool has_gradient = false;  // whether the value after the chunk's last block has a gradient from the loss
  };

  saved& cell(const pipeline::step& e) { return cell(e.chunk, e.micro_batch); }
  saved& cell(int chunk, int j) { return cells_[pipeline::detail::cell(schedule_, chunk, j)]; }
  bool on_this_stage(int chunk) const;
  bool is_last(int chunk) const { return chunk + 1 == schedule_.chunks(); }
  comm_options options() const;
  double seconds() const { return std::chrono::duration<double>(clock::now() - begin_).count(); }

  /// The receives that follow step k up to the next computation begin before it, so that they overlap.
  void begin_receives_after(std::size_t k);
  void begin_receive(const pipeline::step& e);
  /// Waits for the message that a step reads, so that the step's record has compute time only.
  void await_input(const pipeline::step& e);
  void record_message(const pipeline::step& e);
  void send(const pipeline::step& e);

  void forward(const pipeline::step& e);
  state_ptr input_of(const pipeline::step& e);
  void backward(const pipeline::step& e);
  /// Computes the gradient of the chunk's input; of an undivided backward pass, all gradients.
  void backward_input(const pipeline::step& e);
  void backward_weight(const pipeline::step& e);
  void begin_gradients(const pipeline::step& e);
  /// Without a flush: executes update number `number` of the parameters that have gradients.
  void update(int number);
  /// Brings tied parameters that other stages own to the version of a forward step; see tied_gradients.
  void update_tied(int micro_batch);

  pipeline_context& run_;
  step_statements& statements_;
  const pipeline::schedule& schedule_;
  const std::vector<pipeline::step>& list_;
  const pipeline::step* at_ = nullptr;  // the step of the list that is executed
  std::vector<saved> cells_;
  std::vector<int> forwards_left_, backwards_left_;  // by micro-batch; by chunk
  std::vector<int> completed_;  // micro-batches in the order in which their gradients are completed
  std::span<double> losses_;
  std::vector<pipeline::record> records_;
  std::optional<weight_versions> versions_;  // if parameters are updated after each backward step
  int updates_ = 0;
  stage_messages messages_;
  clock::time_point begin_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/pipeline_step.ipp>
#endif
