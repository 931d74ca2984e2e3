// SPDX-License-Identifier: MIT
// The cost of a pipeline schedule before it runs: checks the schedule, prints its bubble and live
// activations, and draws its timeline.
//
//   pipeline_schedule --schedule zb-h1 --stages 4 --micro-batches 8 --timeline zb_h1.svg
//   pipeline_schedule --csv mine.csv
#include <fstream>
#include <iostream>
#include <iterator>

#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/schedule/simulate.hpp>
#include <weft/parallel/schedule/timeline.hpp>

#include "arguments.hpp"

namespace {
using namespace weft::pipeline;

struct settings {
  std::string schedule = "1f1b", csv, timeline;
  int stages = 4, micro_batches = 8;
  costs cost{};
  bool table = false;
};

schedule make(const settings& chosen) {
  if (chosen.csv.empty()) return schedule_named(chosen.schedule, chosen.stages, chosen.micro_batches);
  std::ifstream in(chosen.csv, std::ios::binary);
  if (!in) throw weft::io_error(chosen.csv + ": cannot be read");
  return schedule_from_csv(std::string(std::istreambuf_iterator<char>(in), {}), chosen.csv);
}

void report(const schedule& s, const timing& t) {
  std::cout << s.stages() << " stages, " << s.chunks() << " chunks, " << s.micro_batches << " micro-batches\n"
            << "time " << t.makespan << ", bubble " << t.bubble() << ", idle " << 100 * t.bubble_fraction()
            << "%\n";
  const auto held = live(s);
  for (int k = 0; k < s.stages(); ++k) {
    const live_counts& h = held[static_cast<std::size_t>(k)];
    std::cout << "stage " << k << ": idle " << t.idle(k) << ", activations of " << h.activations
              << " micro-batches of a chunk";
    if (h.weight_inputs > 0) std::cout << ", with inputs of deferred weight parts " << h.together;
    if (h.versions > 1) std::cout << ", versions of the parameters " << h.versions;
    std::cout << '\n';
  }
}

int run(int count, char** values) {
  settings chosen;
  arguments known;
  known.text("schedule", chosen.schedule);
  known.text("csv", chosen.csv);
  known.text("timeline", chosen.timeline);
  known.number("stages", chosen.stages, 1);
  known.number("micro-batches", chosen.micro_batches, 1);
  known.number("forward", chosen.cost.forward, 0.0);
  known.number("input", chosen.cost.input, 0.0);
  known.number("weight", chosen.cost.weight, 0.0);
  known.number("send", chosen.cost.send, 0.0);
  known.flag("table", chosen.table);
  known.parse(count, values);
  const schedule s = make(chosen);
  if (const auto f = check(s)) {
    std::cerr << to_text(*f) << '\n';
    return 1;
  }
  const timing t = simulate(s, chosen.cost);
  report(s, t);
  if (chosen.table) std::cout << to_csv(s);
  if (chosen.timeline.empty()) return 0;
  const std::string title = chosen.csv.empty() ? chosen.schedule : chosen.csv;
  std::ofstream out(chosen.timeline, std::ios::binary);
  out << timeline_svg(t.records, {.title = title});
  if (!out.flush()) throw weft::io_error(chosen.timeline + ": cannot be written");
  return 0;
}
}  // namespace

int main(int count, char** values) {
  try {
    return run(count, values);
  } catch (const weft::usage_error& e) {
    std::cerr << e.what() << '\n';
    return 2;
  } catch (const weft::error& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
