// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/distributed_context.hpp>.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include <weft/base/config.hpp>
#include <weft/optim/clip.hpp>
#include <weft/parallel/distributed_context.hpp>
#include <weft/parallel/norm.hpp>

namespace weft {

namespace parallel::detail {
inline device device_of(const state_dict_t& parameters) {
  if (parameters.empty()) weft::detail::refuse_step(false);
  return parameters.front().second->where;
}

inline const parallel_options& checked(const parallel_options& o) {
  const auto require = [](bool holds, const char* field, index_t value) {
    if (!holds) refuse<usage_error>({"weft: bind: ", field, " is ", value});
  };
  require(o.local_steps >= 1, "local_steps", o.local_steps);
  require(o.prefetch >= 0, "prefetch", o.prefetch);
  require(o.bucket_bytes >= 0, "bucket_bytes", o.bucket_bytes);
  require(o.first_bucket_bytes >= 0, "first_bucket_bytes", o.first_bucket_bytes);
  return o;
}
}  // namespace parallel::detail

WEFT_DEFINE distributed_context::distributed_context(parallel::bound_model model, const training& of,
                                                     std::shared_ptr<communicator> ranks,
                                                     const parallel_options& o)
    : context(parallel::detail::device_of(model.parameters())),
      model_(std::move(model)),
      options_(parallel::detail::checked(o)),
      ranks_(std::move(ranks)),
      training_(of),
      number_(ranks_->count_run()) {
  training_.state->keep_for(alive_);
  if (training_.scales_loss && o.hook)
    throw usage_error(
        "weft: bind: a hook may keep unsent gradients at the loss scale of their step, which changes with "
        "f16; use bf16");
  set_scale();
  if (o.offload_optimizer) training_.state->keep_on(*o.offload_optimizer);
}

WEFT_DEFINE void distributed_context::hold(const state_dict_t& parameters, const state_dict_t& buffers,
                                           std::shared_ptr<communicator> data,
                                           std::shared_ptr<communicator> owners,
                                           const std::vector<int>& chunks,
                                           std::shared_ptr<communicator> layers) {
  data_ranks_ = data ? std::move(data) : ranks_;
  state_dict_t held = parameters;
  std::vector<int> held_chunks = chunks;
  if (const auto& among = experts_divided_.among) {
    held.clear();
    held_chunks.clear();
    parallel::begin_as_first(*data_ranks_, control("first values"), where(), parameters);
    std::vector<model_tensor> all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, p] = parameters[i];
      const int owner = experts_divided_.owner_of(*p);
      all.push_back({name, p, owner, false});
      if (owner != parallel::every_rank && owner != among->rank()) {
        free_elements(name, *p);
        continue;
      }
      held.push_back(parameters[i]);
      if (!chunks.empty()) held_chunks.push_back(chunks[i]);
    }
    for (const auto& [name, b] : buffers) all.push_back({name, b, parallel::every_rank, true});
    hold_some(std::move(all), among);
    if (!owners && options_.divide == sharding::none) owners = among;
  }
  parallel_.emplace(held, buffers, *data_ranks_, options_, where(), std::move(owners), held_chunks,
                    experts_divided_);
  if (layers) layer_rank_.divides_layers(layers->size(), layers->rank());
  if (groups().data().size() > 1 || options_.deterministic || layers) hooks_ = &*parallel_;
  if (layers) parallel_->divide_layers(std::move(layers));
  parallel_->groups().divide_context(context_);
  parallel_->groups().set_run(number_);
  parallel_->groups().set_step(0);
  local_ = parallel_->local();
  compared_ = parallel_->local_of_all_ranks();
  const random_state now = randomness();
  if (now.step == 0 && now.programs == 0 && part_of(micro_batch(0, 1)) != 0) begin_step(0);
}

WEFT_DEFINE void distributed_context::check(const step_options& o) {
  detail::require_limit("step: clip", o.clip);
  if (o.micro_batches < 1) refuse<value_error>({"weft: step: ", o.micro_batches, " micro-batches"});
}

WEFT_DEFINE pending_number distributed_context::step(const step_options& o) {
  check(o);
  model_.require_unchanged("step");
  check_optimizer();
  const auto passes = static_cast<index_t>(backward_passes() - passes_seen_);
  if (passes == 0)
    throw usage_error(
        "weft: step: no backward pass has gone through this run since the last step: make the tape with "
        "`tape steps(run)` and call steps.backward(loss) before each step");
  const index_t micro_batches = joins_.empty() ? o.micro_batches : static_cast<index_t>(joins_.size());
  deliver_gradients();
  require_agreement(micro_batches, passes);
  if (passes < micro_batches)
    refuse<usage_error>({"weft: step: there ", passes == 1 ? "was " : "were ", passes, " backward pass",
                         passes == 1 ? "" : "es", " since the last step, but gradients of ", micro_batches,
                         " micro-batches are to be averaged: for several losses in one backward pass, take "
                         "their mean; run.zero_grad() starts the step over"});
  passes_seen_ = backward_passes();
  const double mean = mean_factor(o);
  return apply(measured(o, mean), mean > 0);
}

WEFT_DEFINE void distributed_context::deliver_gradients() {
  if (!hooks_) return;
  if (training_.scales_loss && parallel_->has_other_gradients())
    throw usage_error(
        "weft: step: tapes of other contexts have left gradients in an f16 model without its loss scale: "
        "drop them with run.zero_grad(), or use bf16");
  parallel_->deliver_gradients();
}

WEFT_DEFINE void distributed_context::zero_grad() {
  drop_gradients();
  // Calls of join() after the last of these passes belong to the next ones.
  const auto next = std::find_if(joins_.begin(), joins_.end(),
                                 [&](const joined_batch& j) { return j.passes == backward_passes(); });
  joins_.erase(joins_.begin(),
               in_passes_ ? joins_.begin() + static_cast<std::ptrdiff_t>(joins_of_passes_) : next);
  weigh(joins_.empty() ? 1 : joins_.back().weight, position_weight_);
  in_passes_ = false;
  passes_seen_ = backward_passes();
}

WEFT_DEFINE void distributed_context::begin_passes() {
  if (in_passes_) zero_grad();
  in_passes_ = true;
}

WEFT_DEFINE void distributed_context::end_passes() {
  joins_.clear();
  weigh(1, position_weight_);
  in_passes_ = false;
}

WEFT_DEFINE void distributed_context::begin_together(index_t micro_batches) const {
  for (communicator* c : {groups().layers(), context_ ? &context_->ranks() : nullptr,
                          experts_divided_.among.get()})
    if (c && c->size() > 1) c->barrier(control(parallel::step_label(micro_batches))).wait();
}

WEFT_DEFINE void distributed_context::require_agreement(index_t micro_batches, index_t passes) {
  communicator& data = groups().data();
  if (data.size() == 1 || !hooks() || options_.local_steps > 1) return;
  std::uint64_t has_gradient = 0;
  for (const auto& [name, p] : compared_) has_gradient = mix(has_gradient, !!p->grad);
  const auto which = static_cast<std::int64_t>(has_gradient);
  const std::vector<bool> same =
      parallel::same_on_all(data, {micro_batches, passes < micro_batches, which}, control("step"));
  if (!same[0] || !same[1] || !same[2]) refuse_disagreement(micro_batches, passes);
}

WEFT_DEFINE void distributed_context::refuse_disagreement(index_t micro_batches, index_t passes) {
  communicator& data = groups().data();
  std::vector<std::int64_t> mine{micro_batches, passes};
  for (const auto& [name, p] : compared_) mine.push_back(!!p->grad);
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(data.size()));
  data.all_gather(mine, all, {}, control("step")).wait();
  for (int r = 1; r < data.size(); ++r) {
    const std::int64_t* const other = all.data() + mine.size() * static_cast<std::size_t>(r);
    if (other[0] != all[0])
      refuse<usage_error>({"weft: step: rank 0 has ", all[0], " micro-batches and rank ", r, " has ",
                           other[0],
                           ": ranks that process different data must have equally many in a step (run.join "
                           "is for ranks without a batch)"});
    if (std::min(other[1], all[1]) < micro_batches)
      refuse<usage_error>({"weft: step: of ", micro_batches, " micro-batches, rank 0 has had ", all[1],
                           " backward passes and rank ", r, " has had ", other[1]});
    for (std::size_t i = 0; i < compared_.size(); ++i)
      if (other[i + 2] != all[i + 2])
        refuse<usage_error>({"weft: step: parameter ", compared_[i].first, " has a gradient on rank ",
                             all[i + 2] ? 0 : r, " and none on rank ", all[i + 2] ? r : 0,
                             ": the losses of ranks that process different data must read the same "
                             "parameters; add 0 times its sum to the loss that does not"});
  }
  throw usage_error("weft: step: ranks disagree about the gradients that they have");
}

WEFT_DEFINE void distributed_context::check_joins(index_t micro_batches) const {
  if (joins() > 0 && joins() != micro_batches)
    refuse<usage_error>(
        {"weft: step: join() was called ", joins(), " times for ", micro_batches, " micro-batches"});
}

WEFT_DEFINE double distributed_context::mean_factor(const step_options& o) {
  const bool local = options_.local_steps > 1;
  const int ranks = local ? 1 : groups().data().size();
  index_t count = counted(o.micro_batches * ranks);
  if (local && !joins_.empty())
    count = std::count_if(joins_.begin(), joins_.end(), [](const joined_batch& j) { return j.weight > 0; });
  joins_.clear();
  in_passes_ = false;
  return count == 0 ? 0 : 1.0 / static_cast<double>(count);
}

WEFT_DEFINE parallel::gradient_measure distributed_context::measured(const step_options& o, double mean) {
  const parallel::gradient_measure m = parallel::measured_gradients(
      *this, owned_gradients(), groups().owners(), in_step("norm"), mean, loss_scale, o.clip);
  if (!m.exists && where()->computes()) {
    parallel_->parameters_changed();  // ends the step
    detail::refuse_step(true);
  }
  return m;
}

WEFT_DEFINE pending_number distributed_context::apply(const parallel::gradient_measure& measured,
                                                      bool any_counts) {
  weigh(1, position_weight_);
  begin_update();
  const bool is_finite =
      !training_.scales_loss || !where()->computes() || scaler_.update(std::isfinite(measured.norm.value()));
  if (is_finite && any_counts) update_local(measured.scale);
  else
    for (const auto& [name, p] : local_) p->grad.reset();
  set_scale();
  end_step();
  return measured.norm;
}

WEFT_DEFINE step_result distributed_context::complete_step(const tensor_list& losses,
                                                           std::span<const double> weights,
                                                           const step_options& o, const communication& before,
                                                           const std::function<pending_number()>& update) {
  communicator& data = groups().data();
  const index_t own = static_cast<index_t>(losses.size());
  check_joins(own);
  std::vector<double> all(losses.size() * static_cast<std::size_t>(data.size()));  // of all ranks
  const index_t count = counted(static_cast<index_t>(all.size()));
  const auto read = [&](const recycled_vector<double>& numbers) {
    for (index_t j = 0; j < own; ++j)
      all[static_cast<std::size_t>(part_of(micro_batch(j, own)))] =
          weights[static_cast<std::size_t>(j)] * numbers[static_cast<std::size_t>(j)];
    if (data.size() > 1) data.all_reduce(std::span(all), reduction::sum, in_step("losses")).wait();
    return mean_of(all, count, o);
  };
  step_result r;
  if (o.finite || data.size() > 1) {  // before parameters change, or while messages are in flight
    r = read(numbers_in(losses));
    r.norm = update();
  } else {
    tensor_list numbers = losses;
    const pending_number norm = update();
    if (norm.pending()) numbers.push_back(norm.pending());
    recycled_vector<double> values = numbers_in(numbers);
    const double last = values.back();
    r = read(values);
    r.norm = norm.pending() ? last : norm.value();
  }
  set_communication(r, before);
  return r;
}

WEFT_DEFINE void distributed_context::deliver_for(const char* what) {
  prepared();
  if (backward_passes() == passes_seen_ && !begins_update_)
    refuse<usage_error>({"weft: ", what,
                         ": no backward pass has gone through this run since the last step, which consumed "
                         "the gradients: step() returns their norm; call ",
                         what, "() before it"});
  deliver_gradients();
}

WEFT_DEFINE double distributed_context::gradient_norm() {
  deliver_for("gradient_norm");
  return parallel::norm_over_ranks(*this, owned_gradients(), groups().owners(), in_step("norm")) / loss_scale;
}

WEFT_DEFINE double distributed_context::gradient_inf_norm() {
  deliver_for("gradient_inf_norm");
  return parallel::inf_norm_over_ranks(*this, owned_gradients(), groups().owners(), in_step("norm")) /
         loss_scale;
}

WEFT_DEFINE int distributed_context::join(bool has_batch) {
  std::vector<std::int32_t> having(static_cast<std::size_t>(data_ranks().size()));
  having[static_cast<std::size_t>(data_ranks().rank())] = has_batch;
  data_ranks().all_reduce(having, reduction::sum, in_step("join")).wait();
  const auto first = std::find(having.begin(), having.end(), 1);
  const auto count = static_cast<int>(std::count(first, having.end(), 1));
  weigh(has_batch || count == 0 ? 1 : 0, position_weight_);
  if (count == 0) return 0;  // no micro-batch is computed
  joins_.push_back({batch_weight_, count, backward_passes()});
  counted_first_ = static_cast<int>(first - having.begin());
  return count;
}

WEFT_DEFINE void distributed_context::divide_experts(parallel::expert_division by) {
  if (by.among && options_.local_steps > 1)
    throw usage_error(
        "weft: bind: ranks that divide experts must agree on all other parameters in every step: local_steps "
        "cannot be combined with the axis ep");
  experts_divided_ = std::move(by);
  experts_ = experts_divided_.exchange.get();
}

WEFT_DEFINE void distributed_context::free_elements(const std::string& name, tensor_state& t,
                                                    bool by_stages) {
  t.memory = buffer();
  auto of = std::make_shared<division>(division{name, t.whole(), {}});
  of->on_other_stage = by_stages;
  t.divided = std::move(of);
}

WEFT_DEFINE communicator& distributed_context::layer_ranks() const {
  if (!groups().layers()) throw usage_error("weft: layer_ranks: the policy has no axis tp");
  return *groups().layers();
}

WEFT_DEFINE void distributed_context::set_communication(step_result& r, const communication& before) const {
  const communication now = communicated();
  r.sent = now.sent - before.sent;
  r.sent_by_axis = difference(now.by_axis, before.by_axis);
  r.waited_ms = now.waited_ms - before.waited_ms;
}

WEFT_DEFINE step_result distributed_context::mean_of(std::span<const double> losses, index_t count,
                                                     const step_options& o) const {
  step_result r;
  for (const double l : losses) r.loss += l;
  r.loss /= static_cast<double>(count);
  if (o.finite && where()->computes())
    for (std::size_t i = 0; i < losses.size(); ++i)
      if (!std::isfinite(losses[i]))
        throw non_finite_error(static_cast<std::int64_t>(i) / options_.context_ranks);
  return r;
}

WEFT_DEFINE void distributed_context::divide_context(std::shared_ptr<parallel::context_service> by) {
  context_ = std::move(by);
  if (parallel_) parallel_->groups().divide_context(context_);
}

WEFT_DEFINE void distributed_context::begin_update() {
  struct scope {
    bool& is_open;
    ~scope() { is_open = false; }
  };
  const scope callbacks{begins_update_ = true};
  for (const auto& f : std::exchange(before_update_, {})) f();
}

WEFT_DEFINE void distributed_context::update_once(std::int64_t updates, index_t j) {
  const auto at = static_cast<std::size_t>(j);
  const index_t count = at < joins_.size() ? joins_[at].counted : groups().data().size();
  *training_.steps = updates;
  update_local(1.0 / (loss_scale * static_cast<double>(count)));
  parallel_->parameters_changed();
}

WEFT_DEFINE void distributed_context::end_step() {
  parallel_->groups().set_step(++steps_);
  const bool meets = steps_ % options_.local_steps == 0;
  if (options_.local_steps > 1 && groups().data().size() > 1 && meets) parallel_->average_parameters();
  if (options_.broadcast_buffers && meets) parallel_->broadcast_buffers(counted_first_);
  counted_first_ = 0;
  parallel_->parameters_changed();
}

WEFT_DEFINE void distributed_context::refuse_unprepared() {
  throw usage_error(
      "weft: which parameters this rank holds is not known before the first step of a pipeline: take it, "
      "or call run.prepare(loss, micro_batches)");
}

WEFT_DEFINE tensor_list distributed_context::owned_gradients() const {
  tensor_list all;
  for (const auto& [name, p] : local_)
    if (p->grad && counts(name, *p) && counts_beside_experts(*p)) all.push_back(p->grad);
  return all;
}

WEFT_DEFINE bool distributed_context::counts(const std::string&, const tensor_state& p) const {
  return parallel::is_first_in_layer(p, static_cast<int>(layer_rank().rank));
}

WEFT_DEFINE bool distributed_context::counts_beside_experts(const tensor_state& p) const {
  const communicator* const among = experts_divided_.among.get();
  return !among || among->rank() == 0 || groups().parts() > 1 ||
         experts_divided_.owner_of(p) != parallel::every_rank;
}

}  // namespace weft
