// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/schedule/named.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/parallel/schedule/named.hpp>

namespace weft {
namespace pipeline {

WEFT_DEFINE schedule schedule_named(std::string_view name, int stages, int micro_batches) {
  const auto refuse = [&](const std::string& why) {
    throw usage_error("schedule \"" + std::string(name.substr(0, 60)) + "\": " + why);
  };
  const std::string_view base = name.substr(0, name.find(':'));
  const bool takes_chunks = base == "interleaved" || base == "breadth-first";
  int chunks = 1;
  if (base.size() != name.size()) {
    chunks = weft::detail::parse_number<int>(name.substr(base.size() + 1)).value_or(0);
    if (!takes_chunks || chunks < 1)
      refuse("only interleaved and breadth-first take a number, of chunks on a stage, as in interleaved:2");
  } else if (takes_chunks) {
    refuse("needs the number of chunks on a stage, as in interleaved:2");
  }
  if (base == "layer-wise" && micro_batches != 1) refuse("takes 1 micro-batch");
  if (base == "layer-wise") return layer_wise(stages);
  if (base == "gpipe") return gpipe(stages, micro_batches);
  if (base == "1f1b") return one_f_one_b(stages, micro_batches);
  if (base == "interleaved") return interleaved_1f1b(stages, micro_batches, chunks);
  if (base == "breadth-first") return breadth_first(stages, micro_batches, chunks);
  if (base == "zb-h1") return zb_h1(stages, micro_batches);
  if (base == "zb-v") return zb_v(stages, micro_batches);
  if (base == "dual-pipe-v") return dual_pipe_v(stages, micro_batches);
  if (base == "pipedream") return pipedream(stages, micro_batches);
  throw usage_error("schedule \"" + std::string(name.substr(0, 60)) + "\": must be one of " +
                    std::string(schedule_names));
}

}  // namespace pipeline
}  // namespace weft
