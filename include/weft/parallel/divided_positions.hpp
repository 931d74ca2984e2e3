// SPDX-License-Identifier: MIT
// The ranks that divide the positions of sequences, and how they divide them: the common part of ring
// attention and Ulysses, with the gathering of expert choices over all rows.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include <weft/parallel/context_division.hpp>
#include <weft/parallel/context_service.hpp>
#include <weft/parallel/unit.hpp>

namespace weft::parallel {

/// Positions first to first + count - 1 of a tensor whose dim `dim` counts positions, or heads.
strided range_of(strided t, const position_range& of, int dim = 1);

/// Base class of context services whose ranks divide positions by a context_division.
class divided_positions : public context_service {
 public:
  explicit divided_positions(std::shared_ptr<communicator> ranks) : ranks_(std::move(ranks)) {}

  communicator& ranks() const override { return *ranks_; }
  /// Sets how the positions of subsequent sequences are divided. All ranks must pass the same length.
  void divide(const context_division& d) { division_ = d; }
  const context_division& division() const { return *division_; }

  void gather_choices(const device& where, runtime::row_choices& rows, const shape& operand,
                      const comm_options& o) override;

 protected:
  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }

  /// Throws usage_error if `positions` is not the number of this rank's positions, device_error if messages
  /// cannot be kept on the device. `reader`: the op that reads them, for the error message.
  void check(const char* reader, const device& where, const shape& extents, index_t positions) const;

 private:
  /// Puts the choices of all ranks, which follow each other by rank, in the order of rows; each position has
  /// `of_position` rows.
  void arrange(runtime::row_choices& rows, std::span<const std::int64_t> by_rank, index_t batch,
               index_t of_position) const;

  std::shared_ptr<communicator> ranks_;
  std::optional<context_division> division_;
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/divided_positions.ipp>
#endif
