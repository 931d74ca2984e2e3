// SPDX-License-Identifier: MIT
// Positions exchanged for heads (Jacobs et al., "DeepSpeed Ulysses", 2023): before attention each rank gets
// all positions of some heads, after it its positions of all heads, both by all_to_all.
#pragma once

#include <weft/parallel/divided_positions.hpp>

namespace weft::parallel {

/// The exchanges of this rank. Of fewer key heads than ranks, some ranks have none, and attend to nothing.
class head_exchange : public divided_positions {
 public:
  using divided_positions::divided_positions;

  bool exchange(const device& where, std::string_view op, const attributes& at, const strided& in,
                const strided& out, const comm_options& o) override;

 private:
  /// The heads of rank `r`, of which `unit` stay together.
  position_range heads_of(int r, const strided& own, index_t unit) const;
  /// Elements by rank: its heads of the positions here, its positions of the heads here.
  rank_counts own_counts(const strided& own, index_t unit) const;
  rank_counts all_counts(const strided& all) const;
  /// A contiguous tensor of `like`'s extents at `memory`, which is moved behind it.
  static strided next_at(char*& memory, const strided& like);
  static void move(const device& where, const strided& tensor, const strided& message, bool arrives) {
    where->copy(arrives ? message : tensor, arrives ? tensor : message);
  }
  /// Copies the heads of each rank between a tensor of all heads and the messages.
  void copy_own(const device& where, const strided& own, index_t unit, char* messages, bool arrives) const;
  /// Copies the positions of each rank between a tensor of all positions and the messages.
  void copy_all(const device& where, const strided& all, char* messages, bool arrives) const;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/head_exchange.ipp>
#endif
