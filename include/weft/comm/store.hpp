// SPDX-License-Identifier: MIT
// A store of keys, values and queues that ranks share while they form a group; the operations are those of
// torch.distributed.Store.
//
//   file_store store("/shared/job-17");
//   store.set("rank0/address", "10.0.0.1:4242");
//   std::string address = store.get("rank0/address");       // waits until it is set
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <weft/base/error.hpp>

namespace weft {

namespace detail {

/// A key or value as messages show it: at most its first 100 bytes.
inline std::string shown(const std::string& text) {
  return text.size() <= 100 ? text : text.substr(0, 100) + "...";
}

/// The number in `value` plus `amount`. Throws value_error if `value` is not a number, or the sum overflows.
std::int64_t stored_sum(const std::string& key, const std::string& value, std::int64_t amount);

}  // namespace detail

/// Interface of stores. All operations are atomic and may be called from several threads, unless a store says
/// otherwise.
class store {
 public:
  using milliseconds = std::chrono::milliseconds;
  static constexpr milliseconds default_limit{300'000};

  virtual ~store() = default;

  /// Sets the value of a key.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value of a key; waits until it is set. Throws timeout_error, naming the key, after `limit`.
  virtual std::string get(const std::string& key, milliseconds limit = default_limit) = 0;
  /// Adds to a decimal number, 0 if the key is not set, and returns the sum. Throws value_error if the value
  /// is not a number.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Sets `desired` if the value is `expected`, or if the key is not set and `expected` is empty. Returns the
  /// value that the key has then, or `expected` if it is not set.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;
  /// Removes a key; returns whether it was set.
  virtual bool delete_key(const std::string& key) = 0;
  /// Whether all keys are set; does not wait.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  virtual std::int64_t num_keys() = 0;
  /// Waits until all keys are set. Throws timeout_error, naming the missing ones, after `limit`.
  virtual void wait(const std::vector<std::string>& keys, milliseconds limit = default_limit) = 0;

  /// Appends a value to a queue. Queues and keys have separate names; an empty queue takes no memory.
  virtual void push(const std::string& queue, const std::string& value) = 0;
  /// Removes and returns the oldest value of a queue; waits until there is one. Returns nullopt after `limit`
  /// or when `stop` is requested; then nothing has been removed.
  virtual std::optional<std::string> pop(const std::string& queue, milliseconds limit = default_limit,
                                         std::stop_token stop = {}) = 0;

 protected:
  static timeout_error late(const std::vector<std::string>& missing, milliseconds limit);
};

/// A store in the memory of one process, for ranks that are threads.
class memory_store : public store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, milliseconds limit = default_limit) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool delete_key(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.erase(key) > 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    return missing(keys).empty();
  }
  std::int64_t num_keys() override {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(values_.size());
  }
  void wait(const std::vector<std::string>& keys, milliseconds limit) override;
  void push(const std::string& queue, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    queues_[queue].push_back(value);
    changed_.notify_all();
  }
  std::optional<std::string> pop(const std::string& queue, milliseconds limit = default_limit,
                                 std::stop_token stop = {}) override;

 private:
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;  // none is empty
};

/// A view of another store with a prefix on all names, so that several groups can share it. num_keys counts
/// the keys of the whole store.
class prefix_store : public store {
 public:
  prefix_store(std::string prefix, std::shared_ptr<store> of)
      : prefix_(std::move(prefix) + "/"), of_(std::move(of)) {}

  void set(const std::string& key, const std::string& value) override { of_->set(prefix_ + key, value); }
  std::string get(const std::string& key, milliseconds limit) override {
    return of_->get(prefix_ + key, limit);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return of_->add(prefix_ + key, amount);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return of_->compare_set(prefix_ + key, expected, desired);
  }
  bool delete_key(const std::string& key) override { return of_->delete_key(prefix_ + key); }
  bool check(const std::vector<std::string>& keys) override { return of_->check(prefixed(keys)); }
  std::int64_t num_keys() override { return of_->num_keys(); }
  void wait(const std::vector<std::string>& keys, milliseconds limit) override {
    of_->wait(prefixed(keys), limit);
  }
  void push(const std::string& queue, const std::string& value) override {
    of_->push(prefix_ + queue, value);
  }
  std::optional<std::string> pop(const std::string& queue, milliseconds limit,
                                 std::stop_token stop) override {
    return of_->pop(prefix_ + queue, limit, std::move(stop));
  }

 private:
  std::vector<std::string> prefixed(std::vector<std::string> keys) const {
    for (std::string& key : keys) key.insert(0, prefix_);
    return keys;
  }
  std::string prefix_;
  std::shared_ptr<store> of_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/store.ipp>
#endif
