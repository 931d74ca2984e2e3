// SPDX-License-Identifier: MIT
// Definitions of <weft/device/memory_figures.hpp>.
#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/device/block_pool.hpp>
#include <weft/device/memory_figures.hpp>

namespace weft::detail {

WEFT_DEFINE std::string bytes_text(std::size_t bytes) {
  if (bytes < 1000000) return std::to_string(bytes) + " bytes";
  return fixed(1e-6 * static_cast<double>(bytes), 1) + " MB";
}

WEFT_DEFINE std::string largest_blocks(const block_pool& pool, std::size_t most) {
  std::vector<const memory_block*> taken;
  pool.for_each([&](const memory_block& b) {
    if (b.is == memory_block::use::taken) taken.push_back(&b);
  });
  const std::size_t listed = std::min(most, taken.size());
  std::partial_sort(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(listed), taken.end(),
                    [](const memory_block* a, const memory_block* b) {
                      return a->granted > b->granted || (a->granted == b->granted && a->at < b->at);
                    });
  std::string text;
  for (std::size_t i = 0; i < listed; ++i) {
    const memory_block& b = *taken[i];
    text += "\n    " + bytes_text(b.granted) + "  " + (*b.what ? b.what : "a tensor");
    if (b.name) text += " " + *b.name;
  }
  if (taken.size() > listed) text += "\n    and " + std::to_string(taken.size() - listed) + " more";
  return text;
}

WEFT_DEFINE std::string out_of_memory_text(std::string_view error, const char* what, const memory_figures& f,
                                           const device_room& room) {
  std::string text(error);
  if (*what) text += std::string(" for ") + what;
  text +=
      "\n  in use: " + bytes_text(f.in_use) + ", cached: " + bytes_text(f.reserved - f.in_use - f.awaited);
  if (f.largest_free) text += ", of which the largest block is " + bytes_text(f.largest_free);
  if (f.awaited) text += ", freed and used by other queues: " + bytes_text(f.awaited);
  if (room.total) text += "; the device has " + bytes_text(room.total);
  if (room.free) text += ", of which " + bytes_text(room.free) + " are free";
  if (f.blocks) text += "\n  the largest of " + std::to_string(f.blocks) + " blocks in use:";
  return text;
}

WEFT_DEFINE std::string summary_text(const memory_figures& f, const memory_options& o,
                                     const device_room& room, std::size_t limit) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    char line[128];
    std::snprintf(line, sizeof line, "  %-42s %16s\n", name, value.c_str());
    text += line;
  };
  row("in use", bytes_text(f.in_use));
  row("in use at the peak", bytes_text(f.peak));
  row("reserved", bytes_text(f.reserved));
  row("reserved at the peak", bytes_text(f.peak_reserved));
  row("cached", bytes_text(f.reserved - f.in_use - f.awaited));
  row("largest cached block", bytes_text(f.largest_free));
  row("freed, used by other queues", bytes_text(f.awaited));
  row("blocks in use", std::to_string(f.blocks));
  row("allocations from the device", std::to_string(f.requests));
  row("parts of the cache returned to it", std::to_string(f.returned));
  row("requests repeated with an empty cache", std::to_string(f.retries));
  row("requests that failed", std::to_string(f.failures));
  if (room.total) row("memory of the device", bytes_text(room.total));
  if (room.free) row("free on the device", bytes_text(room.free));
  if (limit != memory_options::unlimited) row("limit", bytes_text(limit));
  if (o.max_split_size != memory_options::unlimited) row("max_split_size", bytes_text(o.max_split_size));
  if (o.garbage_collection_threshold > 0)
    row("garbage_collection_threshold", fixed(o.garbage_collection_threshold, 2));
  return text;
}

}  // namespace weft::detail
