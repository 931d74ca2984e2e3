// SPDX-License-Identifier: MIT
// Ranks authenticate each other on the connections of Gloo before anything else is sent.
//
// Gloo assigns the first connection to a port to the rank expected there, without checking who connects.
// Therefore each rank publishes a nonce in the store, and sends over each connection an HMAC, with the token
// of the job as key, of both ranks and both nonces. A stranger cannot compute it and is detected before any
// tensor is sent; one that sends nothing is detected when the time limit of the start-up expires. A rank that
// has received the proofs of all others knows that all connections are correct.
#pragma once

#include <weft/comm/gloo_group.hpp>
#include <weft/comm/handshake.hpp>

namespace weft::detail {

/// The first operation of a mesh. Throws comm_error if the proof of a connected rank is wrong.
class gloo_proof : public gloo_operation {
 public:
  gloo_proof(std::string token, int rank) : token_(std::move(token)), rank_(rank) {}
  /// Publishes the nonce of this rank and reads those of all others.
  void exchange_nonces(store& s, const gloo_mesh& mesh, std::chrono::milliseconds limit) {
    s.set(key_of(rank_), random_bytes(nonce_bytes));
    start_ = mesh.connecting();
    for (const int r : start_.members) nonces_.push_back(s.get(key_of(r), limit));
  }

  queue_key queue() const override { return {-1, -1, 0, 0}; }
  std::string doing() const override { return waits_in().doing; }
  std::string text() const override { return start_.doing; }
  rank_wait waits_in() const override {
    rank_wait w = start_;
    if (peer >= 0) w.doing += ", for the proof of rank " + std::to_string(peer);
    return w;
  }

  void perform(gloo_mesh& mesh) override {
    mine_.resize(nonces_.size());
    theirs_.assign(nonces_.size(), std::string(proof_bytes, '\0'));
    std::vector<transfer> all;
    for (const int r : start_.members) {
      if (r == rank_) continue;
      const auto at = static_cast<std::size_t>(r);
      mine_[at] = proof_of(rank_, r);
      all.push_back({r, true, mine_[at].data(), proof_bytes});
      all.push_back({r, false, theirs_[at].data(), proof_bytes});
    }
    mesh.exchange(gloo_slot::of(gloo_slot::start, 0, 0), all, *this);
    for (const int r : start_.members)
      if (r != rank_ && !proves(theirs_[static_cast<std::size_t>(r)], proof_of(r, rank_)))
        throw comm_error(
            "weft: gloo: the connection of rank " + std::to_string(rank_) + " to rank " + std::to_string(r) +
            " was answered by another process, which does not know the job's token (WEFT_JOB_TOKEN)");
  }

 private:
  static std::string key_of(int rank) { return "nonce" + std::to_string(rank); }
  std::string proof_of(int rank, int for_rank) const {
    const std::string who =
        "weft gloo rank " + std::to_string(rank) + " for " + std::to_string(for_rank) + " ";
    return proof(token_, who,
                 nonces_[static_cast<std::size_t>(rank)] + nonces_[static_cast<std::size_t>(for_rank)]);
  }

  std::string token_;
  int rank_;
  rank_wait start_;
  std::vector<std::string> nonces_, mine_, theirs_;  // by rank
};

}  // namespace weft::detail
