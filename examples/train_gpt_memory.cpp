// SPDX-License-Identifier: MIT
// How train_gpt stays within --memory-limit. The memory of a step is known before it runs, so every way
// to recompute can be tried on a device that only counts memory.
#include <algorithm>
#include <cstdio>

#include "train_gpt_job.hpp"

namespace job {

namespace {

using namespace weft;

struct choice {
  settings s;
  double peak = 0, cost = 0;
};

/// The memory and cost of the worst rank. Ranks have shards of different sizes.
choice tried(const settings& s, const unit& u, int ranks) {
  constexpr double operations_per_byte = 50;  // nominal operations in the time that moves one byte
  choice c{s};
  for (int rank = 0; rank < ranks; ++rank) {
    const forecast f = u.forecast_of(s, rank, ranks, s.device_name.starts_with("cpu"));
    c.peak = std::max(c.peak, static_cast<double>(f.peak_bytes));
    c.cost = std::max(c.cost, f.work.operations / operations_per_byte + f.work.bytes);
  }
  return c;
}

/// For each unit that was built, the fewest recomputed blocks with which it fits (all if it never fits), or
/// the number that --recompute asks for.
std::vector<choice> choices(const settings& asked, int ranks) {
  std::vector<choice> all;
  for (const unit& u : units()) {
    if (!fits(u, asked) || (!asked.recompute.empty() && u.recompute != asked.recompute)) continue;
    settings s = asked;
    s.recompute = u.recompute;
    int fewest = asked.recompute_blocks,
        most = asked.recompute.empty() ? static_cast<int>(s.model.layers) : fewest;
    while (fewest < most) {  // each additional block saves memory
      s.recompute_blocks = (fewest + most) / 2;
      if (tried(s, u, ranks).peak <= s.memory_limit) most = s.recompute_blocks;
      else fewest = s.recompute_blocks + 1;
    }
    s.recompute_blocks = fewest;
    all.push_back(tried(s, u, ranks));
  }
  return all;
}

const choice* cheapest_within(const std::vector<choice>& all, double limit) {
  const choice* best = nullptr;
  for (const choice& c : all)
    if (c.peak <= limit && (!best || c.cost < best->cost)) best = &c;
  return best;
}

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", 1e-6 * bytes);
  return text;
}

/// Other settings that would fit, with the memory that they would take.
std::string other_settings(const settings& s, int ranks) {
  std::string text;
  const auto consider = [&](const std::string& flags, settings other) {
    other.recompute.clear();
    other.recompute_blocks = 0;
    try {
      const std::vector<choice> all = choices(other, ranks);
      const choice* const c = cheapest_within(all, s.memory_limit);
      if (c) text += (text.empty() ? "" : ", ") + flags + " (" + megabytes(c->peak) + ")";
      return c != nullptr;
    } catch (const usage_error&) {  // settings that cannot be combined
      return false;
    }
  };
  settings other = s;
  if (!s.recompute.empty()) consider("another --recompute", s);
  for (const char* offload : {"optimizer", "all"}) {
    other.offload = offload;
    if (s.offload == "none" && consider(std::string("--offload ") + offload, other)) break;
  }
  other = s;
  other.precision = "bf16";
  if (s.precision == "f32") consider("--precision bf16", other);
  other = s;
  other.strategy = "zero3";
  if (s.strategy == "ddp" && s.mesh.empty()) consider("--strategy zero3", other);
  const auto smaller_batches = [&](const std::string& flags, settings less) {  // same samples per step
    while (less.batch > 1) {
      less.accumulate *= 2;
      less.batch = (less.batch + 1) / 2;
      if (consider(flags + "--batch " + std::to_string(less.batch) + " --accumulate " +
                       std::to_string(less.accumulate),
                   less))
        return;
    }
  };
  smaller_batches("", s);
  other = s;
  other.offload = "optimizer";
  if (text.empty() && s.offload == "none") smaller_batches("--offload optimizer ", other);
  return text.empty() ? "no other settings of this program would fit" : "would fit: " + text;
}

}  // namespace

settings within_memory(const settings& s, int ranks) {
  const std::vector<choice> all = choices(s, ranks);
  if (all.empty()) throw not_built(s);
  if (const choice* best = cheapest_within(all, s.memory_limit)) return best->s;
  const auto least = std::min_element(all.begin(), all.end(),
                                      [](const choice& a, const choice& b) { return a.peak < b.peak; });
  throw usage_error("--memory-limit " + megabytes(s.memory_limit) + ": a rank would need at least " +
                    megabytes(least->peak) + "; " + other_settings(s, ranks));
}

std::string what_would_fit(settings s, int ranks, std::size_t bytes) {
  s.memory_limit = static_cast<double>(bytes);
  return "\n  with " + megabytes(s.memory_limit) + ": " + other_settings(s, ranks);
}

}  // namespace job
