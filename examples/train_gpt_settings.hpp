// SPDX-License-Identifier: MIT
// The settings of train_gpt: its flags, and the checks that they can be combined.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <weft/parallel/hook.hpp>
#include <weft/parallel/mesh_text.hpp>

#include "arguments.hpp"
#include "gpt2.hpp"

struct settings {
  gpt2::config model;
  std::vector<std::string> data, eval_data;
  weft::index_t batch = 12, steps = 200, warmup = 0;
  weft::index_t accumulate = 0;  // micro-batches per step on each data rank; 0: set by job::resolved
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
  std::string lr_schedule = "constant", order = "sequential", device_name = "cpu";
  std::string init, save, checkpoint, log, prompt = "\n";
  std::uint64_t seed = 1;
  int threads = 0;
  weft::index_t checkpoint_every = 100, eval_every = 0, sample = 0;
  int keep = 2;                         // checkpoints to keep
  std::string on_write_error = "stop";  // when a checkpoint or the log cannot be written
  int ranks = 0, timeout = 600;         // ranks as threads (0: as many as the mesh has); seconds
  std::string comm = "threads", strategy, mesh, hook = "none", flight;
  std::string context_parallel;             // ring or ulysses, if --mesh has cp
  std::string profile;                      // Chrome trace of all ranks
  std::string schedule, timeline;           // of a pipeline: name or CSV file; SVG file
  std::vector<weft::index_t> stage_blocks;  // blocks of each chunk; empty: divided by cost
  std::string recompute;                    // none or selective; empty: chosen by --memory-limit
  int recompute_blocks = 0;                 // how many blocks, from the first, keep only their operands
  double memory_limit = 0;                  // bytes; 0: none
  std::string precision = "f32", offload = "none";
  bool resume = false, help = false, list_devices = false, deterministic = false, log_all_ranks = false;
  bool sequence_parallel = false, graph = false, tf32 = false;
};

inline constexpr const char* usage = R"(usage: train_gpt --data FILE_OR_DIR... [OPTION...]

Trains a GPT-2 on the bytes of text files. Defaults are in parentheses.

Model
  --layers N (4)   --heads N (4)   --width N (128)   --context N (64)   --vocab N (256)
  --experts N:K           a mixture of N experts in each block, of which each token chooses K
  --init F.safetensors    initial weights                  --save F.safetensors   final weights
  --seed N (1)

Training
  --steps N (200)         --batch N (12)   sequences of a micro-batch, on each rank
  --accumulate M          micro-batches of a step, on each rank (1; of a pipeline 2 x stages)
  --lr X (3e-4)           --lr-schedule constant|cosine (constant)   --warmup STEPS (0)
  --beta1 X (0.9)   --beta2 X (0.95)   --eps X (1e-8)   --weight-decay X (0.1)
  --clip X (1.0)          maximum norm of the gradient
  --order sequential|shuffled (sequential)   of the samples
  --eval-every STEPS      also logs the loss of the last 16 batches of --eval-data FILE_OR_DIR... (--data)
  --sample N              prints N bytes of generated text, which follow --prompt TEXT

Device and memory
  --device cpu|opencl[:N]|cuda[:N]|auto (cpu)   without :N, the device of LOCAL_RANK
  --list-devices          prints the devices and ends      --threads N   of the CPU, on each rank
  --precision f32|bf16|f16 (f32)   --tf32   f32 products on tensor cores of CUDA devices
  --graph                 records a step as a CUDA graph
  --recompute none|selective|block[:COUNT]   what the backward pass computes again (none)
  --memory-limit BYTES    chooses --recompute to stay below 1.5G, for example
  --offload none|params|optimizer|all (none)   from a GPU to the host, from the CPU to files in $TMPDIR

Ranks
  --ranks N (1)           set by mpirun and launch         --comm threads|gloo|mpi|nccl (threads)
  --strategy single|ddp|zero1|zero2|zero3|hybrid:K (ddp)
  --mesh AXIS=N,...       ranks along the axes pp, dp, fsdp, tp, cp, ep; dp or fsdp may be auto. With
                          fsdp, --strategy zero1|zero2|zero3 (zero3) says what is sharded.
  --sequence-parallel     shards activations along tp by position
  --context-parallel ring|ulysses (ring)   attention along cp
  --schedule NAME|F.csv   of the pipeline                  --microbatches M   the same as --accumulate
  --stages N,...          blocks of each stage             --timeline F.svg   of the last step
  --hook none|bf16|powersgd:RANK[:START]|topk:SHARE|local:STEPS (none)   compresses gradients
  --deterministic         the same bits for every number of data-parallel ranks
  --timeout SECONDS (600)   of communication

Files
  --checkpoint DIR        --checkpoint-every STEPS (100)   --keep N (2)
  --resume                continues from the last checkpoint in DIR
  --log F.jsonl           a line of JSON a step            --log-all-ranks   a file for each rank
  --on-write-error stop|continue (stop)   when the log or a checkpoint cannot be written
  --profile F.json        a table of where time goes, and a trace for ui.perfetto.dev
  --flight DIR            the last operations of every rank, for flight_report

  --help                  prints this text and ends
)";

/// Applies `--hook`, "powersgd:4" for example.
inline void set_hook(const std::string& text, weft::parallel_options& o) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string name = text.substr(0, colon), value = text.substr(std::min(colon + 1, text.size()));
  const auto fail = [&] {
    return weft::usage_error("--hook " + text +
                             ": expected none, bf16, powersgd:RANK[:START], topk:SHARE or local:STEPS");
  };
  double number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  std::int64_t start = 0;  // powersgd:4:100 does not compress the first 100 steps
  const char* const end = value.data() + value.size();
  const bool has_start = name == "powersgd" && parsed.ec == std::errc() && parsed.ptr != end &&
                         *parsed.ptr == ':' && std::from_chars(parsed.ptr + 1, end, start).ptr == end &&
                         start >= 0;
  const bool is_number = parsed.ec == std::errc() && (has_start || parsed.ptr == end);
  const bool is_count = is_number && number >= 1 && number <= 1e6 && number == std::floor(number);
  if (text == "none") return;
  if (text == "bf16") o.hook = weft::bf16_compress();
  else if (name == "powersgd" && is_count)
    o.hook = weft::power_sgd({.rank = static_cast<int>(number), .start_step = start});
  else if (name == "topk" && is_number && number > 0 && number <= 1) o.hook = weft::top_k(number);
  else if (name == "local" && is_count) o.local_steps = static_cast<int>(number);
  else throw fail();
}

/// Applies `--recompute`, "block:3" for example.
inline void set_recompute(const std::string& text, settings& s) {
  const auto fail = [&] {
    return weft::usage_error("--recompute " + text +
                             ": expected none, selective, block or block:COUNT of at most " +
                             std::to_string(s.model.layers));
  };
  if (text.empty() || text == "none" || text == "selective") {
    s.recompute = text;
    return;
  }
  s.recompute = "none";
  s.recompute_blocks = static_cast<int>(s.model.layers);
  if (text == "block") return;
  if (!text.starts_with("block:")) throw fail();
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + 6, end, s.recompute_blocks);
  if (parsed.ec != std::errc() || parsed.ptr != end || s.recompute_blocks < 1 ||
      s.recompute_blocks > s.model.layers)
    throw fail();
}

/// Applies `--experts`, "8:2" for example.
inline void set_experts(const std::string& text, settings& s) {
  if (text.empty()) return;
  gpt2::config& m = s.model;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto experts = std::from_chars(begin, end, m.experts);
  const bool has_two = experts.ec == std::errc() && experts.ptr != end && *experts.ptr == ':';
  if (!has_two || std::from_chars(experts.ptr + 1, end, m.experts_per_token).ptr != end ||
      m.experts_per_token < 1 || m.experts_per_token > m.experts)
    throw weft::usage_error("--experts " + text +
                            ": expected N:K, for N experts of which each token chooses K, with 1 <= K <= N");
}

/// Applies `--offload`: the tensors that it names are kept on `home`.
inline void set_offload(const settings& s, const weft::device& home, weft::parallel_options& o) {
  if (s.offload == "params" || s.offload == "all") o.offload_parameters = home;
  if (s.offload == "optimizer" || s.offload == "all") o.offload_optimizer = home;
}

/// The options that `--strategy` ("zero2" or "hybrid:4") and `--mesh` stand for.
inline weft::parallel_options parallel_options_of(const settings& s) {
  weft::parallel_options o;
  o.deterministic = s.deterministic;
  o.timeout = std::chrono::seconds(s.timeout);
  set_hook(s.hook, o);
  const std::string& name = s.strategy;
  const auto fail = [&] {
    return weft::usage_error(
        "--strategy " + name + ": expected one of " +
        (s.mesh.empty() ? "single, ddp, zero1, zero2, zero3, hybrid:K" : "zero1, zero2, zero3, with --mesh"));
  };
  if (name.size() == 5 && name.starts_with("zero") && name[4] >= '1' && name[4] <= '3')
    o.divide = static_cast<weft::sharding>(name[4] - '0');
  else if (!s.mesh.empty() && !name.empty()) throw fail();
  if (!s.mesh.empty()) {
    const weft::mesh_sizes sizes = weft::mesh_from_text(s.mesh);
    o.stages = sizes.pp;
    o.layer_ranks = sizes.tp;
    o.context_ranks = sizes.cp;
    o.expert_ranks = sizes.ep;
    if (sizes.fsdp == 1) o.divide = weft::sharding::none;
    else if (name.empty()) o.divide = weft::sharding::parameters;
    if (o.divide != weft::sharding::none) o.shard_ranks = sizes.fsdp * sizes.ep;
    return o;
  }
  if (o.divide != weft::sharding::none || name.empty() || name == "single" || name == "ddp") return o;
  if (!name.starts_with("hybrid:")) throw fail();
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + 7, end, o.shard_ranks);
  if (parsed.ec != std::errc() || parsed.ptr != end || o.shard_ranks < 1) throw fail();
  o.divide = weft::sharding::parameters;
  return o;
}

/// Refuses settings that cannot be combined with context parallelism, and sets its default.
inline void check_context(settings& s, const weft::mesh_sizes& sizes) {
  if (sizes.cp == 1 && !s.context_parallel.empty())
    throw weft::usage_error("--context-parallel " + s.context_parallel +
                            ": divides positions along the axis cp, which is missing: --mesh cp=2");
  if (sizes.cp == 1) return;
  if (s.context_parallel.empty()) s.context_parallel = "ring";
  const auto refuse = [&](const std::string& why) { throw weft::usage_error("--mesh " + s.mesh + why); };
  if (s.sequence_parallel)
    refuse(": the axis cp cannot be combined with --sequence-parallel, which divides positions along tp");
  if (s.model.context < sizes.cp)
    refuse(": --context " + std::to_string(s.model.context) + " has fewer positions than cp has ranks");
  if (parallel_options_of(s).local_steps > 1)
    refuse(": the axis cp cannot be combined with --hook " + s.hook);
}

/// Refuses settings that cannot be combined with experts.
inline void check_experts(const settings& s, const weft::mesh_sizes& sizes) {
  if (s.model.experts == 0 && sizes.ep != 1)
    throw weft::usage_error("--mesh " + s.mesh +
                            ": the axis ep divides experts, but the model has none: --experts 8:2");
  if (s.model.experts == 0) return;
  const auto refuse = [](const std::string& flag, const std::string& why) {
    throw weft::usage_error("--experts: cannot be combined with " + flag + why);
  };
  if (s.sequence_parallel)
    refuse("--sequence-parallel", ": every rank along tp sends the same rows to experts");
  if (s.context_parallel == "ulysses") refuse("--context-parallel ulysses", "; use ring");
  if (parallel_options_of(s).local_steps > 1) refuse("--hook " + s.hook, "");
  if (s.recompute_blocks > 0)
    refuse("--recompute block", ", which counts programs of blocks without experts");
  if (s.memory_limit > 0)
    refuse("--memory-limit", ": the memory of a rank depends on which experts the tokens choose");
}

/// Checks `--mesh`, and the flags that are only for pipelines.
inline void check_mesh_flags(settings& s) {
  const weft::mesh_sizes sizes = s.mesh.empty() ? weft::mesh_sizes{} : weft::mesh_from_text(s.mesh);
  if (sizes.pp == 0 || sizes.cp == 0 || sizes.ep == 0 || sizes.tp == 0)
    throw weft::usage_error("--mesh " + s.mesh + ": dp or fsdp may be auto, other axes need a number");
  check_context(s, sizes);
  check_experts(s, sizes);
  if (s.sequence_parallel && sizes.tp == 1)
    throw weft::usage_error(
        "--sequence-parallel: divides positions along the axis tp, which is missing: --mesh tp=2");
  if (s.model.heads % sizes.tp)
    throw weft::usage_error("--mesh " + s.mesh + ": --heads " + std::to_string(s.model.heads) +
                            " cannot be divided among " + std::to_string(sizes.tp) + " ranks");
  if (!s.mesh.empty() && sizes.fsdp == 1 && !s.strategy.empty())
    throw weft::usage_error("--strategy " + s.strategy + ": says what the axis fsdp shards, but --mesh " +
                            s.mesh + " does not have this axis");
  if (s.ranks == 0 && sizes.ranks() == 0 && s.comm == "threads")
    throw weft::usage_error("--mesh " + s.mesh + ": give the number of threads with --ranks");
  if (s.ranks == 0) s.ranks = static_cast<int>(sizes.ranks());
  if (sizes.pp != 1) return;
  const auto refuse = [](const std::string& flag, const std::string& value) {
    if (!value.empty()) throw weft::usage_error(flag + " " + value + ": is only for pipelines: --mesh pp=2");
  };
  refuse("--schedule", s.schedule);
  refuse("--timeline", s.timeline);
  if (!s.stage_blocks.empty()) refuse("--stages", std::to_string(s.stage_blocks[0]));
}

inline settings parse(int count, char** values) {
  settings s;
  std::string recompute, experts;
  arguments a;
  a.flag("help", s.help);
  a.flag("list-devices", s.list_devices);
  a.flag("resume", s.resume);
  a.flag("deterministic", s.deterministic);
  a.flag("sequence-parallel", s.sequence_parallel);
  a.flag("log-all-ranks", s.log_all_ranks);
  a.flag("graph", s.graph);
  a.flag("tf32", s.tf32);
  a.list("data", s.data);
  a.list("eval-data", s.eval_data);
  a.number<weft::index_t>("layers", s.model.layers, 1);
  a.number<weft::index_t>("heads", s.model.heads, 1);
  a.number<weft::index_t>("width", s.model.width, 1);
  a.number<weft::index_t>("context", s.model.context, 1);
  a.number<weft::index_t>("vocab", s.model.vocabulary, 256);
  a.number<weft::index_t>("batch", s.batch, 1);
  a.number<weft::index_t>("accumulate", s.accumulate, 1);
  a.number<weft::index_t>("microbatches", s.accumulate, 1);
  a.number<weft::index_t>("steps", s.steps, 1);
  a.number<weft::index_t>("warmup", s.warmup, 0);
  a.number<weft::index_t>("checkpoint-every", s.checkpoint_every, 1);
  a.number<int>("keep", s.keep, 1);
  a.choice("on-write-error", s.on_write_error, {"stop", "continue"});
  a.number<weft::index_t>("eval-every", s.eval_every, 1);
  a.number<weft::index_t>("sample", s.sample, 1);
  a.number<int>("threads", s.threads, 1);
  a.number<std::uint64_t>("seed", s.seed, 0);
  a.number<double>("lr", s.lr, 1e-300);
  a.number<double>("beta1", s.beta1, 0);
  a.number<double>("beta2", s.beta2, 0);
  a.number<double>("eps", s.eps, 0);
  a.number<double>("weight-decay", s.weight_decay, 0);
  a.number<double>("clip", s.clip, 0);
  a.choice("lr-schedule", s.lr_schedule, {"constant", "cosine"});
  a.text("mesh", s.mesh);
  a.choice("context-parallel", s.context_parallel, {"ring", "ulysses"});
  a.text("experts", experts);
  a.text("schedule", s.schedule);
  a.numbers<weft::index_t>("stages", s.stage_blocks, 1);
  a.text("timeline", s.timeline);
  a.text("profile", s.profile);
  a.choice("order", s.order, {"sequential", "shuffled"});
  a.text("device", s.device_name);
  a.number<int>("ranks", s.ranks, 1);
  a.number<int>("timeout", s.timeout, 1);
  a.choice("comm", s.comm, {"threads", "gloo", "mpi", "nccl"});
  a.choice("precision", s.precision, {"f32", "bf16", "f16"});
  a.choice("offload", s.offload, {"none", "params", "optimizer", "all"});
  a.text("recompute", recompute);
  a.bytes("memory-limit", s.memory_limit);
  a.text("strategy", s.strategy);
  a.text("hook", s.hook);
  a.text("flight", s.flight);
  a.text("init", s.init);
  a.text("save", s.save);
  a.text("checkpoint", s.checkpoint);
  a.text("log", s.log);
  a.text("prompt", s.prompt);
  a.parse(count, values);
  if (s.help || s.list_devices) return s;
  if (s.data.empty()) throw weft::usage_error("--data: expected files or folders to train on");
  if (s.model.width % s.model.heads)
    throw weft::usage_error("--heads " + std::to_string(s.model.heads) + " does not divide --width " +
                            std::to_string(s.model.width));
  parallel_options_of(s);
  if (s.schedule == "constant" || s.schedule == "cosine")
    throw weft::usage_error("--schedule " + s.schedule +
                            ": not a pipeline schedule; for the learning rate, use --lr-schedule " +
                            s.schedule);
  if (s.lr_schedule == "cosine" && s.warmup > s.steps)
    throw weft::usage_error("--warmup " + std::to_string(s.warmup) + ": is more than --steps " +
                            std::to_string(s.steps) + ", at which --lr-schedule cosine has reached 0");
  set_recompute(recompute, s);
  set_experts(experts, s);
  check_mesh_flags(s);
  if (!s.eval_data.empty() && s.eval_every == 0)
    throw weft::usage_error("--eval-data: needs --eval-every STEPS");
  if (s.resume && s.checkpoint.empty()) throw weft::usage_error("--resume: needs --checkpoint DIR");
  return s;
}
