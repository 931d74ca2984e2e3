// SPDX-License-Identifier: MIT
// Definitions of <weft/device/memory_options.hpp>.
#pragma once

#include <cstdlib>
#include <string>

#include <weft/base/config.hpp>
#include <weft/base/error.hpp>
#include <weft/base/number.hpp>
#include <weft/device/memory_options.hpp>

namespace weft {

namespace detail {

[[noreturn, gnu::cold]] WEFT_DEFINE void refuse_memory_option(std::string_view entry, const char* why) {
  refuse<usage_error>({"weft: WEFT_ALLOC_CONF: \"", entry, "\": ", why,
                       "; known: max_split_size_mb:N, garbage_collection_threshold:X, "
                       "expandable_segments:true or false, with commas between them"});
}

template <class T>
T memory_number(std::string_view entry, std::string_view text, T least, T most, const char* range) {
  const std::optional<T> value = parse_number<T>(text);
  if (!value || !(*value >= least && *value <= most)) refuse_memory_option(entry, range);
  return *value;
}

}  // namespace detail

WEFT_DEFINE memory_options memory_options::parse(std::string_view text) {
  memory_options o;
  std::string_view keys[] = {"max_split_size_mb", "garbage_collection_threshold", "expandable_segments"};
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    if (comma != std::string_view::npos && text.empty()) detail::refuse_memory_option(",", "nothing follows");
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      detail::refuse_memory_option(entry, "expected a value after a colon");
    const std::string_view key = entry.substr(0, colon), value = entry.substr(colon + 1);
    std::size_t k = 0;
    while (k < std::size(keys) && keys[k] != key) ++k;
    if (k == std::size(keys) || key.empty())
      detail::refuse_memory_option(entry, "unknown key, or given twice");
    keys[k] = {};
    if (k == 0)
      o.max_split_size = detail::memory_number<std::size_t>(entry, value, 2, std::size_t{1} << 40,
                                                            "expected megabytes, an integer above 1")
                         << 20;
    else if (k == 1)
      o.garbage_collection_threshold =
          detail::memory_number<double>(entry, value, 0, 1, "expected a number from 0 to 1");
    else if (value == "true" || value == "false") o.expandable_segments = value == "true";
    else detail::refuse_memory_option(entry, "expected true or false");
  }
  return o;
}

WEFT_DEFINE memory_options memory_options::from_environment() {
  const char* const set = std::getenv("WEFT_ALLOC_CONF");
  return parse(set ? set : "");
}

}  // namespace weft
