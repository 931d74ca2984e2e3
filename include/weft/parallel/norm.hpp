// SPDX-License-Identifier: MIT
// The norm of gradients whose rows are distributed over ranks.
//
// The elements of a row are summed in double precision, each row on one rank. Rows are summed as 128-bit
// integers in units of 2^-96 of the largest row sum, which is exact in any order: the norm does not depend on
// how rows are distributed.
#pragma once

#include <array>
#include <cmath>
#include <span>

#include <weft/comm/communicator.hpp>
#include <weft/op/all.hpp>
#include <weft/run/update.hpp>

namespace weft::parallel {

namespace detail {

/// The sums of squares of all rows; each element of a vector is a row. They are computed by one launch and
/// read at once, as the host waits at each reading.
recycled_vector<double> all_row_sums(context& c, const tensor_list& gradients);

/// Sum of non-negative numbers over all ranks, exact to 2^-96 of the largest number.
double exact_sum(const recycled_vector<double>& values, communicator& ranks, const comm_options& o);

}  // namespace detail

/// The 2-norm over all rows of all ranks; NaN if an element is not finite.
inline double norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                              const comm_options& o) {
  return std::sqrt(detail::exact_sum(detail::all_row_sums(c, gradients), ranks, o));
}

/// The largest absolute value of the elements of all ranks; NaN if any is NaN.
double inf_norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                           const comm_options& o);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/norm.ipp>
#endif
