// SPDX-License-Identifier: MIT
// The lines of train_gpt's log, as JSON.
#include <cmath>
#include <cstdio>

#include "train_gpt_job.hpp"

namespace job {

using namespace weft;

namespace {
std::string text_of(const char* format, auto... values) {
  std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, values...)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, values...);
  return text;
}

std::string quoted(const std::string& text) {
  std::string t = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') t += '\\';
    if (static_cast<unsigned char>(c) >= ' ') t += c;
  }
  return t + "\"";
}

template <class Numbers>
std::string list_of(const Numbers& numbers) {
  std::string text;
  for (const auto n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

/// {"pp": 2, "dp": 2}: the value of `of` for each axis with several ranks, and for others if above `none`.
template <class F>
std::string by_axis(const mesh_sizes& sizes, std::int64_t none, F of) {
  std::string text;
  for (const mesh_axis a : mesh_axes)
    if (sizes.of(a) > 1 || of(a) > none)
      text += (text.empty() ? "\"" : ", \"") + std::string(name_of(a)) + "\": " + std::to_string(of(a));
  return "{" + text + "}";
}

/// The bytes that a rank has sent, by kind.
std::string comm_bytes(const traffic& sent) {
  std::string t = "{";
  for (collective k : {collective::all_reduce, collective::reduce_scatter, collective::all_gather,
                       collective::broadcast, collective::send})
    if (sent.of(k)) t += std::string("\"") + name_of(k) + "\": " + std::to_string(sent.of(k)) + ", ";
  return t + "\"control\": " + std::to_string(sent.control) + ", \"total\": " + std::to_string(sent.total()) +
         "}";
}
}  // namespace

std::string json_number(double x) { return std::isfinite(x) ? text_of("%.9g", x) : "null"; }

std::string first_line(const settings& s, const run_facts& f) {
  const mesh_sizes sizes = mesh_of(s, f.ranks);
  std::string t = text_of(
      "{\"config\": {\"layers\": %lld, \"heads\": %lld, \"width\": %lld, \"context\": %lld, \"batch\": %lld, "
      "\"accumulate\": %lld, \"vocab\": %lld, \"steps\": %lld, \"seed\": %llu, \"strategy\": \"%s\", "
      "\"comm\": \"%s\", \"deterministic\": %s, \"precision\": \"%s\", \"recompute\": \"%s\", "
      "\"recomputed_blocks\": %d, \"memory_limit\": %.0f}, \"mesh\": ",
      static_cast<long long>(s.model.layers), static_cast<long long>(s.model.heads),
      static_cast<long long>(s.model.width), static_cast<long long>(s.model.context),
      static_cast<long long>(s.batch), static_cast<long long>(s.accumulate),
      static_cast<long long>(s.model.vocabulary), static_cast<long long>(s.steps),
      static_cast<unsigned long long>(s.seed), s.strategy.c_str(), f.comm, s.deterministic ? "true" : "false",
      s.precision.c_str(), s.recompute.c_str(), s.recompute_blocks, s.memory_limit);
  t += by_axis(sizes, 1, [&](mesh_axis a) { return sizes.of(a); });
  if (sizes.cp > 1) t += ", \"context_parallel\": " + quoted(s.context_parallel);
  if (s.model.experts > 0)
    t += text_of(", \"experts\": %lld, \"experts_per_token\": %lld", static_cast<long long>(s.model.experts),
                 static_cast<long long>(s.model.experts_per_token));
  if (sizes.pp > 1)
    t += ", \"schedule\": " + quoted(s.schedule) + ", \"blocks_by_chunk\": " + list_of(f.chunk_blocks) +
         ", \"predicted_peak_bytes_by_stage\": " + list_of(f.stage_peaks);
  return t + text_of(
                 ", \"parameters\": %lld, \"device\": \"%s\", \"threads\": %d, \"isa\": \"%s\", "
                 "\"predicted_peak_bytes\": %zu, \"predicted_reserved_bytes\": %zu, "
                 "\"predicted_comm_bytes\": %lld}",
                 static_cast<long long>(f.parameters), f.device, f.threads, compiled_isa(),
                 f.expected.peak_bytes, f.expected.reserved_bytes,
                 static_cast<long long>(f.expected.sent_bytes));
}

std::string step_line(const settings& s, const step_facts& f) {
  const step_result& r = f.result;
  std::string t = text_of(
      "{\"step\": %lld, \"loss\": %.9g, \"loss_hex\": \"%a\", \"grad_norm\": %s, \"lr\": %.9g, \"tokens\": "
      "%lld, "
      "\"ms\": %.3f, \"tokens_per_s\": %.1f, \"peak_bytes\": %zu, \"reserved_bytes\": %zu, \"allocations\": "
      "%zu, "
      "\"rank\": %d, \"world\": %d, \"comm_bytes\": ",
      static_cast<long long>(f.step), r.loss, r.loss, json_number(r.norm).c_str(), f.lr,
      static_cast<long long>(f.tokens), f.ms, 1e3 * static_cast<double>(f.tokens) / f.ms, f.memory.peak,
      f.memory.reserved, f.allocations, f.rank, f.ranks);
  const mesh_sizes sizes = mesh_of(s, f.ranks);
  t += comm_bytes(r.sent) + ", \"comm_bytes_by_axis\": " + by_axis(sizes, 0, [&](mesh_axis a) {
         return r.sent_by_axis[static_cast<std::size_t>(a)];
       });
  if (sizes.pp > 1) t += text_of(", \"bubble_fraction\": %.4f", r.bubble_fraction);
  // Activations are the peak minus parameters, gradients and optimizer state: saved values, the arena,
  // messages.
  const index_t kept = f.parameter_bytes + f.gradient_bytes + f.optimizer_bytes;
  return t + text_of(
                 ", \"comm_exposed_ms\": %.3f, \"param_bytes\": %lld, \"grad_bytes\": %lld, "
                 "\"optimizer_bytes\": %lld, \"activation_bytes\": %lld}",
                 r.waited_ms, static_cast<long long>(f.parameter_bytes),
                 static_cast<long long>(f.gradient_bytes), static_cast<long long>(f.optimizer_bytes),
                 static_cast<long long>(static_cast<index_t>(f.memory.peak) - kept));
}

}  // namespace job
