// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/store.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/deadline.hpp>
#include <weft/base/number.hpp>
#include <weft/comm/store.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::int64_t stored_sum(const std::string& key, const std::string& value, std::int64_t amount) {
  const std::optional<std::int64_t> held = parse_number<std::int64_t>(value);
  if (!held)
    throw value_error("weft: store: add: " + shown(key) + " holds \"" + shown(value) +
                      "\", which is not a number");
  std::int64_t n = 0;
  if (__builtin_add_overflow(*held, amount, &n))
    throw value_error("weft: store: add: " + shown(key) + " holds " + value + ": adding " +
                      std::to_string(amount) + " overflows");
  return n;
}

}  // namespace detail

WEFT_DEFINE timeout_error store::late(const std::vector<std::string>& missing, milliseconds limit) {
  std::string text = "weft: store: nobody has set";
  for (const std::string& key : missing) text.append(" ").append(key);
  return timeout_error(text + " within " + std::to_string(limit.count()) + " ms");
}

WEFT_DEFINE std::string memory_store::get(const std::string& key, milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline_after(limit), [&] { return values_.contains(key); }))
    throw late({key}, limit);
  return values_[key];
}

WEFT_DEFINE std::int64_t memory_store::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  const std::int64_t after = detail::stored_sum(key, found == values_.end() ? "0" : found->second, amount);
  values_[key] = std::to_string(after);
  changed_.notify_all();
  return after;
}

WEFT_DEFINE std::string memory_store::compare_set(const std::string& key, const std::string& expected,
                                                  const std::string& desired) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end() ? !expected.empty() : found->second != expected)
    return found == values_.end() ? expected : found->second;
  values_[key] = desired;
  changed_.notify_all();
  return desired;
}

WEFT_DEFINE void memory_store::wait(const std::vector<std::string>& keys, milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline_after(limit), [&] { return missing(keys).empty(); }))
    throw late(missing(keys), limit);
}

WEFT_DEFINE std::optional<std::string> memory_store::pop(const std::string& queue, milliseconds limit,
                                                         std::stop_token stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, std::move(stop), deadline_after(limit),
                           [&] { return queues_.contains(queue); }))
    return std::nullopt;
  const auto found = queues_.find(queue);
  std::string value = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
  return value;
}

WEFT_DEFINE std::vector<std::string> memory_store::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> m;
  for (const std::string& key : keys)
    if (!values_.contains(key)) m.push_back(key);
  return m;
}

}  // namespace weft
