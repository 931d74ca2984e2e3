// SPDX-License-Identifier: MIT
// Ranks on Gloo's connections prove who they are before anything else is sent.
//
// Gloo takes the first connection to a port for the rank that should come there, whoever it is. So each rank
// publishes a nonce in the store, and then sends through each connection the HMAC, under the job's token, of
// both numbers and both nonces: a stranger who has taken a rank's place cannot, and is found before any
// tensor is sent.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <weft/base/error.hpp>
#include <weft/comm/handshake.hpp>
#include <weft/comm/store.hpp>

namespace weft::detail {

class gloo_proof {
 public:
  static constexpr std::uint64_t slot = 3;  // of no operation

  /// Publishes this rank's nonce: before it connects, so that it is there even if connecting fails.
  gloo_proof(store& s, std::string token, int rank) : store_(s), token_(std::move(token)), rank_(rank) {
    s.set(key_of(rank), random_bytes(nonce_bytes));
  }

  /// Exchanges proofs on all connections of `context`. Throws comm_error, on all ranks with the ranks at both
  /// ends of the connection, if who is connected as a rank proves something else or nothing within `limit`;
  /// and
  /// ::gloo::Exception if a connection is closed.
  void exchange(::gloo::Context& context, std::chrono::milliseconds limit) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    const auto left = [&] {
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      return std::max(ms, std::chrono::milliseconds(1));
    };
    std::vector<std::string> nonces;
    for (int r = 0; r < context.size; ++r) nonces.push_back(store_.get(key_of(r), left()));
    std::vector<peer> peers;
    for (int r = 0; r < context.size; ++r)
      if (r != rank_) peers.push_back({r, proof_of(rank_, r, nonces), std::string(proof_bytes, '\0')});
    int asked = rank_;
    try {
      for (peer& p : peers) {
        asked = p.rank;
        p.sent = context.createUnboundBuffer(p.mine.data(), proof_bytes);
        p.received = context.createUnboundBuffer(p.theirs.data(), proof_bytes);
        p.sent->send(p.rank, slot);
        p.received->recv(p.rank, slot);
      }
      for (peer& p : peers) {
        asked = p.rank;
        p.received->waitRecv(left());
        if (!proves(p.theirs, proof_of(p.rank, rank_, nonces)))
          throw refusal(p.rank, "it does not know the job's token (WEFT_JOB_TOKEN)");
      }
      for (peer& p : peers) {
        asked = p.rank;
        p.sent->waitSend(left());
      }
    } catch (const ::gloo::Exception&) {
      if (store_.check({"failed"})) throw comm_error(store_.get("failed", left()));
      if (std::chrono::steady_clock::now() >= until) throw refusal(asked, "it proves nothing");
      throw;  // a connection is closed
    }
  }

 private:
  struct peer {
    int rank;
    std::string mine, theirs;
    std::unique_ptr<::gloo::transport::UnboundBuffer> sent = nullptr, received = nullptr;
  };

  static std::string key_of(int rank) { return "nonce" + std::to_string(rank); }
  std::string proof_of(int rank, int for_rank, const std::vector<std::string>& nonces) const {
    const std::string who =
        "weft gloo rank " + std::to_string(rank) + " for " + std::to_string(for_rank) + " ";
    return proof(token_, who,
                 nonces[static_cast<std::size_t>(rank)] + nonces[static_cast<std::size_t>(for_rank)]);
  }
  comm_error refusal(int asked, const std::string& why) const {
    const std::string text = "weft: gloo: on the connection of rank " + std::to_string(rank_) + " to rank " +
                             std::to_string(asked) + " answers somebody else: " + why;
    return comm_error(
        store_.compare_set("failed", "", text));  // those whose connections end now find the first reason
  }

  store& store_;
  std::string token_;
  int rank_;
};

}  // namespace weft::detail
