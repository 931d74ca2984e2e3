// SPDX-License-Identifier: MIT
// Meshes and pipelines of train_gpt: the interpretation of its flags, compiled once.
#include <fstream>
#include <iterator>

#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/schedule/timeline.hpp>

#include "train_gpt_job.hpp"

namespace job {

using namespace weft;

namespace {
bool is_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

pipeline::schedule schedule_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw io_error(path + ": cannot be read");
  return pipeline::schedule_from_csv(std::string(std::istreambuf_iterator<char>(in), {}), path);
}

/// The schedule's number of micro-batches; for a schedule given by name, twice the number of stages.
index_t usual_micro_batches(const settings& s, int stages) {
  if (stages == 1) return 1;
  return is_file(s.schedule) ? schedule_in(s.schedule).micro_batches : 2 * stages;
}
}  // namespace

mesh_sizes mesh_of(const settings& s, int ranks) {
  if (!s.mesh.empty()) return with_ranks(mesh_from_text(s.mesh), ranks);
  const parallel_options o = parallel_options_of(s);
  mesh_sizes sizes;
  sizes.fsdp = o.divide == sharding::none ? 1 : o.shard_ranks ? o.shard_ranks : ranks;
  sizes.dp = std::max(1, ranks / sizes.fsdp);
  return sizes;
}

pipeline::schedule schedule_of(const settings& s, int stages, int micro_batches) {
  if (is_file(s.schedule)) return schedule_in(s.schedule);
  try {
    return pipeline::schedule_named(s.schedule, stages, micro_batches);
  } catch (const value_error& e) { throw usage_error("--schedule " + s.schedule + ": " + e.what()); }
}

model_division model_division_of(const settings& s) {
  const parallel_options o = parallel_options_of(s);
  const int stages = o.stages;
  if (s.model.experts > 0) return model_division::experts;
  if (o.context_ranks > 1)
    return s.context_parallel == "ulysses" ? model_division::ulysses : model_division::ring;
  if (o.layer_ranks > 1)
    return s.sequence_parallel ? model_division::layers_and_positions : model_division::layers;
  if (stages == 1) return model_division::none;
  for (const auto& list : schedule_of(s, stages, static_cast<int>(s.accumulate)).steps)
    for (const pipeline::step& e : list)
      if (e.kind == pipeline::step_kind::backward_input) return model_division::stages_and_backward;
  return model_division::stages;
}

settings resolved(settings s, int ranks) {
  const mesh_sizes sizes = mesh_of(s, ranks);
  if (!s.mesh.empty()) s.mesh = to_mesh_text(sizes);  // replaces auto by numbers
  if (s.mesh.empty() && s.strategy.empty()) s.strategy = ranks > 1 ? "ddp" : "single";
  if (s.strategy == "single" && ranks > 1)
    throw usage_error("--strategy single: is for one rank, but there are " + std::to_string(ranks));
  const bool has_stages = sizes.pp > 1 || sizes.tp > 1 || sizes.cp > 1 || s.model.experts > 0;
  if (has_stages && s.schedule.empty()) s.schedule = "1f1b";
  if (s.accumulate == 0) s.accumulate = usual_micro_batches(s, sizes.pp);
  return s;
}

usage_error not_built(const settings& s) {
  const model_division d = model_division_of(s);
  std::string flags =
      "--precision " + s.precision + " --recompute " + (s.recompute.empty() ? "none" : s.recompute);
  if (d == model_division::experts)
    flags +=
        " --experts " + std::to_string(s.model.experts) + ":" + std::to_string(s.model.experts_per_token);
  else if (d >= model_division::layers) flags += " --mesh " + s.mesh;
  if (!s.context_parallel.empty()) flags += " --context-parallel " + s.context_parallel;
  if (!s.schedule.empty()) flags += " --schedule " + s.schedule;
  return usage_error(flags + ": this program was built without this combination");
}

void write_timeline(const settings& s, index_t step, const pipeline::timing& t) {
  std::ofstream out(s.timeline, std::ios::binary);
  char idle[32];
  std::snprintf(idle, sizeof idle, "%.1f%%", 100 * t.bubble_fraction());
  out << pipeline::timeline_svg(
      t.records, {.title = s.schedule + ", " + std::to_string(t.stages.size()) + " stages, " +
                           std::to_string(s.accumulate) + " micro-batches: step " + std::to_string(step) +
                           " as measured, " + idle + " idle",
                  .unit = "ms",
                  .time_scale = 1e3});
  if (!out.flush()) throw io_error(s.timeline + ": cannot be written");
}

}  // namespace job
