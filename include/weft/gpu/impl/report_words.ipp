// SPDX-License-Identifier: MIT
// Definitions of <weft/gpu/report_words.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/gpu/report_words.hpp>

namespace weft {
namespace gpu {

WEFT_DEFINE const report_words::thread_mark& report_words::this_thread() {
  static thread_local const thread_mark mark = std::make_shared<const int>(0);
  return mark;
}

WEFT_DEFINE std::size_t report_words::own() {
  const thread_mark& me = this_thread();
  std::size_t fewest = 0;
  for (std::size_t w = 0; w < count; ++w) {
    for (const auto& user : users_[w])
      if (user.lock() == me) return w;
    if (users_[w].size() < users_[fewest].size()) fewest = w;
  }
  users_[fewest].push_back(me);
  return fewest;
}

WEFT_DEFINE std::vector<std::size_t> report_words::asked() {
  const thread_mark& me = this_thread();
  std::vector<std::size_t> words;
  for (std::size_t w = 0; w < count; ++w) {
    auto& users = users_[w];
    if (users.empty()) continue;
    if (std::all_of(users.begin(), users.end(), [](const auto& user) { return user.expired(); }))
      users.assign(1, me);
    if (std::any_of(users.begin(), users.end(), [&](const auto& user) { return user.lock() == me; }))
      words.push_back(w);
  }
  return words;
}

WEFT_DEFINE void report_words::give_back(std::span<const std::size_t> words) {
  const thread_mark& me = this_thread();
  for (const std::size_t w : words)
    std::erase_if(users_[w], [&](const auto& user) { return user.expired() || user.lock() == me; });
}

}  // namespace gpu
}  // namespace weft
