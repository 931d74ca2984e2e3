// SPDX-License-Identifier: MIT
// The protocol between clients and server of a TCP store, and its limits.
//
// A frame is a u32 length and that many bytes. A request is a number, which is repeated in its answer, and an
// operation with its arguments. A client has one request at a time: a new request withdraws a waiting one,
// which is answered `late`; the request `withdraw` does only that and is not answered.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include <weft/comm/frames.hpp>
#include <weft/comm/store.hpp>

namespace weft {

/// Resource limits of the server of a TCP store. A request beyond a limit is refused with an error that names
/// it.
struct tcp_store_limits {
  std::size_t clients = 4096;                // authenticated connections
  std::chrono::seconds handshake{10};        // time to authenticate
  std::size_t strangers = 256;               // connections not yet authenticated; a new one closes the oldest
  std::size_t bytes = std::size_t{256}
                      << 20;  // of keys and values, plus `overhead` for each, and of requests being read
  std::size_t request = std::size_t{16} << 20;  // bytes of one request
  std::size_t waiting = std::size_t{16} << 20;  // bytes of keys being waited for, plus `overhead` for each
  std::chrono::seconds stall{
      60};  // time for a request that has begun to arrive, and for an answer to be sent
  std::chrono::seconds probe{30};  // silence after which TCP keep-alive probes the client's machine
  static constexpr std::size_t overhead = 128;  // memory for a key in addition to its content
};

namespace detail {

enum class store_operation : std::uint8_t {
  set,
  get,
  add,
  compare_set,
  delete_key,
  check,
  num_keys,
  wait,
  push,
  pop,
  withdraw
};
/// Result of a request; absent: the key is not set and is left alone.
enum class store_status : std::uint8_t { ok, wrong, late, absent };

const char* name_of(store_operation o);

/// A parsed request.
struct store_request {
  static constexpr std::size_t most_keys = 65536;

  std::int64_t number = 0;
  store_operation what{};
  std::vector<std::string> texts = {};  // keys or a queue, then values
  std::int64_t amount = 0;
};

/// Parses a request; nullopt if it is invalid.
std::optional<store_request> parse_store_request(std::string bytes);

/// Counts bytes in use, up to a limit.
class byte_budget {
 public:
  byte_budget(std::size_t limit, const char* name) : limit_(limit), name_(name) {}
  byte_budget(const byte_budget&) = delete;
  byte_budget& operator=(const byte_budget&) = delete;

  /// Whether `n` bytes can be taken after `given_back` bytes have been returned.
  bool fits(std::size_t n, std::size_t given_back = 0) const {
    return n <= limit_ && used_ - given_back <= limit_ - n;
  }
  std::size_t used() const { return used_; }
  std::string refusal(std::size_t n) const;

 private:
  friend class charge;
  std::size_t limit_, used_ = 0;
  const char* name_;
};

/// Bytes of a budget, returned on destruction. The caller must have checked that they fit.
class charge {
 public:
  charge(byte_budget& of, std::size_t n) : of_(&of), bytes_(n) { of_->used_ += n; }
  charge(charge&& other) noexcept : of_(other.of_), bytes_(std::exchange(other.bytes_, 0)) {}
  charge& operator=(charge&& other) noexcept {
    std::swap(of_, other.of_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~charge() { of_->used_ -= bytes_; }

  std::size_t bytes() const { return bytes_; }

 private:
  byte_budget* of_;
  std::size_t bytes_;
};

/// A value that is stored or being sent to clients, counted as long as it is either.
struct stored_value {
  std::string bytes;
  charge held;
};
using shared_value = std::shared_ptr<const stored_value>;

/// An answer to client `client`: `head`, then the bytes of `body`. Without a head the connection is closed.
struct store_reply {
  std::uint64_t client;
  std::optional<std::string> head;
  shared_value body = nullptr;

  std::size_t size() const { return head->size() + (body ? body->bytes.size() : 0); }
};

/// A short answer, which is not counted, or one with a stored value, which is counted.
store_reply store_answer(std::uint64_t client, std::int64_t number, store_status status,
                         const std::string& value);
store_reply store_answer(std::uint64_t client, std::int64_t number, shared_value value);

}  // namespace detail
}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/comm/impl/store_protocol.ipp>
#endif
