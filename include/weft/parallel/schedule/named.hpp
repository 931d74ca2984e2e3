// SPDX-License-Identifier: MIT
// Schedules by name, for command lines.
//
//   auto s = pipeline::schedule_named("interleaved:2", 4, 16);
#pragma once

#include <string_view>

#include <weft/parallel/schedule/zero_bubble.hpp>

namespace weft::pipeline {

/// The names that schedule_named() accepts; V is the number of chunks per stage.
inline constexpr std::string_view schedule_names =
    "layer-wise, gpipe, 1f1b, interleaved:V, breadth-first:V, zb-h1, zb-v, dual-pipe-v, pipedream";

/// Returns the named schedule. Throws usage_error for an unknown name, and value_error for sizes that the
/// schedule does not support.
schedule schedule_named(std::string_view name, int stages, int micro_batches);

}  // namespace weft::pipeline

#ifndef WEFT_COMPILED
#include <weft/parallel/schedule/impl/named.ipp>
#endif
