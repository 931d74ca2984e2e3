// SPDX-License-Identifier: MIT
// Trains a GPT-2 on the bytes of text files; see --help.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>

#include <weft/device/counting.hpp>
#include <weft/gpu/open.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/inspect.hpp>
#include <weft/train/progress.hpp>
#include <weft/train/text.hpp>
#include <weft/weft.hpp>

#include "arguments.hpp"
#include "gpt2.hpp"

namespace {

std::size_t allocations = 0;
volatile std::sig_atomic_t interrupted = 0;

}  // namespace

// Counted, so that the log can show that a steady step allocates nothing.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace weft;

struct settings {
  gpt2::config model;
  std::vector<std::string> data;
  index_t batch = 12, accumulate = 1, steps = 200, warmup = 0;
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
  std::string schedule_name = "constant", order = "sequential", device_name = "cpu";
  std::string init, save, checkpoint, log, prompt = "\n";
  std::uint64_t seed = 1;
  int threads = 0;
  index_t checkpoint_every = 100, eval_every = 0, sample = 0;
  bool resume = false, help = false;
};

constexpr const char* usage =
    "train_gpt --data FILE_OR_DIR... [--layers 4 --heads 4 --width 128 --context 64 --batch 12]\n"
    "  [--steps 200 --accumulate 1 --lr 3e-4 --warmup 0 --schedule constant|cosine]\n"
    "  [--beta1 .9 --beta2 .95 --eps 1e-8 --weight-decay .1 --clip 1.0]\n"
    "  [--order sequential|shuffled] [--seed 1] [--threads N] [--vocab 256] [--device cpu|opencl|cuda|auto]\n"
    "  [--init F.safetensors] [--save F.safetensors] [--log F.jsonl]\n"
    "  [--checkpoint DIR --checkpoint-every 100 --resume] [--eval-every N]\n"
    "  [--sample N --prompt TEXT]\n";

settings parse(int count, char** values) {
  settings s;
  arguments a;
  a.flag("help", s.help);
  a.flag("resume", s.resume);
  a.list("data", s.data);
  a.number<index_t>("layers", s.model.layers, 1);
  a.number<index_t>("heads", s.model.heads, 1);
  a.number<index_t>("width", s.model.width, 1);
  a.number<index_t>("context", s.model.context, 1);
  a.number<index_t>("vocab", s.model.vocabulary, 256);
  a.number<index_t>("batch", s.batch, 1);
  a.number<index_t>("accumulate", s.accumulate, 1);
  a.number<index_t>("steps", s.steps, 1);
  a.number<index_t>("warmup", s.warmup, 0);
  a.number<index_t>("checkpoint-every", s.checkpoint_every, 1);
  a.number<index_t>("eval-every", s.eval_every, 1);
  a.number<index_t>("sample", s.sample, 1);
  a.number<int>("threads", s.threads, 1);
  a.number<std::uint64_t>("seed", s.seed, 0);
  a.number<double>("lr", s.lr, 1e-300);
  a.number<double>("beta1", s.beta1, 0);
  a.number<double>("beta2", s.beta2, 0);
  a.number<double>("eps", s.eps, 0);
  a.number<double>("weight-decay", s.weight_decay, 0);
  a.number<double>("clip", s.clip, 0);
  a.choice("schedule", s.schedule_name, {"constant", "cosine"});
  a.choice("order", s.order, {"sequential", "shuffled"});
  a.choice("device", s.device_name, {"cpu", "opencl", "cuda", "auto"});
  a.text("init", s.init);
  a.text("save", s.save);
  a.text("checkpoint", s.checkpoint);
  a.text("log", s.log);
  a.text("prompt", s.prompt);
  a.parse(count, values);
  if (s.help) return s;
  if (s.data.empty()) throw usage_error("--data: expected files or folders to train on");
  if (s.model.width % s.model.heads)
    throw usage_error("--heads " + std::to_string(s.model.heads) + " does not divide --width " +
                      std::to_string(s.model.width));
  if (s.resume && s.checkpoint.empty()) throw usage_error("--resume: needs --checkpoint DIR");
  return s;
}

class json_log {
 public:
  explicit json_log(const std::string& path, bool append) {
    if (path.empty()) return;
    out_.open(path, append ? std::ios::app : std::ios::trunc);
    if (!out_) throw usage_error("--log " + path + ": cannot be written");
  }
  void line(const char* format, auto... values) {
    if (!out_.is_open()) return;
    char text[1024];
    std::snprintf(text, sizeof text, format, values...);
    out_ << text << '\n' << std::flush;
  }

 private:
  std::ofstream out_;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Continues `prompt` by `count` bytes drawn from the model.
std::string sample(const gpt2::model<>& model, const settings& s, context& c) {
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
    double draw = unit_interval(philox_word(key_of(mix(s.seed, 0x5a)), static_cast<std::uint64_t>(i))) * total;
    int chosen = 0;
    while (chosen < 255 && (draw -= weights[chosen]) > 0) ++chosen;
    text += static_cast<char>(chosen);
  }
  return text;
}

/// What left the finite numbers first, by a second look at the step on the host.
std::string first_non_finite(gpt2::model<>& model, const text_samples::tokens& inputs, const text_samples::tokens& labels,
                             index_t positions, const context::random_state& randomness) {
  const device host(std::make_shared<cpu::cpu_backend>());
  context c(host);
  c.set_randomness(randomness);
  to(model, host);
  const auto found = find_non_finite(state_dict(model), c, [&](context& debug) {
    eval(cross_entropy(model(inputs.to(host), positions), labels.to(host)), debug);
  });
  return found ? found->text() : "nothing on a second look";
}

/// What a step does to the model: the mean loss of its batches and the norm of the gradient.
struct step_result {
  double loss = 0, norm = 0;
};
struct non_finite_loss {
  text_samples::tokens inputs, labels;
  context::random_state randomness;
};

template <class NextBatch>
step_result train_step(const gpt2::model<>& model, const state_dict_t& parameters, adamw& optimizer, const settings& s,
                       context& c, NextBatch next_batch) {
  step_result r;
  const double mean = 1.0 / static_cast<double>(s.accumulate);
  for (index_t micro = 0; micro < s.accumulate; ++micro) {
    const auto [inputs, labels] = next_batch();
    const auto randomness = c.randomness();
    tape steps(c);
    const auto loss = steps.eval(cross_entropy(model(inputs, s.model.context), labels));
    const double value = loss.item();
    if (!std::isfinite(value)) throw non_finite_loss{inputs, labels, randomness};
    steps.backward(loss);
    r.loss += value;
  }
  r.loss /= static_cast<double>(s.accumulate);
  r.norm = gradient_norm(parameters, c) * mean;
  optimizer.step_all(parameters, mean * clip_factor(r.norm, s.clip), c);
  return r;
}

/// The most memory that training will hold, found by two steps on a device that only counts: the
/// first makes the optimiser's state, the second holds it from the start.
std::size_t predicted_peak(const settings& s) {
  const device nowhere(std::make_shared<counting_backend>());
  context c(nowhere);
  const auto model = gpt2::model<>::create(s.model, nowhere);
  const state_dict_t parameters = state_dict(model);
  adamw optimizer;
  const shape tokens{2, {s.batch, s.model.context}};
  for (int step = 0; step < std::min<index_t>(2, s.steps); ++step)
    train_step(model, parameters, optimizer, s, c, [&] {
      return std::pair(text_samples::tokens(tokens, nowhere), text_samples::tokens(tokens, nowhere));
    });
  return nowhere.memory().figures().peak;
}

/// The device that was asked for; that it is missing is a mistake of the user's.
device device_of(const settings& s) {
  try {
    return open_device(s.device_name, s.threads);
  } catch (const device_error& e) {
    throw usage_error("--device " + s.device_name + ": " + e.what());
  }
}

int train(const settings& s) {
  const device where = device_of(s);
  const auto* cpu = dynamic_cast<const cpu::cpu_backend*>(&*where);
  const int threads = cpu ? cpu->threads().threads() : 1;
  context c(where);
  c.seed = s.seed;
  loader batches(text_samples(read_text(s.data), s.model.context),
                 {.batch = s.batch, .shuffle = s.order == "shuffled", .seed = s.seed}, where);
  auto model = gpt2::model<>::create(s.model, where);
  initialize(model, s.seed);
  const state_dict_t parameters = state_dict(model);
  if (!s.init.empty()) io::load(s.init, parameters);
  adamw optimizer{.lr = s.lr, .beta1 = s.beta1, .beta2 = s.beta2, .eps = s.eps, .weight_decay = s.weight_decay,
                  .decay_from_order = 2};
  const schedule rate{s.schedule_name == "cosine" ? schedule::shape::cosine : schedule::shape::constant, s.lr,
                      s.warmup, s.steps};
  run_position at;
  if (s.resume && std::filesystem::exists(checkpoint_file(s.checkpoint))) {
    at = load_checkpoint(s.checkpoint, parameters, optimizer);
    batches.seek(at.samples);
  }
  json_log log(s.log, at.step > 0);
  const index_t count = parameter_count(model);
  const std::size_t predicted = predicted_peak(s);
  std::fprintf(stderr, "weft: %lld parameters, %.1f MB in all, %s with %d threads, compiled for %s\n",
               static_cast<long long>(count), 1e-6 * static_cast<double>(predicted), where->description().c_str(), threads,
               compiled_isa());
  log.line("{\"config\": {\"layers\": %lld, \"heads\": %lld, \"width\": %lld, \"context\": %lld, \"batch\": %lld, "
           "\"accumulate\": %lld, \"vocab\": %lld, \"steps\": %lld, \"seed\": %llu}, \"parameters\": %lld, "
           "\"device\": \"%s\", \"threads\": %d, \"isa\": \"%s\", \"predicted_peak_bytes\": %zu}",
           static_cast<long long>(s.model.layers), static_cast<long long>(s.model.heads),
           static_cast<long long>(s.model.width), static_cast<long long>(s.model.context),
           static_cast<long long>(s.batch), static_cast<long long>(s.accumulate),
           static_cast<long long>(s.model.vocabulary), static_cast<long long>(s.steps),
           static_cast<unsigned long long>(s.seed), static_cast<long long>(count), where->name(),
           threads, compiled_isa(), predicted);
  progress bar(s.steps);
  const index_t tokens = s.batch * s.accumulate * s.model.context;
  for (index_t step = at.step; step < s.steps && !interrupted; ++step) {
    const double start = now_ms();
    const std::size_t allocated = allocations;
    c.begin_step(static_cast<std::uint64_t>(step));
    optimizer.lr = rate.at(step);
    step_result r;
    try {
      r = train_step(model, parameters, optimizer, s, c, [&] { return batches.next(); });
    } catch (const non_finite_loss& bad) {
      std::fprintf(stderr, "\ntrain_gpt: step %lld: the loss is not finite; first: %s\n", static_cast<long long>(step),
                   first_non_finite(model, bad.inputs, bad.labels, s.model.context, bad.randomness).c_str());
      return 1;
    }
    const double ms = now_ms() - start;
    const std::size_t made = allocations - allocated;
    log.line("{\"step\": %lld, \"loss\": %.9g, \"loss_hex\": \"%a\", \"grad_norm\": %.9g, \"lr\": %.9g, \"tokens\": %lld, "
             "\"ms\": %.3f, \"tokens_per_s\": %.1f, \"peak_bytes\": %zu, \"allocations\": %zu}",
             static_cast<long long>(step), r.loss, r.loss, r.norm, optimizer.lr, static_cast<long long>(tokens), ms,
             1e3 * static_cast<double>(tokens) / ms, where.memory().figures().peak, made);
    bar.show(step + 1, r.loss, 1e3 * static_cast<double>(tokens) / ms);
    at = {step + 1, batches.position()};
    if (!s.checkpoint.empty() && (at.step % s.checkpoint_every == 0 || at.step == s.steps || interrupted))
      save_checkpoint(s.checkpoint, parameters, optimizer, at);
  }
  if (interrupted) {
    if (s.checkpoint.empty()) std::fprintf(stderr, "\ninterrupted; nothing was saved (no --checkpoint)\n");
    else std::fprintf(stderr, "\ninterrupted after step %lld; go on with --checkpoint %s --resume\n",
                      static_cast<long long>(at.step), s.checkpoint.c_str());
  }
  if (!s.save.empty()) io::save(s.save, parameters);
  if (s.sample > 0) std::printf("%s\n", sample(model, s, c).c_str());
  return interrupted ? 130 : 0;
}

}  // namespace

int main(int count, char** values) {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  try {
    const settings s = parse(count, values);
    if (s.help) return std::fputs(usage, stdout), 0;
    return train(s);
  } catch (const usage_error& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 2;
  } catch (const io_error& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return 1;
  }
}
