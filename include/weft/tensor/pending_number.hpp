// SPDX-License-Identifier: MIT
// A number that a device computes: only reading it waits for the device.
//
//   const auto norm = run.step({.clip = 1.0});     // queued
//   if (log) std::printf("%f\n", double(norm));    // waits
#pragma once

#include <memory>
#include <span>

#include <weft/tensor/state.hpp>

namespace weft {

/// A double, or the element of a tensor, which is read when the number is first used.
class pending_number {
 public:
  pending_number(double value = 0) : value_(value) {}
  /// `of`: a tensor with one element of type f64, which nothing writes to any more.
  explicit pending_number(std::shared_ptr<tensor_state> of) : of_(std::move(of)) {}

  /// Waits for the device at the first call.
  double value() const;
  operator double() const { return value(); }
  /// The tensor that has not been read yet; null if the number is known.
  const std::shared_ptr<tensor_state>& pending() const { return of_; }

 private:
  mutable double value_ = 0;
  mutable std::shared_ptr<tensor_state> of_;
};

/// The values of these floating-point tensors of one element each, all on one device; waits once.
recycled_vector<double> numbers_in(std::span<const std::shared_ptr<tensor_state>> all);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/tensor/impl/pending_number.ipp>
#endif
