// SPDX-License-Identifier: MIT
// Which experts compute which rows, and how the rows get there and back.
//
// Rows are sorted by expert. If ranks divide the experts, each rank sends its rows to the ranks that have
// their experts, sorts what it receives by expert again, and sends the results back the same way. The
// derivative of each direction is the other direction.
#pragma once

#include <vector>

#include <weft/device/backend.hpp>
#include <weft/run/context.hpp>
#include <weft/run/expert_ranks.hpp>
#include <weft/shape/symbols.hpp>

namespace weft {

/// How rows choose experts.
struct expert_choice {
  index_t per_row = 2;  // experts per row: those with the largest probabilities
  /// An expert computes at most this many times the mean number of rows per expert, rounded up; 0: all rows
  /// that choose it. Rows beyond that are dropped. Precedence is decided among the rows of one evaluation:
  /// first choices of all rows come before second ones, and earlier rows before later ones. Where ranks
  /// divide the positions of sequences, these are the rows of whole sequences, [batch, positions, ...], so
  /// the outcome does not depend on the number of ranks.
  double capacity_factor = 0;
};

namespace runtime {

/// The routes of the rows of one evaluation.
class routing {
 public:
  using state_ptr = std::shared_ptr<tensor_state>;

  /// `chosen`: the experts of each row of `operand`, i64 [rows, choices]. Waits for its elements. Collective
  /// if ranks divide the experts, or if there is a capacity and ranks divide positions.
  routing(context& c, const tensor_state& chosen, const shape& operand, index_t experts,
          double capacity_factor);

  /// For the rows sorted by expert: their row numbers, and the numbers of their choices among all choices.
  const std::vector<std::int64_t>& rows() const { return rows_; }
  const std::vector<std::int64_t>& choices() const { return choices_; }

  /// The experts of this rank.
  index_t first_expert() const { return first_of_part(experts_, size(), rank()); }
  index_t own_experts() const { return count_of_part(experts_, size(), rank()); }
  /// The number of rows that the first `n` experts of this rank compute.
  index_t arriving(index_t n) const;

  /// From the rows of this rank, sorted by expert, the rows that its experts compute, sorted by expert.
  /// Collective.
  state_ptr to_experts(const state_ptr& rows) const;
  /// The inverse of to_experts. Collective.
  state_ptr to_rows(const state_ptr& computed) const;

  /// The rows of the n-th expert of this rank among the rows that arrive.
  state_ptr part(const tensor_state& arrived, index_t n) const;
  /// All rows that arrive, joined from the rows of each expert; null stands for zeros.
  state_ptr joined(const tensor_list& parts, index_t width, dtype type) const;

  bool goes_back = false;  // whether what the experts computed has a gradient, the same on all ranks

 private:
  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  /// The number of rows that rank `r` has for the `n` experts from `first` on.
  index_t rows_from(int r, index_t first, index_t n) const;

  /// Sorts the rows of this rank by expert. Each expert computes at most `most` of all rows.
  void sort(const row_choices& all, index_t most);

  expert_ranks::counts sent(index_t width) const;
  expert_ranks::counts received_counts(index_t width) const;

  /// Rows that are sorted by rank, then by expert, sorted by expert, then by rank; or the inverse.
  state_ptr arranged(const state_ptr& from, bool by_expert) const;
  void copy(const tensor_state& to, index_t to_row, const tensor_state& from, index_t from_row, index_t rows,
            index_t width) const;
  /// The same elements as a separate tensor, which a tape can record.
  static state_ptr apart(const state_ptr& t);

  context* context_;
  expert_ranks* ranks_;
  index_t experts_;
  expert_ranks::counts mine_, all_;  // rows per expert: of this rank; of all ranks
  std::vector<std::int64_t> rows_, choices_;
};

}  // namespace runtime
}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/routing.ipp>
#endif
