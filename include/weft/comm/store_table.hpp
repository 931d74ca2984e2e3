// SPDX-License-Identifier: MIT
// The content of a TCP store and the clients waiting for parts of it: the server without sockets.
//
// All memory that a request leaves allocated is counted, and returned when it is deleted, popped, answered,
// or when its client disconnects. A client waits for at most one thing and is indexed by it, so that requests
// cost nothing for clients that wait for something else.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include <weft/comm/store_protocol.hpp>

namespace weft::detail {

class store_table {
 public:
  explicit store_table(const tcp_store_limits& limits = {})
      : memory_(limits.bytes, "bytes"), waiting_memory_(limits.waiting, "waiting") {}

  /// Performs a request; returns the replies to its client and to the clients that waited for what it sets.
  std::vector<store_reply> handle(std::uint64_t client, std::string request);

  /// Answers a request that is refused, with the reason.
  std::vector<store_reply> refuse(std::uint64_t client, std::int64_t number, const std::string& why);

  /// Removes client `client`, which has disconnected, and its wait.
  void forget(std::uint64_t client) {
    std::vector<store_reply> to_nobody;
    withdraw(client, to_nobody);
  }

  byte_budget& memory() { return memory_; }
  std::size_t waiters() const { return waiting_.size(); }
  std::size_t waiting_bytes() const { return waiting_memory_.used(); }

 private:
  static constexpr std::size_t overhead = tcp_store_limits::overhead;

  struct waiter {
    std::uint64_t ticket;  // order of arrival
    store_request request;
    charge held;
    std::size_t watched = 0;  // index of the key by which it is found, the last one found missing
  };

  void perform(std::uint64_t client, store_request& q, std::vector<store_reply>& replies);

  void compare_and_set(std::uint64_t client, store_request& q, std::vector<store_reply>& replies);

  /// A value of the key or queue of `q`. Throws value_error if it does not fit after `given_back` bytes have
  /// been returned.
  shared_value stored(const store_request& q, std::string bytes, std::size_t given_back);
  void put(const store_request& q, std::string bytes);

  /// Index of the first missing key, starting at `from` and wrapping around; the number of keys if none is
  /// missing.
  std::size_t missing_from(const store_request& q, std::size_t from) const;

  /// Answers a request if possible; otherwise sets `watched` to the index of a missing key.
  bool answered(std::uint64_t client, const store_request& q, std::size_t& watched,
                std::vector<store_reply>& replies);
  void wait_for(std::uint64_t client, store_request& q, std::vector<store_reply>& replies);

  /// A key (false) or a queue (true).
  using name = std::pair<bool, std::string>;
  static name name_of_watched(const waiter& w) {
    return {w.request.what == store_operation::pop, w.request.texts[w.watched]};
  }

  /// Answers the clients that waited for `come`, in order of arrival.
  void wake(const name& come, std::vector<store_reply>& replies);
  void withdraw(std::uint64_t client, std::vector<store_reply>& replies);

  byte_budget memory_, waiting_memory_;  // declared before the values that they count
  std::map<std::string, shared_value> keys_;
  std::map<std::string, std::deque<shared_value>> queues_;  // none is empty
  std::uint64_t tickets_ = 0;
  std::unordered_map<std::uint64_t, waiter> waiting_;                               // by client
  std::map<name, std::set<std::pair<std::uint64_t, std::uint64_t>>>
      watchers_;  // tickets and clients, by what they wait for
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/store_table.ipp>
#endif
