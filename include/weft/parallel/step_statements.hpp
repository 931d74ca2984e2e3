// SPDX-License-Identifier: MIT
// The statements of a pipeline's training step, independent of their types, as a stage executes them.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <weft/parallel/stage_evaluator.hpp>

namespace weft::parallel {

/// The result of a walk over a statement.
struct walked_statement {
  index_t blocks;
  bool has_gradient;  // whether the value passed on has a gradient from the loss; see stage_evaluator
};

/// A chunk that has been executed for a micro-batch.
struct recorded_chunk {
  std::shared_ptr<tape_entries> tape;
  std::shared_ptr<tensor_state> value;  // value of the statement; absent unless the chunk computes it
  walked_statement statement;
};

/// The statements of the micro-batches of one training step, of which a stage executes chunks.
class step_statements {
 public:
  step_statements() = default;
  step_statements(const step_statements&) = delete;
  step_statements& operator=(const step_statements&) = delete;
  virtual ~step_statements() = default;

  /// Sets which groups of ranks compute losses at the same time.
  void set_ranks_of_stage(std::vector<const communicator*> groups) { ranks_of_stage_ = std::move(groups); }

  /// Walks over the statement of micro-batch j without executing anything or drawing random numbers. `at`: an
  /// empty range of blocks.
  virtual walked_statement visit(index_t j, block_range at, const stage_events& events) = 0;
  /// Executes the programs of `mine` and records them on a new tape.
  virtual recorded_chunk record(index_t j, block_range mine, const stage_events& events) = 0;
  /// Frees the statement of micro-batch j.
  virtual void release(index_t j) = 0;

  /// The number in `loss`, a value of the statement. Waits for the device.
  virtual double number_of(const std::shared_ptr<tensor_state>& loss) const = 0;
  /// Differentiates `loss`, the value of a statement that `tape` has recorded.
  virtual void backward(tape_entries& tape, const std::shared_ptr<tensor_state>& loss) const = 0;

 protected:
  std::vector<const communicator*> ranks_of_stage_;
};

/// The statements loss(0), loss(1), ... `Run`: a context with the options of its programs. The loss is called
/// once for each micro-batch, in order.
template <class Run, class Loss>
class statements_of final : public step_statements {
  using statement = std::remove_cvref_t<std::invoke_result_t<Loss&, index_t>>;
  using tape_type = tape<typename Run::programs, Run::divides_backward>;
  using loss_type = variable<typename statement::value_type, extents<>>;

 public:
  statements_of(Run& run, Loss& loss, index_t micro_batches)
      : run_(run), loss_(loss), made_(static_cast<std::size_t>(micro_batches)) {}

  walked_statement visit(index_t j, block_range at, const stage_events& events) override {
    const context::randomness_scope unchanged(run_, run_.randomness());
    tape_type unused(run_);
    return walk(unused, j, at, events).statement;
  }
  recorded_chunk record(index_t j, block_range mine, const stage_events& events) override {
    const auto tape = std::make_shared<tape_type>(run_);
    recorded_chunk found = walk(*tape, j, mine, events);
    found.tape = tape;
    return found;
  }
  void release(index_t j) override { made_[static_cast<std::size_t>(j)].reset(); }
  double number_of(const std::shared_ptr<tensor_state>& loss) const override {
    return static_cast<double>(loss_type(loss).item());
  }
  void backward(tape_entries& tape, const std::shared_ptr<tensor_state>& loss) const override {
    tape.backward(loss_type(loss));
  }

 private:
  recorded_chunk walk(tape_type& on, index_t j, block_range mine, const stage_events& events) {
    for (; called_ <= j; ++called_) {
      const collectives_refused inside(
          "the loss of a pipeline, which the stages compute at different times: evaluate what is divided "
          "among ranks before the step",
          ranks_of_stage_);
      const index_t positions = run_.layer_rank().positions;
      made_[static_cast<std::size_t>(called_)].emplace(loss_(called_));
      if (called_ > 0) check_positions(positions, run_.layer_rank().positions);
    }
    stage_evaluator<tape_type> evaluator(on, run_, mine, events);
    const auto value = evaluator.eval(*made_[static_cast<std::size_t>(j)]);
    return {nullptr, value.state(), {evaluator.blocks(), evaluator.is_followed(value.state())}};
  }

  /// Throws usage_error if the numbers of positions differ, because stages execute micro-batches after all
  /// losses have been called, with the length of the last one.
  void check_positions(index_t before, index_t now) const {
    if (now != before)
      refuse<usage_error>({"weft: step: the loss of micro-batch ", called_, " has sequences of ", now,
                           " positions, but those before it have ", before,
                           ": where ranks divide positions (axis cp), all micro-batches of a pipeline's step "
                           "must have the same length"});
  }

  Run& run_;
  Loss& loss_;
  std::vector<std::optional<statement>> made_;
  index_t called_ = 0;
};

}  // namespace weft::parallel
