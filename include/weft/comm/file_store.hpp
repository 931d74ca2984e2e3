// SPDX-License-Identifier: MIT
// A store in a folder that all ranks can access: one file per key or queue. For processes of one machine, or
// of several with a shared file system that supports locks.
//
// A value is written to another file, which is then renamed, so a reader sees a whole value or none.
// Operations that read and write (add, compare_set, push, pop) hold the lock of the folder. Everyone who may
// write to the folder can change the store: a folder created here is accessible to its owner only.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <thread>

#include <weft/comm/frames.hpp>
#include <weft/comm/store.hpp>

namespace weft {

/// A store in a folder; waiting polls the file system, every 50 ms at the longest.
class file_store : public store {
 public:
  /// Creates the folder if needed. Throws io_error if it cannot be used.
  explicit file_store(std::string folder) : folder_(std::move(folder)) {
    std::error_code failed;
    const bool made = std::filesystem::create_directories(folder_, failed);
    if (made && !failed) std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, failed);
    if (failed) throw io_error("weft: store: " + folder_ + ": " + failed.message());
    const folder_lock probe(*this);
  }

  void set(const std::string& key, const std::string& value) override {
    write(path_of(key_file, key), value);
  }
  std::string get(const std::string& key, milliseconds limit) override {
    std::optional<std::string> value;
    if (!until(limit, [&] { return (value = read(path_of(key_file, key))).has_value(); }))
      throw late({key}, limit);
    return *value;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const folder_lock lock(*this);
    const std::optional<std::string> value = read(path_of(key_file, key));
    const std::int64_t after = detail::stored_sum(key, value.value_or("0"), amount);
    write(path_of(key_file, key), std::to_string(after));
    return after;
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    const folder_lock lock(*this);
    const std::optional<std::string> value = read(path_of(key_file, key));
    if (value ? *value != expected : !expected.empty()) return value.value_or(expected);
    write(path_of(key_file, key), desired);
    return desired;
  }
  bool delete_key(const std::string& key) override {
    std::error_code failed;
    return std::filesystem::remove(path_of(key_file, key), failed);
  }
  bool check(const std::vector<std::string>& keys) override { return missing(keys).empty(); }
  std::int64_t num_keys() override {
    std::int64_t n = 0;
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, failed))
      n += entry.path().filename().string().starts_with(key_file);
    return n;
  }
  void wait(const std::vector<std::string>& keys, milliseconds limit) override {
    if (!until(limit, [&] { return missing(keys).empty(); })) throw late(missing(keys), limit);
  }
  /// Cost is linear in the size of the queue, as for pop.
  void push(const std::string& queue, const std::string& value) override {
    const folder_lock lock(*this);
    const std::string path = path_of(queue_file, queue);
    write(path, read(path).value_or("") + detail::frame_writer().text(value).take());
  }
  std::optional<std::string> pop(const std::string& queue, milliseconds limit = default_limit,
                                 std::stop_token stop = {}) override {
    const std::string path = path_of(queue_file, queue);
    std::optional<std::string> value;
    until(limit, [&] {
      if (std::filesystem::exists(path)) value = take_first(path);
      return value.has_value() || stop.stop_requested();
    });
    return value;
  }

 private:
  static constexpr const char* key_file = "key-";
  static constexpr const char* queue_file = "queue-";

  class folder_lock {
   public:
    explicit folder_lock(const file_store& s)
        : file_(::open((s.folder_ + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
      if (file_ < 0 || ::flock(file_, LOCK_EX) != 0) {
        if (file_ >= 0) ::close(file_);
        throw io_error("weft: store: " + s.folder_ + ": cannot be locked");
      }
    }
    folder_lock(const folder_lock&) = delete;
    folder_lock& operator=(const folder_lock&) = delete;
    ~folder_lock() { ::close(file_); }

   private:
    int file_;
  };

  /// The file of a key: letters, digits, '_' and '.' unchanged, other bytes as %XX. Throws value_error if the
  /// name is too long.
  std::string path_of(const char* kind, const std::string& key) const {
    constexpr const char* digits = "0123456789ABCDEF";
    std::string name;
    for (const char c : key) {
      const bool plain =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
      if (plain) name += c;
      else (name += '%') += {digits[static_cast<unsigned char>(c) >> 4], digits[c & 15]};
    }
    if (name.size() > 240)
      throw value_error("weft: store: a key of " + std::to_string(key.size()) +
                        " bytes is too long for a file");
    return folder_ + "/" + kind + name;
  }

  static std::optional<std::string> read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string& path, const std::string& bytes) const {
    static std::atomic<std::uint64_t> written{0};
    static const std::string machine =
        std::to_string(std::random_device()());  // process ids are per machine
    const std::string beside =
        folder_ + "/new-" + machine + "-" + std::to_string(::getpid()) + "-" + std::to_string(written++);
    std::ofstream out(beside, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    std::error_code failed;
    if (out) std::filesystem::rename(beside, path, failed);
    if (!out || failed) {
      std::filesystem::remove(beside, failed);
      throw io_error("weft: store: " + path + " cannot be written");
    }
  }
  /// Removes and returns the first value of a queue; removes the file with the last one.
  std::optional<std::string> take_first(const std::string& path) const {
    const folder_lock lock(*this);
    const std::optional<std::string> all = read(path);
    if (!all) return std::nullopt;
    detail::frame_reader r(*all);
    std::string value = r.text();
    if (!r.good()) throw io_error("weft: store: " + path + " holds no queue");
    if (r.at_end()) std::filesystem::remove(path);
    else write(path, r.rest());
    return value;
  }
  std::vector<std::string> missing(const std::vector<std::string>& keys) const {
    std::vector<std::string> m;
    for (const std::string& key : keys)
      if (!std::filesystem::exists(path_of(key_file, key))) m.push_back(key);
    return m;
  }

  /// Polls at increasing intervals until `done` returns true; false after `limit`.
  template <class F>
  static bool until(milliseconds limit, F done) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
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
