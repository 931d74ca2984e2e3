// SPDX-License-Identifier: MIT
// Fuzz target for pipeline schedules in files, and for meshes. The first byte selects the reader. A few lines
// that share no code with the check verify that a schedule that passes it runs to its end, and that one
// reported as a deadlock does not.
#include <cstdint>
#include <map>
#include <tuple>

#include <weft/parallel/mesh_text.hpp>
#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/simulate.hpp>

namespace {

using namespace weft;
using namespace weft::pipeline;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

/// Whether every stage reaches the end of its list if sends do not block.
bool ends(const schedule& s) {
  std::map<std::tuple<bool, int, int>, bool> passed;  // whether backward, chunk, micro-batch
  std::vector<std::size_t> next(s.steps.size());
  const auto can_run = [&](const step& e) {
    const bool backward = e.kind != step_kind::forward;
    if (e.kind == step_kind::backward_weight) return passed.count({true, e.chunk, e.micro_batch}) > 0;
    const int before = backward ? e.chunk + 1 : e.chunk - 1;
    const bool is_first = before < 0 || before == s.chunks();
    return (is_first || passed.count({backward, before, e.micro_batch})) &&
           (!backward || passed.count({false, e.chunk, e.micro_batch}));
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t stage = 0; stage < next.size(); ++stage)
      for (; next[stage] < s.steps[stage].size() && can_run(s.steps[stage][next[stage]]); ++next[stage]) {
        const step& e = s.steps[stage][next[stage]];
        if (e.kind != step_kind::backward_weight)
          passed[{e.kind != step_kind::forward, e.chunk, e.micro_batch}] = true;
        goes_on = true;
      }
  }
  for (std::size_t stage = 0; stage < next.size(); ++stage)
    if (next[stage] < s.steps[stage].size()) return false;
  return true;
}

void read_as_schedule(const std::string& text) {
  const schedule s = schedule_from_csv(text, "fuzz");
  const schedule again = schedule_from_csv(to_csv(s), "written");
  require(again.steps == s.steps && again.stage_of == s.stage_of && again.micro_batches == s.micro_batches);
  const auto found = check(s);
  if (found) {
    require(found->stage >= 0 && found->stage < s.stages());
    require(found->step >= 0 &&
            static_cast<std::size_t>(found->step) <= s.steps[static_cast<std::size_t>(found->stage)].size());
    require(!to_text(*found).empty());
  }
  if (!s.has_messages() && !found) require(ends(s));
  if (!s.has_messages() && found && found->kind == mistake::deadlock) require(!ends(s));
  if (found) return;
  const timing t = simulate(s, {.forward = 1, .input = 1, .weight = 1, .send = 0.5});
  require(t.makespan > 0 && t.bubble_fraction() >= 0 && t.bubble_fraction() < 1);
  require(live(s).size() == static_cast<std::size_t>(s.stages()));
}

void read_as_mesh(const std::string& text) {
  const int ranks = text.empty() ? 1 : 1 + static_cast<unsigned char>(text[0]);
  const mesh_sizes sizes = mesh_from_text(std::string_view(text).substr(text.empty() ? 0 : 1));
  if (sizes.ranks() > 0) require(mesh_from_text(to_mesh_text(sizes)) == sizes);
  require(with_ranks(sizes, ranks).ranks() == ranks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2) read_as_schedule(text);
    else read_as_mesh(text);
  } catch (const error&) {}
  return 0;
}
