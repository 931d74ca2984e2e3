// SPDX-License-Identifier: MIT
// The norm of gradients whose rows are distributed over ranks.
//
// The elements of a row are summed in f64 on one rank, or in f32 on devices without f64. Row sums are added
// as 128-bit integers in units of 2^-96 of the largest row sum, which is exact in any order, so the norm does
// not depend on how rows are distributed.
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <span>

#include <weft/comm/communicator.hpp>
#include <weft/op/all.hpp>
#include <weft/optim/gradient_scale.hpp>
#include <weft/run/update.hpp>
#include <weft/tensor/pending_number.hpp>

namespace weft::parallel {

namespace detail {

/// The sums of squares of all rows; each element of a vector is a row. Computed by one launch. Of type f64,
/// or f32 on devices without f64.
std::shared_ptr<tensor_state> all_row_sums(context& c, const tensor_list& gradients);

/// Sum of non-negative numbers over all ranks, exact to 2^-96 of the largest number; nullopt if no rank has
/// any.
std::optional<double> exact_sum(std::span<const double> values, communicator& ranks, const comm_options& o);
/// As norm_over_ranks; nullopt if no rank has a row.
std::optional<double> norm_of_rows(context& c, const tensor_list& gradients, communicator& ranks,
                                   const comm_options& o);

}  // namespace detail

/// The 2-norm over all rows of all ranks; NaN if an element is not finite. Waits for the device.
inline double norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                              const comm_options& o) {
  return detail::norm_of_rows(c, gradients, ranks, o).value_or(0.0);
}

/// The quantities of all gradients together that an update needs.
struct gradient_measure {
  pending_number norm;   // before clipping
  gradient_scale scale;  // factor for the update
  bool exists = true;    // whether any rank has a gradient
};
/// The 2-norm of the gradients times `mean` / `loss_scale`, where `loss_scale` is the factor that they
/// already contain; and the factor for the update, which also limits the norm to `clip` unless that is 0. If
/// one rank has all rows and its device has f64, the device computes both, and the host does not wait.
gradient_measure measured_gradients(context& c, const tensor_list& gradients, communicator& ranks,
                                    const comm_options& o, double mean, double loss_scale, double clip);

/// The largest absolute value of all elements on all ranks; NaN if any is NaN.
double inf_norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                           const comm_options& o);

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/norm.ipp>
#endif
