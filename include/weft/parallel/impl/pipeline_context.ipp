// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/pipeline_context.hpp>.
#pragma once

#include <algorithm>
#include <limits>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/base/record_function.hpp>
#include <weft/parallel/first_values.hpp>
#include <weft/parallel/pipeline_context.hpp>
#include <weft/parallel/pipeline_step.hpp>
#include <weft/parallel/stage_division.hpp>
#include <weft/parallel/stage_messages.hpp>
#include <weft/parallel/tied_gradients.hpp>

namespace weft {

namespace parallel::detail {
/// The fraction of the time up to the last end during which ranks did not compute. `times`: for each rank,
/// its compute time and its end.
inline double idle_fraction(std::span<const double> times) {
  double busy = 0, end = 0;
  for (std::size_t i = 0; i < times.size(); i += 2) {
    busy += times[i];
    end = std::max(end, times[i + 1]);
  }
  return end > 0 ? 1 - 2 * busy / (end * static_cast<double>(times.size())) : 0;
}

/// Calls f; if it throws on this rank only, the other ranks fail too instead of waiting.
template <class F>
void abort_on_error(communicator& ranks, const pipeline_step& of_step, F f) {
  try {
    f();
  } catch (const comm_error&) {
    throw;  // the other ranks know the error already
  } catch (const std::exception& e) {
    ranks.abort(of_step.position() + ": " + e.what());
    throw;
  } catch (...) {
    ranks.abort(of_step.position() + ": an exception of an unknown type");
    throw;
  }
}
}  // namespace parallel::detail

WEFT_DEFINE pipeline_context::pipeline_context(parallel::bound_model of_run, const training& of,
                                               std::shared_ptr<communicator> ranks, const parallel_options& o,
                                               pipeline_options p, std::shared_ptr<communicator> layers,
                                               bool divides_backward)
    : distributed_context(std::move(of_run), of, std::move(ranks), o),
      parameters_(model().parameters()),
      buffers_(model().buffers()),
      sizes_(parallel::parameter_mesh(o, distributed_context::ranks().size())),
      settings_(std::move(p)),
      layers_(std::move(layers)),
      divides_backward_(divides_backward) {
  for (const auto& [name, t] : parameters_) parallel::data_parallel_hooks::check(name, *t);
  const comm_options control{.timeout = o.timeout, .control = true};
  communicator& all = distributed_context::ranks();
  stages_ = group_along(all, sizes_, mesh_axis::pp, mesh_axis::pp, control);
  data_ = group_along(all, sizes_, mesh_axis::dp, mesh_axis::ep, control);
  if (layers_) layer_rank_.divides_layers(layers_->size(), layers_->rank());
  owners_ = sizes_.dp == 1
                ? std::shared_ptr<communicator>(std::shared_ptr<void>(), &all)
                : all.split_by([&](int r) { return sizes_.coordinate(r, mesh_axis::dp); }, control);
}

WEFT_DEFINE pipeline_context::~pipeline_context() = default;

WEFT_DEFINE void pipeline_context::prepare(index_t micro_batches, const visit_function& visit) {
  if (holds_parameters()) return;
  model().require_unchanged("pipeline");
  use_schedule(micro_batches);
  const std::vector<reading> readings = readings_of(visit);
  divide(readings);
  find_tied(readings);
  hold_own(readings);
}

WEFT_DEFINE step_result pipeline_context::step(parallel::step_statements& statements, index_t micro_batches,
                                               step_options o) {
  using parallel::detail::abort_on_error;
  const record_function range("step");
  o.micro_batches = micro_batches;
  check(o);  // before gradients are computed
  model().require_unchanged("step");
  check_optimizer();
  const in_statement inside(*this);
  if (o.graph)
    throw usage_error("weft: step: a step of a pipeline, whose stages wait for messages, cannot be recorded "
                      "(.graph = true)");
  // Ranks with different numbers of micro-batches would wait for each other's messages, so the labels are
  // compared first.
  communicator& all = ranks();
  statements.set_ranks_of_stage({data_.get(), layers_.get(), stages_->size() == 1 ? &all : nullptr});
  all.barrier(control(parallel::step_label(micro_batches))).wait();
  use_schedule(micro_batches);
  if (!schedule_.flush) parallel::refuse_without_flush(options(), o.clip, scales_loss());
  parallel::pipeline_step of_step(*this, statements, schedule_);
  prepare(micro_batches, [&](const parallel::stage_events& events) {
    index_t blocks = 0;
    abort_on_error(all, of_step, [&] { blocks = statements.visit(0, parallel::no_blocks, events).blocks; });
    return blocks;
  });
  const communication before = communicated();
  const auto count = static_cast<std::size_t>(micro_batches * groups().data().size());
  const auto size = static_cast<std::size_t>(all.size());
  recycled_vector<double> figures(count + 2 * size, 0.0);  // the losses, and the times of each rank
  const std::span losses = std::span(figures).first(count), times = std::span(figures).subspan(count);
  number_of_step_ = static_cast<std::uint64_t>(optimizer_steps());
  const passes_of_step passes(*this);
  if (!schedule_.flush) begin_update();
  abort_on_error(all, of_step, [&] { of_step.execute(losses); });
  records_ = of_step.records();
  began_ = of_step.begin();
  of_step.set_times(times.subspan(2 * static_cast<std::size_t>(all.rank()), 2));
  // If stages disagree about join(), all of them get an error that names the labels.
  const std::string label =
      joins() > 0 ? weft::detail::joined({"losses after ", joins(), " calls of join()"}) : "losses";
  all.all_reduce(std::span(figures), reduction::sum, control(label)).wait();
  check_joins(micro_batches);
  step_result r = mean_of(losses, counted(static_cast<index_t>(losses.size())), o);
  r.bubble_fraction = parallel::detail::idle_fraction(times);
  if (schedule_.flush) r.norm = distributed_context::step(o);
  else r.norm = std::numeric_limits<double>::quiet_NaN(), end_step();
  passes.end();
  set_communication(r, before);
  return r;
}

WEFT_DEFINE parallel::state_ptr pipeline_context::eval(const chunk_function& evaluate) {
  const in_statement inside(*this);
  const random_state start = randomness();
  if (!holds_parameters()) use_any_schedule();
  prepare(schedule_.micro_batches, [&](const parallel::stage_events& events) {
    const index_t blocks = evaluate(parallel::no_blocks, events).blocks;
    set_randomness(start);
    return blocks;
  });
  parallel::stage_messages messages(*stages_, where());
  parallel::state_ptr value, passed;
  int computes = -1;  // the stage
  for (int c = 0; c < schedule_.chunks(); ++c) {
    if (!on_this_stage(c)) continue;
    set_randomness(start);
    const evaluated_chunk found = eval_chunk(evaluate, c, messages, passed);
    computes = schedule_.stage_of[static_cast<std::size_t>(chunk_after(found.blocks))];
    if (!value || chunks_[static_cast<std::size_t>(c)].holds(found.blocks)) value = found.value;
  }
  messages.complete();
  const parallel::state_ptr result = computes == stage() ? value : parallel::state_like(*value, where());
  if (stages_->size() > 1) parallel::share_elements(*stages_, result, computes, control("value"));
  return result;
}

WEFT_DEFINE pipeline_context::evaluated_chunk pipeline_context::eval_chunk(const chunk_function& evaluate,
                                                                           int c,
                                                                           parallel::stage_messages& messages,
                                                                           parallel::state_ptr& passed) {
  using kind = pipeline::step_kind;
  const auto enter = [&](const tensor_state& x) {
    if (on_this_stage(c - 1)) return std::exchange(passed, nullptr);
    const pipeline::step step{kind::receive_activation, c, 0};
    messages.receive(schedule_, step, x, control(""));
    return messages.take(step);
  };
  const auto leave = [&](const parallel::state_ptr& x) {
    if (c + 1 == schedule_.chunks()) return;  // refused by chunk_after
    if (on_this_stage(c + 1)) passed = x;
    else messages.send(schedule_, {kind::send_activation, c, 0}, x, control(""));
  };
  return evaluate(chunks_[static_cast<std::size_t>(c)], {.enter = enter, .leave = leave});
}

WEFT_DEFINE std::string pipeline_context::to_string() const {
  double all = 0;
  for (const double c : costs_) all += c;
  std::string text;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const std::string part = detail::fixed(all > 0 ? 100 * costs_[c] / all : 0.0, 1) + "%";
    text += "chunk " + std::to_string(c) + ": stage " + std::to_string(schedule_.stage_of[c]) + ", blocks " +
            std::to_string(chunks_[c].first) + " to " + std::to_string(chunks_[c].last - 1) + ", " + part +
            " of the cost\n";
  }
  return text;
}

WEFT_DEFINE axis_bytes pipeline_context::sent_by_axis() const {
  axis_bytes all = distributed_context::sent_by_axis();
  all[static_cast<std::size_t>(mesh_axis::pp)] += payload(stages_->sent());
  return all;
}

WEFT_DEFINE distributed_context::communication pipeline_context::communicated() const {
  communication all = distributed_context::communicated();  // by_axis already includes the stages' traffic
  all.sent += stages_->sent();
  all.waited_ms += stages_->waited_ms();
  return all;
}

WEFT_DEFINE void pipeline_context::deliver_gradients() {
  distributed_context::deliver_gradients();
  if (tied_) tied_->deliver(local(), groups().labelled(" of all micro-batches"));
}

WEFT_DEFINE void pipeline_context::drop_gradients() {
  if (holds_parameters()) {
    tied_->complete();
    return distributed_context::drop_gradients();
  }
  for (const auto& [name, p] : parameters_) p->grad.reset();
}

WEFT_DEFINE bool pipeline_context::counts(const std::string& name, const tensor_state& p) const {
  return !tied_->owned_elsewhere(name) && distributed_context::counts(name, p);
}

WEFT_DEFINE void pipeline_context::use_schedule(index_t micro_batches) {
  if (schedule_.micro_batches == micro_batches) return;
  pipeline::schedule s =
      parallel::usable_schedule(settings_.schedule(sizes_.pp, static_cast<int>(micro_batches)), sizes_.pp,
                                micro_batches, divides_backward_);
  if (!schedule_.stage_of.empty() && s.stage_of != schedule_.stage_of)
    refuse<usage_error>({"weft: pipeline: the schedule for ", micro_batches,
                         " micro-batches puts chunks on other stages than the previous one"});
  if (holds_parameters()) tied_->check(s);
  schedule_ = std::move(s);
}

WEFT_DEFINE void pipeline_context::use_any_schedule() {
  for (const int of_stage : {1, 2}) try {
      return use_schedule(of_stage * sizes_.pp);
    } catch (const usage_error&) {
    } catch (const value_error&) {}
  refuse<usage_error>(
      {"weft: pipeline: the first step determines for how many micro-batches the schedule is, and there is "
       "no schedule for ",
       sizes_.pp, " or ", 2 * sizes_.pp, " of them: call run.prepare(loss, micro_batches) before run.eval"});
}

WEFT_DEFINE pipeline_context::in_statement::in_statement(pipeline_context& run) : run_(run) {
  if (run_.in_statement_)
    throw usage_error(
        "weft: pipeline: step, eval or prepare was called inside a loss or value, which the stages compute "
        "at different times: call it before the step");
  run_.in_statement_ = true;
}

WEFT_DEFINE std::vector<pipeline_context::reading> pipeline_context::readings_of(
    const visit_function& visit) {
  std::vector<reading> readings;
  const parallel::stage_events events{
      .visit = [&](index_t blocks, const runtime::operands& o, const runtime::plan_view& p) {
        readings.push_back(
            {blocks, o.leaves,
             parallel::modelled_cost(p, runtime::resolve_symbols(p, o.leaves, o.sizes, layer_rank()))});
      }};
  blocks_ = visit(events);
  return readings;
}

WEFT_DEFINE void pipeline_context::divide(const std::vector<reading>& readings) {
  std::vector<double> cost(static_cast<std::size_t>(blocks_), 0.0);
  double before = 0;
  for (const reading& r : readings)
    (r.blocks == 0 ? before : cost[static_cast<std::size_t>(r.blocks - 1)]) += r.cost;
  const int chunks = schedule_.chunks();
  chunks_ = settings_.blocks.empty() ? parallel::divided_by_cost(cost, before, chunks)
                                     : parallel::divided_by_list(settings_.blocks, blocks_, chunks);
  agree_on_chunks();
  costs_.clear();
  for (const parallel::block_range& c : chunks_) {
    costs_.push_back(c.first == 0 ? before : 0.0);
    for (index_t b = c.first; b < c.last; ++b) costs_.back() += cost[static_cast<std::size_t>(b)];
  }
}

WEFT_DEFINE void pipeline_context::agree_on_chunks() {
  std::vector<std::int64_t> ends;
  for (const parallel::block_range& c : chunks_) ends.push_back(c.last);
  ranks().broadcast(ends, 0, control("chunks")).wait();
  index_t first = 0;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c] = {first, ends[c]};
    first = ends[c];
  }
}

WEFT_DEFINE std::vector<int> pipeline_context::chunks_that_read(const std::vector<reading>& readings,
                                                                const tensor_state* t) const {
  std::vector<int> found;
  for (int c = 0; c < schedule_.chunks(); ++c)
    if (std::any_of(readings.begin(), readings.end(), [&](const reading& r) {
          return chunks_[static_cast<std::size_t>(c)].holds(r.blocks) &&
                 std::any_of(r.leaves.begin(), r.leaves.end(), [&](const auto& l) { return l.get() == t; });
        }))
      found.push_back(c);
  return found.empty() ? std::vector<int>{0} : found;
}

WEFT_DEFINE std::vector<int> pipeline_context::stages_of(const std::vector<int>& chunks) const {
  std::vector<int> stages;
  for (const int c : chunks)
    if (const int s = schedule_.stage_of[static_cast<std::size_t>(c)];
        std::find(stages.begin(), stages.end(), s) == stages.end())
      stages.push_back(s);
  return stages;
}

WEFT_DEFINE void pipeline_context::find_tied(const std::vector<reading>& readings) {
  std::vector<parallel::tied_parameter> tied;
  for (const auto& [name, t] : parameters_)
    if (const std::vector<int> chunks = chunks_that_read(readings, t.get()); chunks.size() > 1)
      tied.push_back({name, t, chunks, stages_of(chunks)});
  tied_ = std::make_unique<parallel::tied_gradients>(std::move(tied), schedule_.stage_of, *stages_, where(),
                                                     2 * schedule_.chunks(), options().deterministic);
  tied_->check(schedule_);
}

WEFT_DEFINE void pipeline_context::hold_own(const std::vector<reading>& readings) {
  state_dict_t whole = parameters_;
  whole.insert(whole.end(), buffers_.begin(), buffers_.end());
  // The statement was written earlier, but nothing has been computed from it, so it may read the values of
  // rank 0.
  recycled_vector<std::uint64_t> versions;
  for (const auto& [name, t] : whole) versions.push_back(t->version());
  communicator& all_ranks = ranks();
  const std::shared_ptr<communicator> alike =
      sizes_.tp == 1
          ? std::shared_ptr<communicator>(std::shared_ptr<void>(), &all_ranks)
          : all_ranks.split_by([&](int r) { return sizes_.coordinate(r, mesh_axis::tp); }, control(""));
  parallel::begin_as_first(*alike, control(""), where(), whole);
  state_dict_t own[2];
  std::vector<int> chunk_of;  // for each of these parameters, the first chunk on this stage that reads it
  std::vector<model_tensor> model;
  const state_dict_t* const all[] = {&parameters_, &buffers_};
  for (int k = 0; k < 2; ++k)
    for (const auto& [name, t] : *all[k]) {
      const std::vector<int> chunks = chunks_that_read(readings, t.get());
      model.push_back({name, t, schedule_.stage_of[static_cast<std::size_t>(chunks[0])], k == 1});
      const auto here = std::find_if(chunks.begin(), chunks.end(), [&](int c) { return on_this_stage(c); });
      if (here == chunks.end()) {  // another stage has it
        free_elements(name, *t, true);
        continue;
      }
      own[k].emplace_back(name, t);
      if (k == 0) chunk_of.push_back(*here);
    }
  hold(own[0], own[1], data_, owners_, chunk_of, layers_);
  hold_some(std::move(model), stages_);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i].second->version() = versions[i];
}

WEFT_DEFINE int pipeline_context::chunk_after(index_t blocks) const {
  for (int c = 0; c < schedule_.chunks(); ++c)
    if (chunks_[static_cast<std::size_t>(c)].holds(blocks)) return c;
  refuse_blocks(blocks);
}

WEFT_DEFINE void pipeline_context::refuse_blocks(index_t found) const {
  refuse<usage_error>({"weft: pipeline: a statement with ", found,
                       " blocks (of repeats), but the model was divided by one with ", blocks_,
                       ": all losses must apply all blocks, and values no more than those"});
}

WEFT_DEFINE void pipeline_context::before_backward(int chunk, int micro_batch) {
  auto [withheld, found] = tied_->before_backward(chunk, micro_batch, groups().labelled(""));
  take_over(std::move(withheld), std::move(found));
}

WEFT_DEFINE void pipeline_context::after_backward(int chunk, int micro_batch) {
  tied_->after_backward(chunk, micro_batch, groups().labelled(""));
}

WEFT_DEFINE void pipeline_context::complete_gradients() {
  distributed_context::deliver_gradients();
  tied_->share(local(), groups().labelled(""));
}

}  // namespace weft
