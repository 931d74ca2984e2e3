// SPDX-License-Identifier: MIT
// Positions exchanged for heads (Jacobs et al., "DeepSpeed Ulysses", 2023): before attention each rank gets
// all positions of some heads, and after attention its own positions of all heads, both by all_to_all.
#pragma once

#include <weft/parallel/divided_positions.hpp>

namespace weft::parallel {

/// The exchanges of this rank. With fewer key heads than ranks, some ranks have none and compute no
/// attention.
class head_exchange : public divided_positions {
 public:
  using divided_positions::divided_positions;

  bool exchange(const device& where, std::string_view op, const attributes& at, const strided& in,
                const strided& out, const comm_options& o) override;

 private:
  /// The heads of rank `r`; groups of `unit` heads stay on one rank.
  position_range heads_of(int r, const strided& own, index_t unit) const;
  /// Number of elements by rank r: own_counts() of this rank's positions and r's heads, all_counts() of r's
  /// positions and this rank's heads.
  rank_counts own_counts(const strided& own, index_t unit) const;
  rank_counts all_counts(const strided& all) const;
  /// A contiguous tensor with the extents of `like` at `memory`, which is advanced past it.
  static strided next_at(char*& memory, const strided& like);
  static void move(const device& where, const strided& tensor, const strided& message, bool arrives) {
    where->copy(arrives ? message : tensor, arrives ? tensor : message);
  }
  /// Copies each rank's heads between a tensor of all heads and the messages.
  void copy_own(const device& where, const strided& own, index_t unit, char* messages, bool arrives) const;
  /// Copies each rank's positions between a tensor of all positions and the messages.
  void copy_all(const device& where, const strided& all, char* messages, bool arrives) const;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/head_exchange.ipp>
#endif
