// SPDX-License-Identifier: MIT
// The training run of train_gpt on one rank. Compiled once for each precision and way to recompute,
// which the build names in WEFT_PRECISION and WEFT_RECOMPUTE.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <thread>

#include <weft/comm/counting.hpp>
#include <weft/comm/environment.hpp>
#include <weft/device/cpu/file.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/line_log.hpp>
#include <weft/train/progress.hpp>
#include <weft/train/text.hpp>
#include <weft/train/weights.hpp>
#include <weft/weft.hpp>

#include "train_gpt_job.hpp"

namespace {

using namespace weft;
using namespace job;

/// The log of a rank. What cannot be written is told, and is a reason to stop or not.
class json_log {
 public:
  json_log(const std::string& path, bool append, bool goes_on) : goes_on_(goes_on) {
    if (!path.empty()) out_ = line_log(path, append);
  }
  void line(const char* format, auto... values) {
    std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, values...)), '\0');
    std::snprintf(text.data(), text.size() + 1, format, values...);
    try {
      out_.line(text);
      told_ = false;
    } catch (const io_error& e) {
      if (!std::exchange(told_, true)) std::fprintf(stderr, "\ntrain_gpt: %s\n", e.what());
      failed_ = !goes_on_;
    }
  }
  /// A line could not be written, and the run is to stop.
  bool failed() const { return failed_; }

 private:
  line_log out_;
  bool goes_on_, told_ = false, failed_ = false;
};

/// A number as JSON knows it: the norm of gradients that overflow in f16 is none, and the step is left out.
std::string json_number(double x) {
  if (!std::isfinite(x)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Continues `prompt` by `count` bytes drawn from the model.
template <class Run>
std::string sample(const gpt2::model<>& model, const settings& s, Run& c) {
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

/// What left the finite numbers first, by a second look at the batch. All ranks call it; empty where
/// there is nothing to look at.
template <class Run>
std::string first_non_finite(Run& run, const settings& s, const std::optional<suspect>& batch) {
  const state_dict_t whole = run.full();
  return batch ? look_again(s, whole, *batch) : "";
}

/// What a step does to the model: the mean loss of the batches of all ranks, the norm of the gradient.
struct step_outcome {
  double loss = 0, norm = 0;
};

/// The loss of a step that is no number; the model has not been changed.
struct non_finite_loss {
  std::optional<suspect> batch;  // if it was on this rank
};

comm_options for_losses(const settings& s) { return {"loss", std::chrono::seconds(s.timeout), true}; }

template <class Run, class NextBatch>
step_outcome train_step(const gpt2::model<>& model, Run& run, const settings& s, index_t step,
                        NextBatch next_batch) {
  recycled_vector<double> losses(static_cast<std::size_t>(s.accumulate * run.ranks().size()), 0.0);
  std::optional<suspect> not_finite;
  for (index_t j = 0; j < s.accumulate; ++j) {
    const auto [inputs, labels] = next_batch();
    const index_t number = run.micro_batch(j, s.accumulate);
    run.begin_micro_batch(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(number));
    const auto randomness = run.randomness();
    const auto quiet = run.no_sync(j + 1 < s.accumulate);
    tape steps(run);
    const auto loss = steps.eval(model.loss(inputs, labels, s.model.context));
    const double value = loss.item();
    losses[static_cast<std::size_t>(number)] = value;
    if (!std::isfinite(value) && !not_finite) not_finite = suspect{inputs, labels, randomness};
    steps.backward(loss);
  }
  if (run.ranks().size() > 1) run.ranks().all_reduce(std::span(losses), reduction::sum, for_losses(s)).wait();
  step_outcome r;
  for (double l : losses) r.loss += l;
  r.loss /= static_cast<double>(losses.size());
  if (!std::isfinite(r.loss) && run.where()->computes()) throw non_finite_loss{not_finite};
  r.norm = run.step({.clip = s.clip, .micro_batches = s.accumulate});
  return r;
}

/// The programs of a pass that are recomputed: the embedding's, which keeps nothing, and blocks.
int recomputed_programs(const settings& s) { return s.recompute_blocks ? 1 + s.recompute_blocks : 0; }

std::string recomputed(const settings& s) {
  if (s.recompute_blocks)
    return ", " + std::to_string(s.recompute_blocks) + " of " + std::to_string(s.model.layers) +
           " blocks recomputed";
  return s.recompute == "selective" ? ", norms and activations recomputed" : "";
}

/// Blocks are not cached beyond the limit, so that it holds for what the process takes as well.
void set_memory_limit(const settings& s, const device& where) {
  if (s.memory_limit > 0) where.memory().limit(static_cast<std::size_t>(s.memory_limit));
}

/// What a rank will hold and send, found by two steps on a device that only counts, among ranks that
/// are not there: the first makes the optimiser's state, the second holds it from the start.
template <class... Choices>
forecast forecast_of(const settings& s, int rank, int ranks, bool holds_messages) {
  const auto counts = std::make_shared<counting_backend>(holds_messages);
  const device nowhere(counts);
  set_memory_limit(s, nowhere);
  counting_communicator others(rank, ranks);
  const auto model = gpt2::model<>::create(s.model, nowhere);
  adamw optimizer;
  parallel_options strategy = parallel_options_of(s);
  set_offload(s, device(std::make_shared<counting_backend>()), strategy);
  auto run = bind<Choices...>(model, optimizer, others, strategy);
  run.recompute_programs = recomputed_programs(s);
  const shape tokens{2, {s.batch, s.model.context}};
  traffic sent;
  device_work work;
  for (int step = 0; step < std::min<index_t>(2, s.steps); ++step) {
    const traffic before = run.groups().sent();
    const device_work worked = counts->work();
    train_step(model, run, s, step, [&] {
      return std::pair(text_samples::tokens(tokens, nowhere), text_samples::tokens(tokens, nowhere));
    });
    sent = run.groups().sent() - before;
    work = counts->work() - worked;
  }
  return {nowhere.memory().figures().peak, nowhere.memory().figures().reserved, sent.total(), work};
}

/// Where what is offloaded goes.
device home_beside(const device& where) {
  if (!where->host_accessible()) return default_device();
  return device(std::make_shared<cpu::file_backend>(std::filesystem::temp_directory_path().string()));
}

/// The rest of a log line: what this rank has sent and holds. Activations are what the peak has beside
/// parameters, gradients and optimiser state: kept values, the arena, messages.
template <class Run>
std::string rank_figures(const Run& run, const traffic& sent, double exposed_ms, index_t peak_bytes) {
  std::string t = ", \"rank\": " + std::to_string(run.ranks().rank()) +
                  ", \"world\": " + std::to_string(run.ranks().size()) + ", \"comm_bytes\": {";
  for (collective k :
       {collective::all_reduce, collective::reduce_scatter, collective::all_gather, collective::broadcast})
    if (sent.of(k)) t += std::string("\"") + name_of(k) + "\": " + std::to_string(sent.of(k)) + ", ";
  t += "\"control\": " + std::to_string(sent.control) + ", \"total\": " + std::to_string(sent.total()) + "}";
  const index_t kept =
      run.parallel().parameter_bytes() + run.parallel().gradient_bytes() + run.optimizer_bytes();
  char text[64];
  std::snprintf(text, sizeof text, ", \"comm_exposed_ms\": %.3f", exposed_ms);
  return t + text + ", \"param_bytes\": " + std::to_string(run.parallel().parameter_bytes()) +
         ", \"grad_bytes\": " + std::to_string(run.parallel().gradient_bytes()) +
         ", \"optimizer_bytes\": " + std::to_string(run.optimizer_bytes()) +
         ", \"activation_bytes\": " + std::to_string(peak_bytes - kept);
}

/// With which exit code the run stops now; 0 if it goes on. All ranks answer the same: a rank was told to
/// stop, or cannot write its log.
int stops(communicator& ranks, const settings& s, bool log_failed) {
  std::vector<std::int32_t> any{log_failed ? 131 : interrupted ? 130 : 0};
  if (ranks.size() > 1) ranks.all_reduce(any, reduction::maximum, for_losses(s)).wait();
  return any[0] == 131 ? 2 : any[0];
}

/// Says that a save has failed, where the run goes on nevertheless.
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

/// The loss without gradient over the last batches of the data.
template <class Run>
double evaluate(const gpt2::model<>& model, Run& run, const settings& s, loader<text_samples>& batches) {
  const index_t samples = batches.samples(), count = std::min<index_t>(16, (samples + s.batch - 1) / s.batch);
  batches.seek(std::max<index_t>(0, samples - count * s.batch));
  double sum = 0;
  for (index_t i = 0; i < count; ++i) {
    const auto [inputs, labels] = batches.next();
    sum += eval(model.loss(inputs, labels, s.model.context), run).item();
  }
  return sum / static_cast<double>(count);
}

/// Trains as one of `ranks`; the exit code.
template <class... Choices>
int train(const settings& s, communicator& ranks) {
  const bool first = ranks.rank() == 0;
  if (!s.flight.empty()) {
    std::shared_ptr<flight_recorder> recorder;
    on_all_ranks(ranks, for_losses(s),
                 [&] { recorder = std::make_shared<flight_recorder>(s.flight, ranks.rank()); });
    ranks.record_in(recorder);
  }
  const device where = device_of(s);
  set_memory_limit(s, where);
  const auto* cpu = dynamic_cast<const cpu::cpu_backend*>(&*where);
  const int threads = cpu ? cpu->threads().threads() : 1;
  parallel_options strategy = parallel_options_of(s);
  if (s.offload != "none") set_offload(s, home_beside(where), strategy);
  if (first && ranks.size() > 1)
    for (const std::string& name : ignored_variables())
      std::fprintf(stderr, "train_gpt: note: %s is set, and has no effect here\n", name.c_str());
  if (first && s.deterministic && !strategy.keeps_bits(ranks.size(), s.accumulate))
    std::fprintf(stderr,
                 "train_gpt: warning: --deterministic does not hold for %s on %d ranks with %lld "
                 "micro-batches each: a power "
                 "of two is needed; the bits will be others than those of one rank\n",
                 s.strategy.c_str(), ranks.size(), static_cast<long long>(s.accumulate));
  const loader_options order{.batch = s.batch, .shuffle = s.order == "shuffled", .seed = s.seed};
  loader_options own = order;
  own.share = {ranks.rank(), ranks.size(), s.accumulate, strategy.reduces_each()};
  loader batches(text_samples(read_text(s.data), s.model.context), own, where);
  std::optional<loader<text_samples>> held_out;
  if (s.eval_every > 0) held_out.emplace(batches.data(), order, where);
  auto model = gpt2::model<>::create(s.model, where);
  initialize(model, s.seed);
  if (!s.init.empty()) io::load(s.init, state_dict(model));
  const index_t count = parameter_count(model);
  adamw optimizer{.lr = s.lr,
                  .beta1 = s.beta1,
                  .beta2 = s.beta2,
                  .eps = s.eps,
                  .weight_decay = s.weight_decay,
                  .decay_from_order = 2};
  auto run = bind<Choices...>(model, optimizer, ranks, strategy);
  run.seed = s.seed;
  run.recompute_programs = recomputed_programs(s);
  const schedule rate{s.schedule_name == "cosine" ? schedule::shape::cosine : schedule::shape::constant, s.lr,
                      s.warmup, s.steps};
  run_position at;
  std::optional<checkpointer<decltype(run)>> saves;
  const bool goes_on = s.on_write_error == "continue";
  if (!s.checkpoint.empty())
    saves.emplace(
        s.checkpoint, run,
        checkpoint_options{.keep = s.keep, .on_failure = goes_on ? save_failure::go_on : save_failure::stop});
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
  const forecast expected = first || s.log_all_ranks ? forecast_of<Choices...>(s, ranks.rank(), ranks.size(),
                                                                               where->holds_messages())
                                                     : forecast{};
  if (first)
    std::fprintf(
        stderr, "weft: %lld parameters, %.1f MB in all%s, %s with %d threads, compiled for %s; %s on %d %s\n",
        static_cast<long long>(count), 1e-6 * static_cast<double>(expected.peak_bytes), recomputed(s).c_str(),
        where->description().c_str(), threads, compiled_isa(), s.strategy.c_str(), ranks.size(),
        ranks.size() > 1 ? "ranks" : "rank");
  log.line(
      "{\"config\": {\"layers\": %lld, \"heads\": %lld, \"width\": %lld, \"context\": %lld, \"batch\": %lld, "
      "\"accumulate\": %lld, \"vocab\": %lld, \"steps\": %lld, \"seed\": %llu, \"strategy\": \"%s\", "
      "\"comm\": \"%s\", "
      "\"deterministic\": %s, \"precision\": \"%s\", \"recompute\": \"%s\", \"recomputed_blocks\": %d, "
      "\"memory_limit\": %.0f}, \"parameters\": %lld, \"device\": \"%s\", \"threads\": %d, \"isa\": \"%s\", "
      "\"predicted_peak_bytes\": %zu, \"predicted_reserved_bytes\": %zu, \"predicted_comm_bytes\": %lld}",
      static_cast<long long>(s.model.layers), static_cast<long long>(s.model.heads),
      static_cast<long long>(s.model.width), static_cast<long long>(s.model.context),
      static_cast<long long>(s.batch), static_cast<long long>(s.accumulate),
      static_cast<long long>(s.model.vocabulary), static_cast<long long>(s.steps),
      static_cast<unsigned long long>(s.seed), s.strategy.c_str(), ranks.name(),
      s.deterministic ? "true" : "false", s.precision.c_str(), s.recompute.c_str(), s.recompute_blocks,
      s.memory_limit, static_cast<long long>(count), where->name(), threads, compiled_isa(),
      expected.peak_bytes, expected.reserved_bytes, static_cast<long long>(expected.sent_bytes));
  progress bar(s.steps);
  const index_t tokens = s.batch * s.accumulate * s.model.context * ranks.size();
  int stopped = 0;
  for (index_t step = at.step; step < s.steps && !stopped; ++step) {
    const double start = now_ms(), waited = run.groups().waited_ms();
    const std::size_t allocated = allocations;
    const traffic sent = run.groups().sent();
    optimizer.lr = rate.at(step);
    step_outcome r;
    try {
      r = train_step(model, run, s, step, [&] { return batches.next(); });
    } catch (const non_finite_loss& bad) {
      const std::string found = first_non_finite(run, s, bad.batch);
      if (!found.empty())
        std::fprintf(stderr, "\ntrain_gpt: step %lld: the loss is not finite; first: %s\n",
                     static_cast<long long>(step), found.c_str());
      return 1;
    }
    const double ms = now_ms() - start;
    const std::size_t made = allocations - allocated;
    const memory_figures memory = where.memory().figures();
    log.line(
        "{\"step\": %lld, \"loss\": %.9g, \"loss_hex\": \"%a\", \"grad_norm\": %s, \"lr\": %.9g, \"tokens\": "
        "%lld, "
        "\"ms\": %.3f, \"tokens_per_s\": %.1f, \"peak_bytes\": %zu, \"reserved_bytes\": %zu, "
        "\"allocations\": %zu%s}",
        static_cast<long long>(step), r.loss, r.loss, json_number(r.norm).c_str(), optimizer.lr,
        static_cast<long long>(tokens), ms, 1e3 * static_cast<double>(tokens) / ms, memory.peak,
        memory.reserved, made,
        rank_figures(run, run.groups().sent() - sent, run.groups().waited_ms() - waited,
                     static_cast<index_t>(memory.peak))
            .c_str());
    if (first) bar.show(step + 1, r.loss, 1e3 * static_cast<double>(tokens) / ms);
    at = {step + 1, batches.position()};
    stopped = stops(ranks, s, log.failed());
    if (saves && (at.step % s.checkpoint_every == 0 || at.step == s.steps || stopped)) {
      saves->save(at);
      report_failed_save(saves->last_failure(), first);  // of the save before
    }
    if (s.eval_every > 0 && at.step % s.eval_every == 0)
      log.line("{\"evaluated_after\": %lld, \"eval_loss\": %s}", static_cast<long long>(at.step),
               json_number(evaluate(model, run, s, *held_out)).c_str());
  }
  if (saves) saves->finish();
  if (saves) report_failed_save(saves->last_failure(), first);
  if (stopped == 130 && first) {
    if (!saves) std::fprintf(stderr, "\ninterrupted; nothing was saved (no --checkpoint)\n");
    else std::fprintf(stderr, "\ninterrupted after step %lld; go on with --checkpoint %s --resume\n",
                      static_cast<long long>(at.step), s.checkpoint.c_str());
  }
  if (!s.save.empty()) save_weights(s.save, run);
  if (s.sample > 0) {
    const std::string text = sample(model, s, run);
    if (first) std::printf("%s\n", text.c_str());
  }
  return stopped ? stopped : log.failed() ? 2 : 0;
}

#define WEFT_TEXT_OF(name) #name
#define WEFT_TEXT(name) WEFT_TEXT_OF(name)
[[maybe_unused]] const unit& known =
    units().emplace_back(unit{WEFT_TEXT(WEFT_PRECISION), WEFT_TEXT(WEFT_RECOMPUTE),
                              &train<precision::WEFT_PRECISION, recompute::WEFT_RECOMPUTE>,
                              &forecast_of<precision::WEFT_PRECISION, recompute::WEFT_RECOMPUTE>});

}  // namespace
