// SPDX-License-Identifier: MIT
// What the clients of a TCP store send and get, as bytes; and the server's answers, without a socket.
//
// A frame is a u32 length and that many bytes. A request is a number that comes back with its answer
// and an operation with its arguments; strings are a u32 length and bytes; integers are little-endian.
// Requests are untrusted: a malformed one ends its client's connection, and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/store.hpp>

namespace weft::detail {

inline constexpr std::size_t max_store_frame = 16u << 20;   // bytes
inline constexpr std::size_t max_store_bytes = 256u << 20;  // of all keys and values

enum class store_operation : std::uint8_t { set, get, add, compare_set, delete_key, check, num_keys, wait };
enum class store_status : std::uint8_t { ok, wrong, late };

/// Writes the fields of a frame.
class frame_writer {
 public:
  frame_writer& byte(std::uint8_t b) { return bytes_ += static_cast<char>(b), *this; }
  frame_writer& number(std::int64_t n) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(static_cast<std::uint64_t>(n) >> 8 * i);
    return *this;
  }
  frame_writer& text(const std::string& s) {
    length(s.size());
    return bytes_ += s, *this;
  }
  frame_writer& texts(const std::vector<std::string>& all) {
    length(all.size());
    for (const std::string& s : all) text(s);
    return *this;
  }
  frame_writer& raw(const std::string& fields) { return bytes_ += fields, *this; }
  std::string take() { return std::move(bytes_); }

 private:
  void length(std::size_t n) {
    for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>(n >> 8 * i);
  }
  std::string bytes_;
};

/// Reads them; everything after something malformed is empty, and `good` says so.
class frame_reader {
 public:
  explicit frame_reader(std::string bytes) : bytes_(std::move(bytes)) {}

  std::uint8_t byte() { return static_cast<std::uint8_t>(unsigned_of(1)); }
  std::int64_t number() { return static_cast<std::int64_t>(unsigned_of(8)); }
  std::string text() {
    const auto n = static_cast<std::size_t>(unsigned_of(4));
    if (n > bytes_.size() - at_) return fail(), "";
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  std::vector<std::string> texts() {
    const auto n = static_cast<std::size_t>(unsigned_of(4));
    if (n > (bytes_.size() - at_) / 4) return fail(), std::vector<std::string>{};
    std::vector<std::string> all;
    for (std::size_t i = 0; i < n && good_; ++i) all.push_back(text());
    return all;
  }
  bool good() const { return good_; }
  bool at_end() const { return good_ && at_ == bytes_.size(); }

 private:
  std::uint64_t unsigned_of(std::size_t size) {
    if (!good_ || size > bytes_.size() - at_) return fail(), 0;
    std::uint64_t n = 0;
    for (std::size_t i = size; i-- > 0;) n = n << 8 | static_cast<unsigned char>(bytes_[at_ + i]);
    at_ += size;
    return n;
  }
  void fail() {
    good_ = false;
    at_ = bytes_.size();
  }
  std::string bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

inline std::string store_answer(std::int64_t number, store_status status, const std::string& value) {
  return frame_writer().number(number).byte(static_cast<std::uint8_t>(status)).text(value).take();
}

/// The keys of a TCP store, and the clients that wait for some.
class store_server_state {
 public:
  /// An answer to client `client`; no bytes: its connection ends.
  struct reply {
    std::uint64_t client;
    std::optional<std::string> bytes;
  };

  /// What a request leads to, for its client and for those that waited for what it sets.
  std::vector<reply> handle(std::uint64_t client, std::string request) {
    frame_reader r(std::move(request));
    const std::int64_t number = r.number();
    const auto what = static_cast<store_operation>(r.byte());
    std::vector<reply> replies;
    const auto answer = [&](const std::string& value) { replies.push_back({client, store_answer(number, store_status::ok, value)}); };
    const auto wrong = [&](const std::string& why) { replies.push_back({client, store_answer(number, store_status::wrong, why)}); };
    switch (what) {
      case store_operation::set: {
        const std::string key = r.text(), value = r.text();
        if (!r.at_end()) break;
        if (!put(key, value)) wrong("weft: store: is full");
        else answer("");
        answer_waiting(replies);
        return replies;
      }
      case store_operation::get: case store_operation::wait: {
        std::vector<std::string> keys = r.texts();
        if (!r.at_end() || keys.empty()) break;
        waiting_.push_back({client, number, std::move(keys), what == store_operation::get});
        answer_waiting(replies);
        return replies;
      }
      case store_operation::add: {
        const std::string key = r.text();
        const std::int64_t amount = r.number();
        if (!r.at_end()) break;
        try {
          const std::int64_t sum = keys_.add(key, amount);
          answer(std::to_string(sum));
        } catch (const value_error& e) {
          wrong(e.what());
        }
        answer_waiting(replies);
        return replies;
      }
      case store_operation::compare_set: {
        const std::string key = r.text(), expected = r.text(), desired = r.text();
        if (!r.at_end()) break;
        if (!fits(key, desired)) wrong("weft: store: is full");
        else answer(keys_.compare_set(key, expected, desired));
        answer_waiting(replies);
        return replies;
      }
      case store_operation::delete_key: {
        const std::string key = r.text();
        if (!r.at_end()) break;
        answer(keys_.delete_key(key) ? "1" : "0");
        return replies;
      }
      case store_operation::check: {
        const std::vector<std::string> keys = r.texts();
        if (!r.at_end()) break;
        answer(keys_.check(keys) ? "1" : "0");
        return replies;
      }
      case store_operation::num_keys:
        if (!r.at_end()) break;
        answer(std::to_string(keys_.num_keys()));
        return replies;
    }
    replies.push_back({client, std::nullopt});
    return replies;
  }

  /// A request that waits is given up.
  void forget(std::uint64_t client) {
    std::erase_if(waiting_, [&](const waiter& w) { return w.client == client; });
  }

 private:
  struct waiter {
    std::uint64_t client;
    std::int64_t number;
    std::vector<std::string> keys;
    bool wants_value;
  };

  bool fits(const std::string& key, const std::string& value) const { return bytes_ + key.size() + value.size() <= max_store_bytes; }
  bool put(const std::string& key, const std::string& value) {
    if (!fits(key, value)) return false;
    bytes_ += key.size() + value.size();  // an upper bound: what is replaced is not taken off
    keys_.set(key, value);
    return true;
  }
  void answer_waiting(std::vector<reply>& replies) {
    std::erase_if(waiting_, [&](const waiter& w) {
      if (!keys_.check(w.keys)) return false;
      const std::string value = w.wants_value ? keys_.get(w.keys[0], store::milliseconds(0)) : "";
      replies.push_back({w.client, store_answer(w.number, store_status::ok, value)});
      return true;
    });
  }

  memory_store keys_;
  std::vector<waiter> waiting_;
  std::size_t bytes_ = 0;
};

}  // namespace weft::detail
