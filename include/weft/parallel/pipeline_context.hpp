// SPDX-License-Identifier: MIT
// The context of a model on the stages of a pipeline: the part of a pipeline_run that does not depend on the
// types of its statements and optimizer.
//
// A statement of the model is divided into chunks of consecutive blocks. The operands of its programs
// determine which parameters a chunk needs, and their modelled costs determine where to cut. A stage keeps
// the parameters of its own chunks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <weft/parallel/distributed_context.hpp>
#include <weft/parallel/pipeline_axis.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/step_statements.hpp>

namespace weft {

namespace parallel {
class pipeline_step;
class stage_messages;
class tied_gradients;
}  // namespace parallel

/// A distributed_context whose ranks hold stages of the model. Its `step` of micro-batches, `eval` and
/// `prepare` are those of pipeline_run.
class pipeline_context : public distributed_context {
  friend class parallel::pipeline_step;

 public:
  /// One line for each chunk: its stage, its blocks, its part of the modelled cost.
  [[gnu::cold]] std::string to_string() const;

  /// When this rank executed the steps of the last training step, in seconds since `began()`. Compute steps
  /// do not include the time spent waiting for messages; a message is recorded when it is sent and when it is
  /// read. measured_timing (stage_timing.hpp) returns the records of all stages.
  const std::vector<pipeline::record>& records() const { return records_; }
  std::chrono::steady_clock::time_point began() const { return began_; }
  /// The ranks that hold the stages of one copy of the model, in the order of stages.
  communicator& stages() const { return *stages_; }
  int stage() const { return stages_->rank(); }
  /// The blocks of a chunk, in the order of evaluation.
  const parallel::block_range& blocks_of(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }
  /// The mesh of all ranks, in which those along cp, which hold copies of the parameters, are counted along
  /// dp.
  const mesh_sizes& sizes() const { return sizes_; }

  axis_bytes sent_by_axis() const override;

 protected:
  /// `layers`: the ranks that divide layers with this one, if the policy has the axis tp. `divides_backward`:
  /// whether tapes divide backward passes.
  [[gnu::cold]] pipeline_context(parallel::bound_model model, const training& of,
                                 std::shared_ptr<communicator> ranks, const parallel_options& o,
                                 pipeline_options p, std::shared_ptr<communicator> layers,
                                 bool divides_backward);
  ~pipeline_context();

  /// Marks that the stages compute a statement, during which they cannot compute another one.
  class in_statement {
   public:
    explicit in_statement(pipeline_context& run);
    in_statement(const in_statement&) = delete;
    in_statement& operator=(const in_statement&) = delete;
    ~in_statement() { run_.in_statement_ = false; }

   private:
    pipeline_context& run_;
  };

  /// Walks over a statement of the model without executing it. Returns the number of its blocks.
  using visit_function = std::function<index_t(const parallel::stage_events&)>;
  /// Divides the model by the statement that `visit` walks over, unless it is already divided.
  [[gnu::cold]] void prepare(index_t micro_batches, const visit_function& visit);

  /// Executes a training step; see pipeline_run.
  step_result step(parallel::step_statements& statements, index_t micro_batches, step_options o);

  /// The value of a statement as one chunk computes it, and the number of the statement's blocks.
  struct evaluated_chunk {
    parallel::state_ptr value;  // absent if the chunk does not compute it
    index_t blocks;
  };
  using chunk_function =
      std::function<evaluated_chunk(const parallel::block_range& mine, const parallel::stage_events&)>;
  /// Computes a statement on the stages. `evaluate` executes a chunk of it. Returns the value on every rank.
  parallel::state_ptr eval(const chunk_function& evaluate);

  communicator& data_ranks() const override { return *data_; }
  communication communicated() const override;
  void deliver_gradients() override;
  void drop_gradients() override;
  bool counts(const std::string& name, const tensor_state& p) const override;

 private:
  /// The operands of a program of the statement, and its modelled cost.
  struct reading {
    index_t blocks;
    tensor_list leaves;
    double cost;
  };

  void use_schedule(index_t micro_batches);
  /// Uses the schedule for as many micro-batches as there are stages, or for twice as many if there is no
  /// such schedule.
  [[gnu::cold]] void use_any_schedule();
  bool on_this_stage(int chunk) const {
    return schedule_.stage_of[static_cast<std::size_t>(chunk)] == stage();
  }

  [[gnu::cold]] std::vector<reading> readings_of(const visit_function& visit);
  [[gnu::cold]] void divide(const std::vector<reading>& readings);
  /// Takes over the division of rank 0, because micro-batches of other ranks may have other extents and so
  /// other costs.
  [[gnu::cold]] void agree_on_chunks();
  /// The chunks that read a tensor, ascending; chunk 0 if none does.
  [[gnu::cold]] std::vector<int> chunks_that_read(const std::vector<reading>& readings,
                                                  const tensor_state* t) const;
  /// The stages of chunks, each once.
  [[gnu::cold]] std::vector<int> stages_of(const std::vector<int>& chunks) const;
  /// The parameters that several chunks read.
  [[gnu::cold]] void find_tied(const std::vector<reading>& readings);
  /// Sets all tensors to those of rank 0, because stages may share some. Frees the tensors that other stages
  /// hold, and distributes the rest among the data-parallel ranks.
  [[gnu::cold]] void hold_own(const std::vector<reading>& readings);
  /// The chunk that computes the programs after `blocks` blocks.
  int chunk_after(index_t blocks) const;
  [[noreturn, gnu::cold]] void refuse_blocks(index_t found) const;

  /// Evaluates chunk c. `passed`: the value between two chunks of this stage.
  evaluated_chunk eval_chunk(const chunk_function& evaluate, int c, parallel::stage_messages& messages,
                             parallel::state_ptr& passed);

  // For pipeline_step.
  void check_blocks(index_t found) const {
    if (found != blocks_) refuse_blocks(found);
  }
  void begin_this(int micro_batch, int count) {
    begin_micro_batch(number_of_step_,
                      static_cast<std::uint64_t>(distributed_context::micro_batch(micro_batch, count)));
    weigh_batch(micro_batch);
  }
  void before_backward(int chunk, int micro_batch);
  void after_backward(int chunk, int micro_batch);
  void complete_gradients();
  /// Update number `number` of this step, counted from 0, with the gradients of a micro-batch.
  void update(int number, int micro_batch) {
    update_once(static_cast<std::int64_t>(number_of_step_) + number, micro_batch);
  }

  state_dict_t parameters_, buffers_;  // of the whole model
  mesh_sizes sizes_;
  pipeline_options settings_;
  std::shared_ptr<communicator> stages_, data_, owners_, layers_;
  bool divides_backward_;
  pipeline::schedule schedule_;
  index_t blocks_ = 0;
  std::vector<parallel::block_range> chunks_;
  std::vector<double> costs_;                       // modelled, by chunk
  std::unique_ptr<parallel::tied_gradients> tied_;
  std::vector<pipeline::record> records_;
  std::chrono::steady_clock::time_point began_{};
  std::uint64_t number_of_step_ = 0;
  bool in_statement_ = false;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/pipeline_context.ipp>
#endif
