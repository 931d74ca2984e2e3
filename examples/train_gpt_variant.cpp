// SPDX-License-Identifier: MIT
// The training run of train_gpt on one rank. Compiled once for each precision and way to recompute, which the
// build names in WEFT_PRECISION and WEFT_RECOMPUTE, and for the model_division WEFT_STAGES.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include <weft/comm/counting.hpp>
#include <weft/comm/environment.hpp>
#include <weft/device/cpu/file.hpp>
#include <weft/io/safetensors.hpp>
#if WEFT_STAGES
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/stage_timing.hpp>
#endif
#if WEFT_STAGES == 3 || WEFT_STAGES == 4
#include <weft/parallel/tensor_parallel.hpp>
#elif WEFT_STAGES >= 5
#include <weft/parallel/context_pipeline.hpp>
#endif
#if WEFT_STAGES == 7
#include <weft/parallel/expert_parallel.hpp>
#endif
#include <weft/train/checkpoint.hpp>
#include <weft/train/line_log.hpp>
#include <weft/train/progress.hpp>
#include <weft/train/text.hpp>
#include <weft/train/weights.hpp>
#include <weft/weft.hpp>

#include "train_gpt_job.hpp"
#if WEFT_STAGES == 7
#include "gpt2_experts.hpp"
#include "train_gpt_inspect.hpp"
#endif

namespace {

using namespace weft;
using namespace job;

constexpr auto divides = static_cast<model_division>(WEFT_STAGES);
#if WEFT_STAGES == 7
using gpt = gpt2::model_of_experts;
#else
using gpt = gpt2::model<>;
#endif

/// The log of a rank. A failed write is reported; `goes_on` says whether the run continues.
class json_log {
 public:
  json_log(const std::string& path, bool append, bool goes_on) : goes_on_(goes_on) {
    if (!path.empty()) out_ = line_log(path, append);
  }
  void line(const std::string& text) {
    try {
      out_.line(text);
      told_ = false;
    } catch (const io_error& e) {
      if (!std::exchange(told_, true)) std::fprintf(stderr, "\ntrain_gpt: %s\n", e.what());
      failed_ = !goes_on_;
    }
  }
  /// Whether a line could not be written and the run must stop.
  bool failed() const { return failed_; }

 private:
  line_log out_;
  bool goes_on_, told_ = false, failed_ = false;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Continues `prompt` by `count` bytes drawn from the model.
template <class Run>
std::string sample(const gpt& model, const settings& s, Run& c) {
  std::string text = s.prompt.empty() ? "\n" : s.prompt;
  for (index_t i = 0; i < s.sample; ++i) {
    const auto seen = std::min<index_t>(static_cast<index_t>(text.size()), s.model.context);
    text_samples::tokens tokens(shape{2, {1, seen}}, c.where());
    tokens.copy_from(std::vector<std::uint8_t>(text.end() - seen, text.end()));
    const auto logits = eval(model(tokens, seen), c).to_vector();
    const float* last = logits.data() + (seen - 1) * s.model.vocabulary;
    const float top = *std::max_element(last, last + 256);
    double total = 0, weights[256];
    for (int v = 0; v < 256; ++v) total += weights[v] = std::exp((last[v] - top) / 0.8);
    double draw =
        unit_interval(philox_word(key_of(mix(s.seed, 0x5a)), static_cast<std::uint64_t>(i))) * total;
    int chosen = 0;
    while (chosen < 255 && (draw -= weights[chosen]) > 0) ++chosen;
    text += static_cast<char>(chosen);
  }
  return text;
}

/// The batches of a step, in order.
using step_batches = std::vector<text_samples::fields>;

/// The first op with a non-finite result, found by computing the batch of this micro-batch again; empty on
/// ranks that do not have the batch or are not the first of pp, cp and tp. Collective.
template <class Run>
std::string first_non_finite(Run& run, const settings& s, const step_batches& batches, index_t micro_batch) {
  const state_dict_t whole = run.full();
  const mesh_sizes sizes = mesh_of(s, run.ranks().size());
  for (const mesh_axis a : {mesh_axis::pp, mesh_axis::cp, mesh_axis::tp})
    if (sizes.coordinate(run.ranks().rank(), a) > 0) return "";
  for (std::size_t j = 0; j < batches.size(); ++j) {
    if (run.micro_batch(static_cast<index_t>(j), s.accumulate) != micro_batch) continue;
    run.begin_micro_batch(static_cast<std::uint64_t>(run.optimizer().steps),
                          static_cast<std::uint64_t>(micro_batch));
    return look_again<gpt>(s, whole, {std::get<0>(batches[j]), std::get<1>(batches[j]), run.randomness()});
  }
  return "";
}

comm_options for_losses(const settings& s) { return {"loss", std::chrono::seconds(s.timeout), true}; }

/// The loss of a batch, over this rank's positions.
template <class Run>
auto loss_of(const gpt& model, Run& run, const settings& s, const text_samples::tokens& inputs,
             const text_samples::tokens& labels) {
  if constexpr (requires { run.part_of_context(s.model.context); }) {
    const auto own = run.part_of_context(s.model.context);
    return model.loss(own.of(inputs), own.of(labels), own.positions());
  } else {
    (void)run;
    return model.loss(inputs, labels, s.model.context);
  }
}

/// A step that calls `next_batch()` for each micro-batch; `batches` receives the batches.
template <class Run, class NextBatch>
step_result train_step(const gpt& model, Run& run, const settings& s, step_batches& batches,
                       NextBatch next_batch) {
  batches.clear();
  return run.step(s.accumulate,
                  [&](index_t) {
                    const auto& [inputs, labels] = batches.emplace_back(next_batch());
                    return loss_of(model, run, s, inputs, labels);
                  },
                  {.clip = s.clip, .finite = true, .graph = s.graph});
}

/// Binds the model to the mesh, for batches of one size.
template <class... Choices, class Optimizer>
auto bind_to_mesh(gpt& model, Optimizer& optimizer, communicator& ranks, const settings& s,
                  const parallel_options& o) {
#if WEFT_STAGES
  using depth = pp<pipeline::one_f_one_b, divides == model_division::stages_and_backward>;
#if WEFT_STAGES == 3 || WEFT_STAGES == 4
  using layers =
      tp<divides == model_division::layers_and_positions ? activations::by_positions : activations::whole>;
  using plan = policy<Choices..., strategy::mesh<depth, dp, fsdp<stage_in_options>, layers>>;
#elif WEFT_STAGES == 7
  using plan = policy<Choices..., strategy::mesh<depth, dp, fsdp<stage_in_options>, cp<ring>, ep, tp<>>>;
#elif WEFT_STAGES >= 5
  using positions = cp<std::conditional_t<divides == model_division::ulysses, ulysses, ring>>;
  using plan = policy<Choices..., strategy::mesh<depth, dp, fsdp<stage_in_options>, positions, tp<>>>;
#else
  using plan = policy<Choices..., strategy::mesh<depth, dp, fsdp<stage_in_options>>>;
#endif
  return bind<plan>(
      model, optimizer, ranks, o,
      {.schedule = [s](int stages, int m) { return schedule_of(s, stages, m); }, .blocks = s.stage_blocks});
#else
  (void)s;
  return bind<Choices...>(model, optimizer, ranks, o);
#endif
}
/// Splits the blocks among the stages of a pipeline.
template <class Run>
void divide_blocks(const gpt& model, Run& run, const settings& s) {
  if constexpr (requires { run.stage(); }) {
    const text_samples::tokens some(shape{2, {s.batch, s.model.context}}, run.where());
    run.prepare(loss_of(model, run, s, some, some), s.accumulate);
  }
}

/// The number of recomputed programs of a pass: the embedding's, which saves nothing, and the blocks'.
int recomputed_programs(const settings& s) { return s.recompute_blocks ? 1 + s.recompute_blocks : 0; }

std::string recomputed(const settings& s) {
  if (s.recompute_blocks)
    return ", " + std::to_string(s.recompute_blocks) + " of " + std::to_string(s.model.layers) +
           " blocks recomputed";
  return s.recompute == "selective" ? ", norms and activations recomputed" : "";
}

/// Limits the allocator's cache, too, so that the process as a whole stays within --memory-limit.
void set_memory_limit(const settings& s, const device& where) {
  if (s.memory_limit > 0) where.memory().limit(static_cast<std::size_t>(s.memory_limit));
}

/// The text that `sample` draws, from a whole copy of the model if layers, positions or experts are sharded.
template <class... Choices, class Run>
std::string sampled(const gpt& model, const settings& s, Run& run) {
  if constexpr (divides >= model_division::layers) {
    const state_dict_t whole = run.full();
    const auto copy = gpt::create(s.model, run.where().deferred());
    const state_dict_t parameters = state_dict(copy);
    for (std::size_t i = 0; i < whole.size(); ++i) parameters[i].second->memory = whole[i].second->memory;
    context_in<Choices...> alone(run.where());
    return sample(copy, s, alone);
  } else {
    return sample(model, s, run);
  }
}

/// What a rank will hold and send, from two steps on a device that only counts, with simulated other
/// ranks: the first step creates the optimizer state, the second has it from the start.
template <class... Choices>
forecast forecast_of(const settings& s, int rank, int ranks, bool holds_messages) {
  const auto counts = std::make_shared<counting_backend>(holds_messages);
  const device nowhere(counts);
  set_memory_limit(s, nowhere);
  counting_communicator others(rank, ranks);
  auto model = gpt::create(s.model, nowhere.deferred());
  adamw optimizer;
  parallel_options strategy = parallel_options_of(s);
  set_offload(s, device(std::make_shared<counting_backend>()), strategy);
  auto run = bind_to_mesh<Choices...>(model, optimizer, others, s, strategy);
  divide_blocks(model, run, s);
  run.recompute_programs = recomputed_programs(s);
  const shape tokens{2, {s.batch, s.model.context}};
  traffic sent;
  device_work work;
  step_batches batches;
  for (int step = 0; step < std::min<index_t>(2, s.steps); ++step) {
    const device_work worked = counts->work();
    sent = train_step(model, run, s, batches, [&] {
             return text_samples::fields(text_samples::tokens(tokens, nowhere),
                                         text_samples::tokens(tokens, nowhere));
           }).sent;
    work = counts->work() - worked;
  }
  return {nowhere.memory().figures().peak, nowhere.memory().figures().reserved, sent.total(), work};
}

/// Where offloaded tensors are kept.
device home_beside(const device& where) {
  if (!where->host_accessible()) return default_device();
  return device(std::make_shared<cpu::file_backend>(std::filesystem::temp_directory_path().string()));
}

/// The exit code with which the run stops now, because a rank was told to stop or cannot write its log; 0 if
/// it continues. The same on all ranks.
int stops(communicator& ranks, const settings& s, bool log_failed) {
  std::vector<std::int32_t> any{log_failed ? 131 : interrupted ? 130 : 0};
  if (ranks.size() > 1) ranks.all_reduce(any, reduction::maximum, for_losses(s)).wait();
  return any[0] == 131 ? 2 : any[0];
}

/// Reports that a save has failed if the run continues nevertheless.
void report_failed_save(const std::string& failure, bool first) {
  if (first && !failure.empty())
    std::fprintf(stderr, "\ntrain_gpt: going on without a checkpoint: %s\n", failure.c_str());
}

std::string log_of_rank(const settings& s, int rank) {
  if (rank == 0 || s.log.empty()) return rank == 0 ? s.log : "";
  if (!s.log_all_ranks) return "";
  const std::size_t dot = s.log.rfind(".jsonl");
  return s.log.substr(0, dot) + ".rank" + std::to_string(rank) + (dot == s.log.npos ? "" : ".jsonl");
}

/// The loss over the last batches of the data, without gradients; the same on all ranks.
template <class Run>
double evaluate(const gpt& model, Run& run, const settings& s, loader<text_samples>& batches) {
  const index_t samples = batches.samples(), count = std::min<index_t>(16, (samples + s.batch - 1) / s.batch);
  batches.seek(std::max<index_t>(0, samples - count * s.batch));
  double sum = 0;
  for (index_t i = 0; i < count; ++i) {
    const auto [inputs, labels] = batches.next();
    const double loss = eval(loss_of(model, run, s, inputs, labels), run).item();
    sum += run.loss_weight * loss;
  }
  if constexpr (requires { run.part_of_context(count); }) {  // each rank has the mean over its positions
    std::vector<double> of_ranks{sum};
    run.ranks().all_reduce(of_ranks, reduction::sum, for_losses(s)).wait();
    sum = of_ranks[0] / run.ranks().size();
  }
  return sum / static_cast<double>(count);
}

/// The contents of the first line of the log.
template <class... Choices, class Run>
run_facts facts_of(const Run& run, const settings& s, index_t parameters, int threads) {
  run_facts f{.parameters = parameters,
              .device = run.where()->name(),
              .comm = run.ranks().name(),
              .threads = threads,
              .ranks = run.ranks().size()};
  if (run.ranks().rank() > 0 && !s.log_all_ranks) return f;
  const bool holds_messages = parallel::message_device(run.where(), &run.ranks()) == run.where();
  const auto expected = [&](int rank) {
    return forecast_of<Choices...>(s, rank, f.ranks, holds_messages);
  };
  f.expected = expected(run.ranks().rank());
  if constexpr (requires { run.stage(); }) {
    const int stages = run.sizes().pp;
    for (int k = 0; k < stages; ++k) f.stage_peaks.push_back(expected(k * (f.ranks / stages)).peak_bytes);
    const int chunks = schedule_of(s, stages, static_cast<int>(s.accumulate)).chunks();
    for (int c = 0; c < chunks; ++c) f.chunk_blocks.push_back(run.blocks_of(c).last - run.blocks_of(c).first);
  }
  return f;
}

/// Prints what will be trained, on which device and ranks.
template <class Run>
void report_start(const Run& run, const settings& s, const run_facts& f) {
  const std::string mesh = s.mesh.empty() ? s.strategy : to_string(mesh_of(s, f.ranks));
  std::fprintf(stderr,
               "weft: %lld parameters, %.1f MB in all%s, %s with %d threads, compiled for %s; %s on %d %s\n",
               static_cast<long long>(f.parameters), 1e-6 * static_cast<double>(f.expected.peak_bytes),
               recomputed(s).c_str(), run.where()->description().c_str(), f.threads, compiled_isa(),
               mesh.c_str(), f.ranks, f.ranks > 1 ? "ranks" : "rank");
  if constexpr (requires { run.stage(); }) std::fputs(run.to_string().c_str(), stderr);
}

/// Trains as one of `ranks`; returns the exit code.
template <class... Choices>
int train(const settings& s, communicator& host) {
  const device where = device_of(s, local_rank_of(host));
  const std::unique_ptr<communicator> over = over_nccl(s, host, where);
  communicator& ranks = over ? *over : host;
  const bool first = ranks.rank() == 0;
  if (!s.flight.empty()) {
    std::shared_ptr<flight_recorder> recorder;
    on_all_ranks(ranks, for_losses(s),
                 [&] { recorder = std::make_shared<flight_recorder>(s.flight, ranks.rank()); });
    ranks.record_in(recorder);
  }
  set_memory_limit(s, where);
  const mesh_sizes sizes = mesh_of(s, ranks.size());
  if (sizes.cp > 1 && !where->host_accessible() && ranks.reaches() != &*where)
    throw usage_error("--mesh " + s.mesh + ": the axis cp sends messages from device memory, which " +
                      (where->name() == std::string("cuda")
                           ? "on cuda needs --comm nccl"
                           : std::string("is not possible on ") + where->name()));
  const auto* cpu = dynamic_cast<const cpu::cpu_backend*>(&*where);
  const int threads = cpu ? cpu->threads().threads() : 1;
  parallel_options strategy = parallel_options_of(s);
  if (s.offload != "none") set_offload(s, home_beside(where), strategy);
  if (first && ranks.size() > 1)
    for (const std::string& name : ignored_variables())
      std::fprintf(stderr, "train_gpt: note: %s is set, and has no effect here\n", name.c_str());
  const int data_ranks = sizes.dp * sizes.fsdp * sizes.ep;
  const auto along = [&](mesh_axis a) { return sizes.coordinate(ranks.rank(), a); };
  const int data_rank =
      (along(mesh_axis::dp) * sizes.fsdp + along(mesh_axis::fsdp)) * sizes.ep + along(mesh_axis::ep);
  if (first && s.deterministic && !strategy.keeps_bits(data_ranks, s.accumulate))
    std::fprintf(stderr,
                 "train_gpt: warning: --deterministic does not hold for %s on %d ranks with %lld "
                 "micro-batches each: it needs a power of two, and no tp, cp or ep; results will not be "
                 "bitwise identical to those on one rank\n",
                 to_string(sizes).c_str(), data_ranks, static_cast<long long>(s.accumulate));
  const bool exact = strategy.is_saved_whole();
  if (first && !exact && !s.checkpoint.empty() && ranks.size() > 1)
    std::fprintf(stderr,
                 "train_gpt: warning: with --hook %s, a run resumed from a checkpoint is not bitwise "
                 "identical: what ranks keep from step to step is not saved (docs/checkpoints.md)\n",
                 s.hook.c_str());
  const loader_options order{.batch = s.batch, .shuffle = s.order == "shuffled", .seed = s.seed};
  loader_options own = order;
  own.share = {data_rank, data_ranks, s.accumulate, strategy.reduces_each()};
  loader batches(text_samples(read_text(s.data), s.model.context), own, where);
  std::optional<loader<text_samples>> evaluated;
  if (s.eval_every > 0)
    evaluated.emplace(
        s.eval_data.empty() ? batches.data() : text_samples(read_text(s.eval_data), s.model.context), order,
        where);
  auto model = gpt::create(s.model, where.deferred());
  initialize(model, s.seed);
  const index_t count = parameter_count(model);
  adamw optimizer{.lr = s.lr,
                  .beta1 = s.beta1,
                  .beta2 = s.beta2,
                  .eps = s.eps,
                  .weight_decay = s.weight_decay,
                  .decay_from_order = 2};
  auto run = bind_to_mesh<Choices...>(model, optimizer, ranks, s, strategy);
  divide_blocks(model, run, s);
  if (!s.init.empty()) load_weights(s.init, run);
  run.seed = s.seed;
  run.recompute_programs = recomputed_programs(s);
  const schedule rate{s.lr_schedule == "cosine" ? schedule::shape::cosine : schedule::shape::constant, s.lr,
                      s.warmup, s.steps};
  run_position at;
  std::optional<checkpointer<decltype(run)>> saves;
  const bool goes_on = s.on_write_error == "continue";
  if (!s.checkpoint.empty())
    saves.emplace(s.checkpoint, run,
                  checkpoint_options{.keep = s.keep,
                                     .on_failure = goes_on ? save_failure::go_on : save_failure::stop,
                                     .exact = exact});
  if (s.resume) {
    const std::optional<run_position> found = saves->load();
    if (found) at = *found;
    else if (first)
      std::fprintf(stderr, "train_gpt: note: %s has no checkpoint; the run begins at step 0\n",
                   s.checkpoint.c_str());
  }
  batches.seek(at.samples);
  std::optional<json_log> of_rank;  // a rank that cannot open its log tells the others
  on_all_ranks(ranks, for_losses(s),
               [&] { of_rank.emplace(log_of_rank(s, ranks.rank()), s.resume, goes_on); });
  json_log& log = *of_rank;
  const run_facts facts = facts_of<Choices...>(run, s, count, threads);
  if (first) report_start(run, s, facts);
  log.line(first_line(s, facts));
  progress bar(s.steps);
  const index_t tokens = s.batch * s.accumulate * s.model.context * data_ranks;
  step_batches of_step;
  int stopped = 0;
  for (index_t step = at.step; step < s.steps && !stopped; ++step) {
    const double start = now_ms();
    const std::size_t allocated = allocations;
    optimizer.lr = rate.at(step);
    step_result r;
    try {
      r = train_step(model, run, s, of_step, [&] { return batches.next(); });
    } catch (const non_finite_error& bad) {
      const std::string found = first_non_finite(run, s, of_step, bad.micro_batch);
      if (!found.empty())
        std::fprintf(stderr, "\ntrain_gpt: step %lld: the loss is not finite; first: %s\n",
                     static_cast<long long>(step), found.c_str());
      return 1;
    }
    const double ms = now_ms() - start;
    log.line(
        step_line(s, {step, tokens, r, optimizer.lr, ms, where.memory().figures(), allocations - allocated,
                      ranks.rank(), ranks.size(), run.parallel().parameter_bytes(),
                      run.parallel().gradient_bytes(), run.optimizer_bytes()}));
    if (first) bar.show(step + 1, r.loss, 1e3 * static_cast<double>(tokens) / ms);
    at = {step + 1, batches.position()};
    stopped = stops(ranks, s, log.failed());
    if (saves && (at.step % s.checkpoint_every == 0 || at.step == s.steps || stopped)) {
      saves->save(at);
      report_failed_save(saves->last_failure(), first);  // of the previous save
    }
    if (s.eval_every > 0 && at.step % s.eval_every == 0)
      log.line("{\"evaluated_after\": " + std::to_string(at.step) +
               ", \"eval_loss\": " + json_number(evaluate(model, run, s, *evaluated)) + "}");
  }
  if (saves) saves->finish();
  if (saves) report_failed_save(saves->last_failure(), first);
  if (stopped == 130 && first) {
    if (!saves) std::fprintf(stderr, "\ninterrupted; nothing was saved (no --checkpoint)\n");
    else
      std::fprintf(stderr, "\ninterrupted after step %lld; continue with --checkpoint %s --resume\n",
                   static_cast<long long>(at.step), s.checkpoint.c_str());
  }
  if constexpr (requires { run.stage(); })
    if (!s.timeline.empty() && ranks.rank() % (ranks.size() / sizes.pp) == 0) {
      const pipeline::timing measured = measured_timing(run);
      if (first) write_timeline(s, at.step, measured);
    }
  if (!s.save.empty()) save_weights(s.save, run);
  if (s.sample > 0) {
    const std::string text = sampled<Choices...>(model, s, run);
    if (first) std::printf("%s\n", text.c_str());
  }
  return stopped ? stopped : log.failed() ? 2 : 0;
}

#define WEFT_TEXT_OF(name) #name
#define WEFT_TEXT(name) WEFT_TEXT_OF(name)
[[maybe_unused]] const unit& known = units().emplace_back(
    unit{WEFT_TEXT(WEFT_PRECISION), WEFT_TEXT(WEFT_RECOMPUTE), static_cast<model_division>(WEFT_STAGES),
         &train<precision::WEFT_PRECISION, recompute::WEFT_RECOMPUTE>,
         &forecast_of<precision::WEFT_PRECISION, recompute::WEFT_RECOMPUTE>});

}  // namespace
