// SPDX-License-Identifier: MIT
// One training step of a stage: executes the stage's list of a schedule.
#pragma once

#include <memory>
#include <optional>

#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/stage_evaluator.hpp>
#include <weft/parallel/stage_messages.hpp>
#include <weft/parallel/tied_gradients.hpp>
#include <weft/parallel/weight_versions.hpp>

namespace weft::parallel {

/// The steps of one stage for the micro-batches of one training step. `Run` is a pipeline_run, `Loss` a
/// function of the micro-batch's number that returns the statement.
template <class Run, class Loss>
class pipeline_step {
  using statement = std::remove_cvref_t<std::invoke_result_t<Loss&, index_t>>;
  using tape_type = tape<typename Run::programs, Run::divides_backward>;
  using loss_type = variable<typename statement::value_type, extents<>>;

 public:
  pipeline_step(Run& run, Loss& loss, const pipeline::schedule& s)
      : run_(run),
        loss_(loss),
        schedule_(s),
        list_(s.steps[static_cast<std::size_t>(run.stage())]),
        statements_(static_cast<std::size_t>(s.micro_batches)),
        cells_(pipeline::detail::cells(s)),
        forwards_left_(statements_.size(), 0),
        backwards_left_(static_cast<std::size_t>(s.chunks()), 0),
        messages_(run.stages(), run.where()),
        begin_(clock::now()) {
    for (const pipeline::step& e : list_) {
      if (e.kind == kind::forward) ++forwards_left_[static_cast<std::size_t>(e.micro_batch)];
      if (pipeline::completes_gradients(e.kind)) ++backwards_left_[static_cast<std::size_t>(e.chunk)];
    }
  }

  /// The statement of micro-batch j. The loss is called once for each micro-batch, in order.
  const statement& of(int j) {
    for (; called_ <= j; ++called_) statements_[static_cast<std::size_t>(called_)].emplace(loss_(called_));
    return *statements_[static_cast<std::size_t>(j)];
  }

  /// Executes the list. `losses`: by number of the micro-batch among those of all ranks; set by the stage
  /// that computes them.
  void execute(std::span<double> losses) {
    losses_ = losses;
    run_.tied().begin_step(schedule_);
    if (!schedule_.flush) versions_.emplace(run_.local());
    for (std::size_t k = 0; k < list_.size(); ++k) {
      const pipeline::step& e = list_[k];
      at_ = &e;
      if (e.kind == kind::receive_activation || e.kind == kind::receive_gradient) begin_receive(e);
      if (e.kind == kind::send_activation) messages_.send(schedule_, e, cell(e).out, options());
      if (e.kind == kind::send_gradient) send_gradient(e);
      if (pipeline::is_send(e.kind)) record_message(e);
      if (pipeline::is_message(e.kind)) continue;
      begin_receives_after(k);
      await_input(e);
      const double start = seconds();
      if (e.kind == kind::forward) forward(e);
      if (e.kind != kind::forward) backward(e);
      records_.push_back({run_.stage(), e.kind, e.chunk, e.micro_batch, start, seconds()});
    }
    messages_.complete();
    if (!versions_) return;
    update_tied(schedule_.micro_batches);
    run_.tied().complete();
    versions_->finish();
  }

  /// What execute() does now, for example "forward of chunk 3, micro-batch 0".
  std::string position() const { return at_ ? pipeline::to_text(*at_) : "loss of micro-batch 0"; }

  /// When this stage executed what, in seconds since the step began: see pipeline_run::records.
  const std::vector<pipeline::record>& records() const { return records_; }
  std::chrono::steady_clock::time_point begin() const { return begin_; }
  /// Sets the time that this stage has computed, and when it ended, both in seconds.
  void set_times(std::span<double> times) const {
    for (const pipeline::record& r : records_)
      if (!pipeline::is_message(r.kind)) {
        times[0] += r.end - r.start;
        times[1] = std::max(times[1], r.end);
      }
  }

 private:
  using kind = pipeline::step_kind;
  using clock = std::chrono::steady_clock;

  /// What a chunk keeps of a micro-batch between its steps.
  struct saved {
    std::unique_ptr<tape_type> recorded;
    state_ptr in, out;   // operand of its first block; value after its last one, or the loss
    state_ptr gradient;  // of `in`, until it is sent
  };

  saved& cell(const pipeline::step& e) {
    return cells_[pipeline::detail::cell(schedule_, e.chunk, e.micro_batch)];
  }
  saved& cell(int chunk, int j) { return cells_[pipeline::detail::cell(schedule_, chunk, j)]; }
  bool on_this_stage(int chunk) const {
    return schedule_.stage_of[static_cast<std::size_t>(chunk)] == run_.stage();
  }
  bool is_last(int chunk) const { return chunk + 1 == schedule_.chunks(); }
  comm_options options() const { return run_.groups().labelled(""); }
  double seconds() const { return std::chrono::duration<double>(clock::now() - begin_).count(); }

  /// The receives that follow step k up to the next computation begin before it, so that they overlap.
  void begin_receives_after(std::size_t k) {
    for (++k; k < list_.size(); ++k) {
      const pipeline::step& e = list_[k];
      if (!pipeline::is_message(e.kind)) return;
      if (e.kind == kind::receive_activation || (e.kind == kind::receive_gradient && cell(e).out))
        begin_receive(e);
    }
  }
  void begin_receive(const pipeline::step& e) {
    if (messages_.has(e)) return;
    if (e.kind == kind::receive_gradient)
      return messages_.receive(schedule_, e, *cell(e).out, options());
    walk(e, {.enter = [&](const tensor_state& x) {
           messages_.receive(schedule_, e, x, options());
           return detail::absent_value(x);
         }});
  }
  /// Waits for the message that a step reads, so that its record has the time of computing alone.
  void await_input(const pipeline::step& e) {
    const bool up = e.kind == kind::forward;
    const bool reads = up || pipeline::yields_gradient(e.kind);
    if (!reads || !pipeline::detail::crosses(schedule_, e.chunk, up ? e.chunk - 1 : e.chunk + 1)) return;
    const pipeline::step message{up ? kind::receive_activation : kind::receive_gradient, e.chunk,
                                 e.micro_batch};
    messages_.await(message);
    record_message(message);
  }
  void record_message(const pipeline::step& e) {
    const double now = seconds();
    records_.push_back({run_.stage(), e.kind, e.chunk, e.micro_batch, now, now});
  }
  /// A walk over the statement of a step that executes nothing.
  void walk(const pipeline::step& e, const stage_events& events) {
    const context::random_state now = run_.randomness();
    const block_range at_entry{run_.blocks_of(e.chunk).first, run_.blocks_of(e.chunk).first};
    tape_type unused(run_);
    stage_evaluator<tape_type> evaluator(unused, run_, at_entry, events);
    evaluator.eval(of(e.micro_batch));
    run_.check_blocks(evaluator.blocks());
    run_.set_randomness(now);
  }

  void forward(const pipeline::step& e) {
    if (versions_) {
      update_tied(e.micro_batch);
      versions_->keep(e.micro_batch);
    }
    run_.begin_this(e.micro_batch, schedule_.micro_batches);
    saved& s = cell(e);
    s.recorded = std::make_unique<tape_type>(run_);
    const stage_events events{.enter = [&](const tensor_state&) { return s.in = input_of(e); },
                              .leave = [&](const state_ptr& out) { s.out = out; }};
    stage_evaluator<tape_type> evaluator(*s.recorded, run_, run_.blocks_of(e.chunk), events);
    const auto value = evaluator.eval(of(e.micro_batch));
    run_.check_blocks(evaluator.blocks());
    static_assert(std::remove_cvref_t<decltype(value)>::static_shape.order == 0,
                  "weft: step: the loss must be a scalar");
    if (is_last(e.chunk)) {
      s.out = value.state();
      if (run_.layer_rank().rank == 0)
        losses_[static_cast<std::size_t>(run_.micro_batch(e.micro_batch, schedule_.micro_batches))] =
            run_.loss_weight * static_cast<double>(value.item());
    }
    const auto j = static_cast<std::size_t>(e.micro_batch);
    if (--forwards_left_[j] == 0) statements_[j].reset();
  }
  state_ptr input_of(const pipeline::step& e) {
    if (!on_this_stage(e.chunk - 1)) {
      const state_ptr received = messages_.take({kind::receive_activation, e.chunk, e.micro_batch});
      received->on_tape = tape_status::recorded;  // by that of another stage
      return received;
    }
    const state_ptr& before = cell(e.chunk - 1, e.micro_batch).out;
    return part_of(*before, 0, before->extents);  // with a gradient of its own
  }

  void backward(const pipeline::step& e) {
    std::optional<weight_versions::scope> as_in_forward;
    if (versions_) as_in_forward.emplace(*versions_, e.micro_batch);
    if (pipeline::yields_gradient(e.kind)) backward_input(e);
    if (!pipeline::completes_gradients(e.kind)) return;
    backward_weight(e);
    as_in_forward.reset();
    if (!versions_) return;
    versions_->release(e.micro_batch);
    run_.complete_gradients();
    versions_->update([&] { run_.update(updates_++); });
  }
  /// Computes the gradient of the chunk's input; of an undivided backward pass, all gradients.
  void backward_input(const pipeline::step& e) {
    saved& s = cell(e);
    if constexpr (!Run::divides_backward) begin_gradients(e);
    if (is_last(e.chunk)) {
      s.recorded->backward(loss_type(s.out));
    } else {
      const state_ptr seed = on_this_stage(e.chunk + 1)
                                 ? std::exchange(cell(e.chunk + 1, e.micro_batch).gradient, nullptr)
                                 : messages_.take({kind::receive_gradient, e.chunk, e.micro_batch});
      s.recorded->backward(s.out, seed);
    }
    if (s.in) s.gradient = s.in->grad ? s.in->grad : zeros_like(*s.in);
    s.in.reset();
    s.out.reset();
  }
  void backward_weight(const pipeline::step& e) {
    saved& s = cell(e);
    if constexpr (Run::divides_backward) {
      begin_gradients(e);
      s.recorded->backward_weights();
    }
    run_.after_backward(e.chunk, e.micro_batch);
    s.recorded.reset();
  }
  void begin_gradients(const pipeline::step& e) {
    run_.synchronize(--backwards_left_[static_cast<std::size_t>(e.chunk)] == 0 || versions_.has_value());
    run_.before_backward(e.chunk, e.micro_batch);
  }
  /// Brings tied parameters that other stages own to the version of a forward step; see tied_gradients.
  void update_tied(int micro_batch) {
    run_.tied().follow(micro_batch, run_.local(), options(),
                       [&](int number) { versions_->update([&] { run_.update(number); }); });
  }
  void send_gradient(const pipeline::step& e) {
    messages_.send(schedule_, e, std::exchange(cell(e).gradient, nullptr), options());
  }

  Run& run_;
  Loss& loss_;
  const pipeline::schedule& schedule_;
  const std::vector<pipeline::step>& list_;
  std::vector<std::optional<statement>> statements_;
  index_t called_ = 0;
  const pipeline::step* at_ = nullptr;  // the step of the list that is executed
  std::vector<saved> cells_;
  std::vector<int> forwards_left_, backwards_left_;  // by micro-batch; by chunk
  std::span<double> losses_;
  std::vector<pipeline::record> records_;
  std::optional<weight_versions> versions_;  // if parameters are updated after each backward step
  int updates_ = 0;
  stage_messages messages_;
  clock::time_point begin_;
};

}  // namespace weft::parallel
