// SPDX-License-Identifier: MIT
// Training steps that a device records and replays by one call: CUDA graphs.
//
// The first step of a form is executed normally. The second one is recorded: forward and backward passes, the
// gradient norm and the clipping factor. From then on a step copies the operands of its losses to the memory
// that the recorded step reads, passes new random keys, and queues the recorded work. The update is executed
// normally after it, so that it uses the current learning rate and step count.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <weft/parallel/norm.hpp>
#include <weft/run/context.hpp>

namespace weft::parallel {

/// Everything a recorded step depends on except the elements of tensors; steps of equal form can replay the
/// same recorded work.
struct step_form {
  const void* statement = nullptr;  // the type of the losses
  double clip = 0, loss_scale = 1, loss_weight = 1;
  int recompute_programs = 0;
  std::vector<const void*> memory{};  // memory of parameters and buffers, including those among the operands
  std::vector<std::size_t> operands{};  // of the losses of all micro-batches, as indices of `tensors`
  std::vector<tensor_spec> tensors{};   // distinct operands
  std::vector<std::int64_t> numbers{};  // run-time numbers and sizes in losses, contents of blocks
  bool operator==(const step_form&) const = default;
};

/// The tensors that losses read, each once. Adds to `form`, which already has the memory of parameters and
/// buffers, what the step depends on in them.
tensor_list described_operands(const runtime::operands& read, step_form& form);

/// Throws value_error unless the blocks of losses have the same contents `before` and `after` the losses of
/// later micro-batches were made, because all losses are evaluated only then.
void require_unchanged(const runtime::module_contents& before, const runtime::module_contents& after);

/// One recorded step.
class step_graph {
 public:
  /// Parameters and buffers among `read` are read in place; the graph has its own memory for the other
  /// tensors.
  step_graph(context& c, step_form form, const tensor_list& read);
  step_graph(const step_graph&) = delete;
  step_graph& operator=(const step_graph&) = delete;

  const step_form& form() const { return form_; }
  /// Reserves the memory of the step for its recording. False if the step has not been executed yet or if
  /// some of that memory has been given to others: the step must then be executed (again) before it can be
  /// recorded.
  bool seal() { return is_recorded() || (warm_ && pool_.seal()); }
  bool is_recorded() const { return work_ != nullptr; }

  /// The results of a step: the losses of its micro-batches, the gradients that it leaves in parameters, and
  /// their measure.
  struct values {
    tensor_list losses;
    std::shared_ptr<tensor_state> norm;
    gradient_scale scale = 1;
  };
  /// Executes `compute` in memory that is kept for the recording.
  const values& warm_up(const tensor_list& parameters, const std::function<values()>& compute);
  /// Records `compute`, whose micro-batches begin with these random states. Throws usage_error for work that
  /// cannot be recorded.
  void record(std::span<const context::random_state> begins, const tensor_list& read,
              const tensor_list& parameters, const std::function<values()>& compute);
  /// Queues the recorded step for these tensors and random states, and sets the gradients of parameters.
  const values& replay(std::span<const context::random_state> begins, const tensor_list& read,
                       const tensor_list& parameters);

 private:
  struct draw {
    std::size_t micro_batch;
    std::uint64_t program;  // program number, counted from the beginning of the micro-batch
  };
  context& context_;
  step_form form_;
  device where_;
  bool warm_ = false;
  caching_allocator::private_pool pool_;  // declared before members that may refer to its blocks
  buffer arena_;
  tensor_list inputs_;  // read by the recorded work in place of operands; null: the operand itself
  std::vector<draw> draws_;
  std::uint64_t programs_ = 0;  // number of programs from the beginning of the last micro-batch on
  tensor_list gradients_;       // gradients of parameters
  values values_;
  std::unique_ptr<recorded_work> work_;
};

/// The recorded steps of a run, by form.
class step_graphs {
 public:
  /// The step of this form; null if there is none.
  step_graph* find(const step_form& form);
  step_graph& add(std::unique_ptr<step_graph> g);

 private:
  static constexpr std::ptrdiff_t most_unrecorded = 4;
  static constexpr std::size_t most = 16;  // beyond this the oldest is dropped
  std::vector<std::unique_ptr<step_graph>> all_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/step_graph.ipp>
#endif
