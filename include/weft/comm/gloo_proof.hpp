// SPDX-License-Identifier: MIT
// Ranks on Gloo's connections prove who they are before anything else is sent.
//
// Gloo takes the first connection to a port for the rank that should come there, whoever it is. So each rank
// publishes a nonce in the store, and then sends through each connection the HMAC, under the job's token, of
// both numbers and both nonces: a stranger who has taken a rank's place cannot, and is found before any
// tensor is sent. Who has the proofs of all is sure that all have their connections.
#pragma once

#include <weft/comm/gloo_group.hpp>
#include <weft/comm/handshake.hpp>

namespace weft::detail {

/// The first operation of a mesh. Throws comm_error if who is connected as a rank proves something else.
class gloo_proof : public gloo_operation {
 public:
  /// Before the mesh connects: publishes what this rank has drawn, for all who connect to it.
  gloo_proof(store& s, std::string token, int rank) : token_(std::move(token)), rank_(rank) {
    s.set(key_of(rank), random_bytes(nonce_bytes));
  }
  /// After the mesh has connected.
  void read(store& s, const gloo_mesh& mesh, std::chrono::milliseconds limit) {
    start_ = mesh.connecting();
    for (const int r : start_.members) nonces_.push_back(s.get(key_of(r), limit));
  }

  queue_key queue() const override { return {-1, -1, 0, 0}; }
  std::string doing() const override { return start_.doing; }
  rank_wait waits_in() const override { return start_; }

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
        throw comm_error("weft: gloo: on the connection of rank " + std::to_string(rank_) + " to rank " +
                         std::to_string(r) +
                         " answers somebody else: it does not know the job's token (WEFT_JOB_TOKEN)");
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
  std::vector<std::string> nonces_, mine_, theirs_;  // by rank; the proofs
};

}  // namespace weft::detail
