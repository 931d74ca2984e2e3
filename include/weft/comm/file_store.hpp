// SPDX-License-Identifier: MIT
// A store in a folder that all ranks can access: one file per key or queue. For processes of one machine, or
// of several with a shared file system that supports locks.
//
// A value is written to a temporary file, which is then renamed, so that a reader sees a whole value or none.
// Operations that write hold the lock of the folder, which makes a read followed by a write atomic (add,
// compare_set, push, pop). Everyone with write access to the folder can change the store; a folder created
// here is accessible to its owner only.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include <weft/base/deadline.hpp>
#include <weft/comm/frames.hpp>
#include <weft/comm/store.hpp>

namespace weft {

/// A store in a folder; waiting polls the file system at intervals of at most 50 ms.
class file_store : public store {
 public:
  /// Creates the folder if needed. Throws io_error if it cannot be used.
  explicit file_store(std::string folder);

  void set(const std::string& key, const std::string& value) override {
    const folder_lock lock(*this);
    write(path_of(key_file, key), value);
  }
  std::string get(const std::string& key, milliseconds limit) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool delete_key(const std::string& key) override {
    const folder_lock lock(*this);
    std::error_code failed;
    return std::filesystem::remove(path_of(key_file, key), failed);
  }
  bool check(const std::vector<std::string>& keys) override { return missing(keys).empty(); }
  std::int64_t num_keys() override;
  void wait(const std::vector<std::string>& keys, milliseconds limit) override {
    if (!until(limit, [&] { return missing(keys).empty(); })) throw late(missing(keys), limit);
  }
  /// Cost is linear in the size of the queue, as for pop.
  void push(const std::string& queue, const std::string& value) override;
  std::optional<std::string> pop(const std::string& queue, milliseconds limit = default_limit,
                                 std::stop_token stop = {}) override;

 private:
  static constexpr const char* key_file = "key-";
  static constexpr const char* queue_file = "queue-";

  class folder_lock {
   public:
    explicit folder_lock(const file_store& s);
    folder_lock(const folder_lock&) = delete;
    folder_lock& operator=(const folder_lock&) = delete;
    ~folder_lock() { ::close(file_); }

   private:
    int file_;
  };

  /// The file of a key: letters, digits, '_' and '.' unchanged, other bytes as %XX. Throws value_error if the
  /// name is too long.
  std::string path_of(const char* kind, const std::string& key) const;

  static std::optional<std::string> read(const std::string& path);
  void write(const std::string& path, const std::string& bytes) const;
  /// Removes and returns the first value of a queue; removes the file with the last one.
  std::optional<std::string> take_first(const std::string& path) const;
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;

  /// Polls at increasing intervals until `done` returns true; false after `limit`.
  template <class F>
  static bool until(milliseconds limit, F done) {
    const auto deadline = deadline_after(limit);
    for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(50))) {
      if (done()) return true;
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left <= milliseconds(0)) return false;
      std::this_thread::sleep_for(std::min(pause, left));
    }
  }

  std::string folder_;
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/file_store.ipp>
#endif
