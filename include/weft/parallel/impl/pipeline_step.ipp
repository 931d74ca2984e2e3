// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/pipeline_step.hpp>.
#pragma once

#include <algorithm>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/parallel/pipeline_context.hpp>
#include <weft/parallel/pipeline_step.hpp>
#include <weft/parallel/tied_gradients.hpp>

namespace weft::parallel {

WEFT_DEFINE pipeline_step::pipeline_step(pipeline_context& run, step_statements& statements,
                                         const pipeline::schedule& s)
    : run_(run),
      statements_(statements),
      schedule_(s),
      list_(s.steps[static_cast<std::size_t>(run.stage())]),
      cells_(pipeline::detail::cells(s)),
      forwards_left_(static_cast<std::size_t>(s.micro_batches), 0),
      backwards_left_(static_cast<std::size_t>(s.chunks()), 0),
      messages_(run.stages(), run.where()),
      begin_(clock::now()) {
  for (const pipeline::step& e : list_) {
    if (e.kind == kind::forward) ++forwards_left_[static_cast<std::size_t>(e.micro_batch)];
    if (!pipeline::completes_gradients(e.kind)) continue;
    ++backwards_left_[static_cast<std::size_t>(e.chunk)];
    completed_.push_back(e.micro_batch);
  }
}

WEFT_DEFINE void pipeline_step::execute(std::span<double> losses) {
  losses_ = losses;
  run_.tied_->begin_step(schedule_);
  if (!schedule_.flush) versions_.emplace(run_.local());
  for (std::size_t k = 0; k < list_.size(); ++k) {
    const pipeline::step& e = list_[k];
    at_ = &e;
    if (e.kind == kind::receive_activation || e.kind == kind::receive_gradient) begin_receive(e);
    if (pipeline::is_send(e.kind)) send(e);
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
  run_.tied_->complete();
  versions_->finish();
}

WEFT_DEFINE void pipeline_step::set_times(std::span<double> times) const {
  for (const pipeline::record& r : records_)
    if (!pipeline::is_message(r.kind)) {
      times[0] += r.end - r.start;
      times[1] = std::max(times[1], r.end);
    }
}

WEFT_DEFINE bool pipeline_step::on_this_stage(int chunk) const { return run_.on_this_stage(chunk); }

WEFT_DEFINE comm_options pipeline_step::options() const { return run_.groups().labelled(""); }

WEFT_DEFINE void pipeline_step::begin_receives_after(std::size_t k) {
  for (++k; k < list_.size(); ++k) {
    const pipeline::step& e = list_[k];
    if (!pipeline::is_message(e.kind)) return;
    if (e.kind == kind::receive_activation || (e.kind == kind::receive_gradient && cell(e).out))
      begin_receive(e);
  }
}

WEFT_DEFINE void pipeline_step::begin_receive(const pipeline::step& e) {
  if (messages_.has(e)) return;
  if (e.kind == kind::receive_gradient) {
    if (cell(e).has_gradient) messages_.receive(schedule_, e, *cell(e).out, options());
    return;
  }
  const block_range at_entry{run_.blocks_of(e.chunk).first, run_.blocks_of(e.chunk).first};
  const walked_statement found =
      statements_.visit(e.micro_batch, at_entry, {.enter = [&](const tensor_state& x) {
                          messages_.receive(schedule_, e, x, options());
                          return detail::absent_value(x);
                        }});
  run_.check_blocks(found.blocks);
  cell(e.chunk - 1, e.micro_batch).has_gradient = found.has_gradient;
}

WEFT_DEFINE void pipeline_step::await_input(const pipeline::step& e) {
  const pipeline::step message{e.kind == kind::forward ? kind::receive_activation : kind::receive_gradient,
                               e.chunk, e.micro_batch};
  if (!messages_.has(message)) return;
  messages_.await(message);
  record_message(message);
}

WEFT_DEFINE void pipeline_step::record_message(const pipeline::step& e) {
  const double now = seconds();
  records_.push_back({run_.stage(), e.kind, e.chunk, e.micro_batch, now, now});
}

WEFT_DEFINE void pipeline_step::send(const pipeline::step& e) {
  const state_ptr value =
      e.kind == kind::send_activation ? cell(e).out : std::exchange(cell(e).gradient, nullptr);
  if (!value) return;  // there is no gradient
  messages_.send(schedule_, e, value, options());
  record_message(e);
}

WEFT_DEFINE void pipeline_step::forward(const pipeline::step& e) {
  if (versions_) {
    update_tied(e.micro_batch);
    versions_->keep(e.micro_batch);
  }
  run_.begin_this(e.micro_batch, schedule_.micro_batches);
  saved& s = cell(e);
  const stage_events events{.enter = [&](const tensor_state&) { return s.in = input_of(e); },
                            .leave = [&](const state_ptr& out) { s.out = out; }};
  recorded_chunk done = statements_.record(e.micro_batch, run_.blocks_of(e.chunk), events);
  run_.check_blocks(done.statement.blocks);
  s.recorded = std::move(done.tape);
  s.has_gradient = done.statement.has_gradient;
  if (is_last(e.chunk)) {
    s.out = done.value;
    const index_t number = run_.micro_batch(e.micro_batch, schedule_.micro_batches);
    if (run_.layer_rank().rank == 0)
      losses_[static_cast<std::size_t>(run_.part_of(number))] =
          run_.loss_weight * statements_.number_of(s.out);
  }
  if (--forwards_left_[static_cast<std::size_t>(e.micro_batch)] == 0) statements_.release(e.micro_batch);
}

WEFT_DEFINE state_ptr pipeline_step::input_of(const pipeline::step& e) {
  if (!on_this_stage(e.chunk - 1)) {
    const state_ptr received = messages_.take({kind::receive_activation, e.chunk, e.micro_batch});
    received->on_tape = tape_status::recorded;  // by the tape of another stage
    return received;
  }
  const state_ptr& before = cell(e.chunk - 1, e.micro_batch).out;
  return part_of(*before, 0, before->extents);  // with a gradient of its own
}

WEFT_DEFINE void pipeline_step::backward(const pipeline::step& e) {
  std::optional<weight_versions::scope> as_in_forward;
  if (versions_) as_in_forward.emplace(*versions_, e.micro_batch);
  if (pipeline::yields_gradient(e.kind)) backward_input(e);
  if (!pipeline::completes_gradients(e.kind)) return;
  backward_weight(e);
  as_in_forward.reset();
  if (!versions_) return;
  versions_->release(e.micro_batch);
  run_.complete_gradients();
  update(updates_++);
}

WEFT_DEFINE void pipeline_step::update(int number) {
  versions_->update([&] { run_.update(number, completed_[static_cast<std::size_t>(number)]); });
}

WEFT_DEFINE void pipeline_step::backward_input(const pipeline::step& e) {
  saved& s = cell(e);
  if (!run_.divides_backward_) begin_gradients(e);
  if (is_last(e.chunk)) {
    statements_.backward(*s.recorded, s.out);
  } else {
    const state_ptr seed = on_this_stage(e.chunk + 1)
                               ? std::exchange(cell(e.chunk + 1, e.micro_batch).gradient, nullptr)
                               : messages_.take({kind::receive_gradient, e.chunk, e.micro_batch});
    s.recorded->backward(s.out, seed);
  }
  if (s.in && cell(e.chunk - 1, e.micro_batch).has_gradient)
    s.gradient = s.in->grad ? s.in->grad : zeros_like(*s.in);
  s.in.reset();
  s.out.reset();
}

WEFT_DEFINE void pipeline_step::backward_weight(const pipeline::step& e) {
  saved& s = cell(e);
  if (run_.divides_backward_) {
    begin_gradients(e);
    s.recorded->backward_weights();
  }
  run_.after_backward(e.chunk, e.micro_batch);
  s.recorded.reset();
}

WEFT_DEFINE void pipeline_step::begin_gradients(const pipeline::step& e) {
  run_.synchronize(--backwards_left_[static_cast<std::size_t>(e.chunk)] == 0 || versions_.has_value());
  run_.before_backward(e.chunk, e.micro_batch);
}

WEFT_DEFINE void pipeline_step::update_tied(int micro_batch) {
  run_.tied_->follow(micro_batch, run_.local(), options(), [&](int number) { update(number); });
}
}  // namespace weft::parallel
