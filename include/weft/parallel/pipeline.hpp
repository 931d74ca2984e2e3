// SPDX-License-Identifier: MIT
// Pipeline parallelism: stages of ranks hold runs of blocks and pass micro-batches on.
//
//   using plan = policy<strategy::mesh<pp<pipeline::one_f_one_b>, dp>>;
//   auto run = bind<plan>(model, optimizer, ranks, {.pp = 2, .dp = 2});
//   auto r = run.step(8, [&](index_t j) { return cross_entropy(model(x[j]), y[j]); }, {.clip = 1.0});
//
// The model is unchanged: its statement is divided where it applies `repeat`s, between blocks. Every rank
// calls the loss for all micro-batches, and executes the programs of its own chunks. Which parameters a rank
// holds follows from the statement: it is known after the first step, or after run.prepare(statement,
// micro_batches). The elements of all others are freed, or, on a deferred device, never created.
#pragma once

#include <limits>

#include <weft/parallel/bind.hpp>
#include <weft/parallel/pipeline_axis.hpp>
#include <weft/parallel/pipeline_step.hpp>
#include <weft/parallel/stage_division.hpp>

namespace weft {

/// A run whose ranks hold stages of the model. Tapes written by hand and `step(options)` do not apply: a step
/// is `step(micro_batches, loss)`.
template <class Optimizer, class Options = program_options<>, bool DividesBackward = false>
class pipeline_run : public bound_run<Optimizer, Options> {
  using base = bound_run<Optimizer, Options>;
  template <class, class>
  friend class parallel::pipeline_step;

 public:
  static constexpr bool divides_backward = DividesBackward;

  [[gnu::cold]] pipeline_run(const state_dict_t& parameters, const state_dict_t& buffers,
                             Optimizer& optimizer, std::shared_ptr<communicator> ranks,
                             const parallel_options& o, pipeline_options p,
                             std::shared_ptr<communicator> layers)
      : base(base::device_of(parameters), optimizer, std::move(ranks), o),
        parameters_(parameters),
        buffers_(buffers),
        sizes_(parallel::pipeline_mesh(o, base::ranks().size())),
        settings_(std::move(p)),
        layers_(std::move(layers)) {
    for (const auto& [name, t] : parameters_) parallel::data_parallel_hooks::check(name, *t);
    const comm_options control{.timeout = o.timeout, .control = true};
    communicator& all = base::ranks();
    stages_ = group_along(all, sizes_, mesh_axis::pp, mesh_axis::pp, control);
    data_ = group_along(all, sizes_, mesh_axis::dp, mesh_axis::cp, control);
    if (layers_) base::layer_rank_.divides_layers(layers_->size(), layers_->rank());
    owners_ = sizes_.dp == 1
                  ? std::shared_ptr<communicator>(std::shared_ptr<void>(), &all)
                  : all.split_by([&](int r) { return sizes_.coordinate(r, mesh_axis::dp); }, control);
  }

  /// Divides the model among the stages, as the first step does: `statement` is a loss of the model, of which
  /// nothing is computed. Call it before reading a checkpoint or exporting a model that has not been trained.
  /// Collective. Throws usage_error if the schedule has more chunks than the statement has blocks.
  template <expression E>
  void prepare(const E& statement, index_t micro_batches) {
    if (base::holds_parameters()) return;
    use_schedule(micro_batches);
    const std::vector<reading> readings = readings_of(statement);
    divide(readings);
    find_tied(readings);
    hold_own(readings);
  }

  /// Executes a training step; see bound_run. Every rank calls `loss` for all micro-batches. If `loss` or a
  /// program throws on one rank, the others get a comm_error that names it, the chunk and the micro-batch.
  /// A schedule without a flush updates parameters once for each micro-batch: `norm` is NaN, and when
  /// non_finite_error is thrown, parameters have changed.
  template <class Loss>
    requires std::invocable<Loss&, index_t>
  step_result step(index_t micro_batches, Loss loss, step_options o = {}) {
    o.micro_batches = micro_batches;
    base::check(o);
    // Ranks with different numbers would wait for messages of each other: the labels are compared first.
    base::ranks().barrier(control("a step of " + std::to_string(micro_batches) + " micro-batches")).wait();
    use_schedule(micro_batches);
    if (!schedule_.flush) parallel::refuse_without_flush(base::options(), o.clip, base::scales_loss);
    parallel::pipeline_step<pipeline_run, Loss> of_step(*this, loss, schedule_);
    if (!base::holds_parameters()) {
      abort_on_error(of_step, [&] { of_step.of(0); });
      prepare(of_step.of(0), micro_batches);
    }
    const typename base::communication before = communicated();
    const auto count = static_cast<std::size_t>(micro_batches * base::groups().data().size());
    const auto ranks = static_cast<std::size_t>(base::ranks().size());
    recycled_vector<double> figures(count + 2 * ranks, 0.0);  // the losses, and the times of each rank
    const std::span losses = std::span(figures).first(count), times = std::span(figures).subspan(count);
    number_of_step_ = static_cast<std::uint64_t>(base::optimizer().steps);
    if (!schedule_.flush) base::begin_update();
    abort_on_error(of_step, [&] { of_step.execute(losses); });
    records_ = of_step.records();
    began_ = of_step.begin();
    of_step.set_times(times.subspan(2 * static_cast<std::size_t>(base::ranks().rank()), 2));
    base::ranks().all_reduce(std::span(figures), reduction::sum, control("losses")).wait();
    step_result r = base::mean_of(losses, o);
    r.bubble_fraction = idle_fraction(times);
    if (schedule_.flush) r.norm = base::step(o);
    else r.norm = std::numeric_limits<double>::quiet_NaN(), base::end_step();
    base::set_communication(r, before);
    return r;
  }

  /// Computes `e`, a statement of the model, on the stages, and returns its value on every rank. Nothing is
  /// recorded. Collective. Throws usage_error if `e` has more blocks than the statement that the model was
  /// divided by.
  template <expression E>
  evaluated<E> eval(const E& e) {
    prepare(e, sizes_.pp);
    parallel::stage_messages messages(*stages_, this->where());
    const context::random_state start = this->randomness();
    std::shared_ptr<tensor_state> value, passed;
    int computes = -1;  // the stage
    for (int c = 0; c < schedule_.chunks(); ++c) {
      if (!on_this_stage(c)) continue;
      this->set_randomness(start);
      const auto [found, blocks] = eval_chunk(e, c, messages, passed);
      computes = schedule_.stage_of[static_cast<std::size_t>(chunk_after(blocks))];
      if (!value || chunks_[static_cast<std::size_t>(c)].holds(blocks)) value = found.state();
    }
    messages.complete();
    const parallel::state_ptr result =
        computes == stage() ? value : parallel::state_like(*value, this->where());
    if (stages_->size() > 1) parallel::share_elements(*stages_, result, computes, control("value"));
    return evaluated<E>(result);
  }

  /// Complete copies of all parameters, then of all buffers, by name. Collective.
  state_dict_t full() {
    state_dict_t all;
    const state_dict_t own = base::full();
    for (const auto* list : {&parameters_, &buffers_})
      for (const auto& [name, p] : *list) {
        const int owner = owner_of(name);
        const auto found =
            std::find_if(own.begin(), own.end(), [&, n = &name](const auto& o) { return o.first == *n; });
        parallel::state_ptr whole =
            owner == stage() ? found->second : make_state(this->where(), p->whole(), p->type);
        parallel::share_elements(*stages_, whole, owner, control(name));
        all.emplace_back(name, std::move(whole));
      }
    return all;
  }

  /// What this rank holds of the whole model: nothing of tensors that other stages hold. Of tied parameters
  /// one stage saves its copy.
  [[gnu::cold]] std::vector<held_tensor> held_tensors() const override {
    const std::vector<held_tensor> own = base::held_tensors();
    std::vector<held_tensor> all;
    for (const auto& [name, owner] : owner_) {  // in the order of the model
      const bool is_buffer = all.size() >= parameters_.size();
      const state_dict_t& list = is_buffer ? buffers_ : parameters_;
      const tensor_state& t = *list[all.size() - (is_buffer ? parameters_.size() : 0)].second;
      const auto here =
          std::find_if(own.begin(), own.end(), [n = &name](const held_tensor& h) { return h.name == *n; });
      all.push_back(
          here != own.end() ? *here : held_tensor{name, {t.type, t.whole()}, {}, nullptr, false, is_buffer});
      all.back().saves = all.back().saves && owner == stage();
    }
    return all;
  }

  /// One line for each chunk: its stage, its blocks, its part of the modelled cost.
  [[gnu::cold]] std::string to_string() const {
    double all = 0;
    for (const double c : costs_) all += c;
    std::string text;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      char part[16];
      std::snprintf(part, sizeof part, "%.1f%%", all > 0 ? 100 * costs_[c] / all : 0.0);
      text += "chunk " + std::to_string(c) + ": stage " + std::to_string(schedule_.stage_of[c]) +
              ", blocks " + std::to_string(chunks_[c].first) + " to " + std::to_string(chunks_[c].last - 1) +
              ", " + part + " of the cost\n";
    }
    return text;
  }

  /// When this rank executed the steps of the last training step, in seconds since `began()`. Computing steps
  /// do not include the time spent waiting for messages; a message is recorded when it is sent, and when it
  /// is read. measured_timing (stage_timing.hpp) returns those of all stages.
  const std::vector<pipeline::record>& records() const { return records_; }
  std::chrono::steady_clock::time_point began() const { return began_; }
  /// The ranks that hold the stages of one copy of the model, in the order of stages.
  communicator& stages() const { return *stages_; }
  int stage() const { return stages_->rank(); }
  /// The blocks of a chunk, in the order of evaluation.
  const parallel::block_range& blocks_of(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }
  const mesh_sizes& sizes() const { return sizes_; }

  axis_bytes sent_by_axis() const override {
    axis_bytes all = base::sent_by_axis();
    all[static_cast<std::size_t>(mesh_axis::pp)] += payload(stages_->sent());
    return all;
  }

 protected:
  const communicator& data_ranks() const override { return *data_; }
  typename base::communication communicated() const override {
    typename base::communication all = base::communicated();  // by_axis has that of the stages
    all.sent += stages_->sent();
    all.waited_ms += stages_->waited_ms();
    return all;
  }
  void deliver_gradients() override {
    base::deliver_gradients();
    if (tied_) tied_->deliver(base::local(), base::groups().labelled(" of all micro-batches"));
  }
  bool counts(const tensor_state& local) const override {
    for (const auto& [name, p] : base::local())
      if (p.get() == &local && tied_->owned_elsewhere(name)) return false;
    return base::layer_rank().rank == 0 || local.is_part_of_layer();
  }

 private:
  /// What a program of the statement reads, and its modelled cost.
  struct reading {
    index_t blocks;
    tensor_list leaves;
    double cost;
  };

  comm_options control(const std::string& label) const {
    return {.label = label, .timeout = base::options().timeout, .control = true};
  }

  /// The fraction of the time up to the last end during which ranks did not compute.
  static double idle_fraction(std::span<const double> times) {
    double busy = 0, end = 0;
    for (std::size_t i = 0; i < times.size(); i += 2) {
      busy += times[i];
      end = std::max(end, times[i + 1]);
    }
    return end > 0 ? 1 - 2 * busy / (end * static_cast<double>(times.size())) : 0;
  }

  void use_schedule(index_t micro_batches) {
    if (schedule_.micro_batches == micro_batches) return;
    pipeline::schedule s =
        parallel::usable_schedule(settings_.schedule(sizes_.pp, static_cast<int>(micro_batches)), sizes_.pp,
                                  micro_batches, DividesBackward);
    if (!schedule_.stage_of.empty() && s.stage_of != schedule_.stage_of)
      refuse<usage_error>({"weft: pipeline: the schedule for ", micro_batches,
                           " micro-batches puts chunks on other stages than the one before"});
    if (base::holds_parameters()) tied_->check(s);
    schedule_ = std::move(s);
  }

  bool on_this_stage(int chunk) const {
    return schedule_.stage_of[static_cast<std::size_t>(chunk)] == stage();
  }

  template <expression E>
  std::vector<reading> readings_of(const E& statement) {
    std::vector<reading> readings;
    const parallel::stage_events events{.visit = [&](index_t blocks, const runtime::operands& o,
                                                     const runtime::plan_view& p) {
      readings.push_back(
          {blocks, o.leaves,
           parallel::modelled_cost(p, runtime::resolve_symbols(p, o.leaves, o.sizes, base::layer_rank()))});
    }};
    tape<Options> unused(*this);
    parallel::stage_evaluator<tape<Options>> walk(unused, *this, parallel::no_blocks, events);
    const context::random_state now = this->randomness();
    walk.eval(statement);
    this->set_randomness(now);
    blocks_ = walk.blocks();
    return readings;
  }

  [[gnu::cold]] void divide(const std::vector<reading>& readings) {
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

  /// Takes the division of rank 0: micro-batches of other ranks may have other extents, and so other costs.
  [[gnu::cold]] void agree_on_chunks() {
    std::vector<std::int64_t> ends;
    for (const parallel::block_range& c : chunks_) ends.push_back(c.last);
    base::ranks().broadcast(ends, 0, control("chunks")).wait();
    index_t first = 0;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      chunks_[c] = {first, ends[c]};
      first = ends[c];
    }
  }

  /// The chunks that read a tensor, ascending; chunk 0 if none does.
  [[gnu::cold]] std::vector<int> chunks_that_read(const std::vector<reading>& readings,
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

  /// The stages of chunks, each once.
  [[gnu::cold]] std::vector<int> stages_of(const std::vector<int>& chunks) const {
    std::vector<int> stages;
    for (const int c : chunks)
      if (const int s = schedule_.stage_of[static_cast<std::size_t>(c)];
          std::find(stages.begin(), stages.end(), s) == stages.end())
        stages.push_back(s);
    return stages;
  }
  /// The parameters that several chunks read.
  [[gnu::cold]] void find_tied(const std::vector<reading>& readings) {
    std::vector<parallel::tied_parameter> tied;
    for (const auto& [name, t] : parameters_)
      if (const std::vector<int> chunks = chunks_that_read(readings, t.get()); chunks.size() > 1)
        tied.push_back({name, t, chunks, stages_of(chunks)});
    tied_.emplace(std::move(tied), schedule_.stage_of, *stages_, 2 * schedule_.chunks(),
                  base::options().deterministic);
    tied_->check(schedule_);
  }

  /// Sets all tensors to those of rank 0, as stages may share some. Frees what other stages hold, and divides
  /// the rest among the data-parallel ranks.
  [[gnu::cold]] void hold_own(const std::vector<reading>& readings) {
    state_dict_t whole = parameters_;
    whole.insert(whole.end(), buffers_.begin(), buffers_.end());
    // The statement was written before and nothing computed from it: it reads the values of rank 0.
    recycled_vector<std::uint64_t> versions;
    for (const auto& [name, t] : whole) versions.push_back(t->version);
    const std::shared_ptr<communicator> alike =
        sizes_.tp == 1 ? std::shared_ptr<communicator>(std::shared_ptr<void>(), &base::ranks())
                       : base::ranks().split_by([&](int r) { return sizes_.coordinate(r, mesh_axis::tp); });
    parallel::begin_as_first(*alike, control(""), this->where(), whole);
    state_dict_t own[2];
    std::vector<int> chunk_of;  // of each of these parameters, the first chunk on this stage
    const state_dict_t* const all[] = {&parameters_, &buffers_};
    for (int k = 0; k < 2; ++k)
      for (const auto& [name, t] : *all[k]) {
        const std::vector<int> chunks = chunks_that_read(readings, t.get());
        owner_.emplace_back(name, schedule_.stage_of[static_cast<std::size_t>(chunks[0])]);
        const auto here = std::find_if(chunks.begin(), chunks.end(), [&](int c) { return on_this_stage(c); });
        if (here == chunks.end()) {
          free(name, *t);
          continue;
        }
        own[k].emplace_back(name, t);
        if (k == 0) chunk_of.push_back(*here);
      }
    base::hold(own[0], own[1], *data_, owners_, chunk_of, layers_);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i].second->version = versions[i];
  }
  static void free(const std::string& name, tensor_state& t) {
    t.memory = buffer();
    t.divided = std::make_shared<division>(division{name, t.whole(), {}});
  }
  int owner_of(const std::string& name) const {
    return std::find_if(owner_.begin(), owner_.end(), [&](const auto& o) { return o.first == name; })->second;
  }

  /// The chunk that computes what stands after so many blocks.
  int chunk_after(index_t blocks) const {
    for (int c = 0; c < schedule_.chunks(); ++c)
      if (chunks_[static_cast<std::size_t>(c)].holds(blocks)) return c;
    refuse_blocks(blocks);
  }
  [[noreturn, gnu::cold]] void refuse_blocks(index_t found) const {
    refuse<usage_error>({"weft: pipeline: a statement with ", found,
                         " blocks (of repeats), but the model was divided by one with ", blocks_,
                         ": all losses must apply all blocks, values no more of them"});
  }

  /// One chunk of `e`, and the number of blocks in `e`. `passed`: the value between two chunks of this stage.
  template <expression E>
  std::pair<evaluated<E>, index_t> eval_chunk(const E& e, int c, parallel::stage_messages& messages,
                                              std::shared_ptr<tensor_state>& passed) {
    using kind = pipeline::step_kind;
    const parallel::stage_events events{.enter =
                                            [&](const tensor_state& x) {
                                              if (on_this_stage(c - 1)) return std::exchange(passed, nullptr);
                                              const pipeline::step step{kind::receive_activation, c, 0};
                                              messages.receive(schedule_, step, x, control(""));
                                              return messages.take(step);
                                            },
                                        .leave =
                                            [&](const std::shared_ptr<tensor_state>& x) {
                                              if (c + 1 == schedule_.chunks()) return;  // refused below
                                              if (on_this_stage(c + 1)) passed = x;
                                              else
                                                messages.send(schedule_, {kind::send_activation, c, 0}, x,
                                                              control(""));
                                            }};
    runtime::forgetful_evaluator<Options> inner{*this};
    parallel::stage_evaluator<runtime::forgetful_evaluator<Options>> walk(
        inner, *this, chunks_[static_cast<std::size_t>(c)], events);
    evaluated<E> value = walk.eval(e);
    return {std::move(value), walk.blocks()};
  }

  /// Calls f; if it throws on this rank only, the other ranks fail too instead of waiting for it.
  template <class Step, class F>
  void abort_on_error(const Step& of_step, F f) {
    try {
      f();
    } catch (const comm_error&) {
      throw;  // the other ranks know
    } catch (const std::exception& e) {
      base::ranks().abort(of_step.position() + ": " + e.what());
      throw;
    } catch (...) {
      base::ranks().abort(of_step.position() + ": an exception of an unknown type");
      throw;
    }
  }

  // For pipeline_step.
  void synchronize(bool on) { base::synchronize(on); }
  void check_blocks(index_t found) const {
    if (found != blocks_) refuse_blocks(found);
  }
  void begin_this(int micro_batch, int count) {
    this->begin_micro_batch(number_of_step_,
                            static_cast<std::uint64_t>(base::micro_batch(micro_batch, count)));
  }
  void before_backward(int chunk, int micro_batch) {
    base::withhold(tied_->before_backward(chunk, micro_batch, base::groups().labelled("")));
  }
  void after_backward(int chunk, int micro_batch) {
    tied_->after_backward(chunk, micro_batch, base::groups().labelled(""));
  }
  parallel::tied_gradients& tied() { return *tied_; }
  void complete_gradients() {
    base::deliver_gradients();
    tied_->share(base::local(), base::groups().labelled(""));
  }
  /// Update number `number` of this step, counted from 0.
  void update(int number) { base::update_once(static_cast<std::int64_t>(number_of_step_) + number); }

  state_dict_t parameters_, buffers_;  // of the whole model
  mesh_sizes sizes_;
  pipeline_options settings_;
  std::shared_ptr<communicator> stages_, data_, owners_, layers_;
  pipeline::schedule schedule_;
  index_t blocks_ = 0;
  std::vector<parallel::block_range> chunks_;
  std::vector<double> costs_;                       // modelled, by chunk
  std::vector<std::pair<std::string, int>> owner_;  // the stage that counts and exports a tensor
  std::optional<parallel::tied_gradients> tied_;
  std::vector<pipeline::record> records_;
  std::chrono::steady_clock::time_point began_{};
  std::uint64_t number_of_step_ = 0;
};

/// Whether a run, or its base, is a pipeline_run.
template <class Run>
concept pipelined = std::derived_from<Run, context> && requires(Run& run) { run.stage(); };

/// The value of a statement of a pipelined model, on every rank. Collective.
template <expression E, pipelined Run>
auto eval(const E& e, Run& run) {
  return run.eval(e);
}

/// Binds a model to a mesh with the axis pp; see bind of a mesh.
template <class Plan, class Model, class Optimizer>
  requires(Plan::strategy_type::has(mesh_axis::pp) && !divides_context<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const parallel_options& o,
          pipeline_options p = {}, const device_options& where = {}) {
  check_axes(o, Plan::strategy_type::has);
  detail::place_model<Plan>(model, ranks, where);
  std::shared_ptr<communicator> layers;
  if constexpr (divides_layers<Plan>) {
    layers = group_along(ranks, {.tp = o.layer_ranks}, mesh_axis::tp, mesh_axis::tp);
    parallel::divide_layers(model, *layers, {.timeout = o.timeout, .control = true});
  }
  using axis = typename detail::pipeline_axis_of<typename Plan::strategy_type>::type;
  if (!p.schedule) p.schedule = axis::make;
  return pipeline_run<Optimizer, typename Plan::programs, axis::divides_backward>(
      detail::once_each(model), named_buffers(model), optimizer, {std::shared_ptr<void>(), &ranks}, o,
      std::move(p), std::move(layers));
}
template <class Plan, class Model, class Optimizer>
  requires(Plan::strategy_type::has(mesh_axis::pp) && !divides_context<Plan>)
auto bind(Model& model, Optimizer& optimizer, communicator& ranks, const mesh_sizes& sizes,
          pipeline_options p = {}, const device_options& where = {}) {
  return bind<Plan>(model, optimizer, ranks, Plan::strategy_type::options(check_mesh(sizes, ranks.size())),
                    std::move(p), where);
}

}  // namespace weft
