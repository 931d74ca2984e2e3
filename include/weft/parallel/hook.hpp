// SPDX-License-Identifier: MIT
// Gradient hooks: reductions of gradients over ranks other than all_reduce, as torch's DDP communication
// hooks.
//
//   parallel_options o{.hook = bf16_compress()};
//   parallel_options p{.hook = power_sgd({.rank = 4})};
//
// A hook is called with a bucket, on all ranks in the same order, and returns a function that starts one
// message at a time: it is called again when the message has completed, and returns nullopt when the bucket
// holds the sum over ranks. `remembers` says whether the hook keeps state from step to step.
//
//   gradient_hook plain = [](const gradient_bucket& b) {
//     return [b, begun = false]() mutable -> std::optional<work> {
//       if (std::exchange(begun, true)) return {};
//       return b.ranks->all_reduce(b.elements());
//     };
//   };
//   plain.remembers = false;
#pragma once

#include <any>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <weft/device/random.hpp>
#include <weft/parallel/strategy.hpp>

namespace weft {

/// Gradients of several parameters that are sent together, contiguous in memory.
struct gradient_bucket {
  struct part {
    std::string parameter;
    shape extents;
    index_t at;  // index of its first element in the bucket
  };
  std::string name;
  std::vector<part> parts;
  std::span<float> gradient;
  communicator* ranks;
  comm_options options;
  std::any* memory;  // the hook's state for this bucket on this rank, kept from step to step

  weft::elements elements() const { return gradient; }
  /// The state as a T, created at the first call. It is not saved in checkpoints (gradient_hook::remembers).
  template <class T>
  T& remembered() const {
    if (!memory->has_value()) *memory = std::make_shared<T>();
    return *std::any_cast<std::shared_ptr<T>&>(*memory);
  }
};

/// Sends gradients as bf16, which halves the bytes. Sums are computed in f32 and rounded once. Keeps no
/// state.
gradient_hook bf16_compress();

/// Settings of power_sgd, as in torch's PowerSGDState.
struct power_sgd_options {
  int rank = 1;
  bool error_feedback = true;   // the approximation error is added to the next gradient
  bool warm_start = true;       // start from the previous step's factor
  std::int64_t start_step = 0;  // gradients of earlier steps are sent whole, because they change most
  std::uint64_t seed = 0;
};

namespace detail {

/// A matrix M [rows, columns] approximated by P Q^T with P [rows, rank], Q [columns, rank].
struct low_rank {
  index_t rows, columns;
  int rank;
  std::span<float> m;
  std::span<float> p, q;

  /// P = M Q
  void multiply_right() const;
  /// Q = M^T P
  void multiply_left() const;
  /// Makes the columns of P orthonormal (Gram-Schmidt, twice for accuracy).
  void orthonormalize() const;
  /// Redraws the columns of Q that are zero, because these columns of P = M Q would stay zero for every M.
  /// Uses numbers `first`, ... of the random sequence of `key`, so that all ranks draw the same.
  void draw_zero_columns(philox_key key, index_t first) const;
  /// Element (i, j) of P Q^T
  float product(index_t i, index_t j) const {
    float sum = 0;
    for (int k = 0; k < rank; ++k) sum += at(p, i, k) * at(q, j, k);
    return sum;
  }

 private:
  float& at(std::span<float> f, index_t i, int k) const { return f[static_cast<std::size_t>(i * rank + k)]; }
};

struct top_k_state {
  std::vector<float> error, values, all_values;
  std::vector<std::int32_t> places, all_places;
};
/// The state of PowerSGD for a bucket.
struct power_sgd_state {
  std::vector<float> error, p, q, rest;
  std::int64_t steps = 0;
};

}  // namespace detail

/// PowerSGD (Vogels et al., 2019): each gradient is reshaped to a matrix [first dim, others], and a low-rank
/// factorisation of its sum over ranks is sent, rank * (rows + columns) elements, if that is fewer than all
/// elements; other gradients are sent whole. Throws usage_error if the rank is less than 1.
gradient_hook power_sgd(power_sgd_options o = {});

/// Sends the `share` of elements of each bucket with the largest magnitudes, and their indices, to all ranks;
/// the others are added to the next gradient (Aji and Heafield, 2017). Throws usage_error unless 0 < share <=
/// 1.
gradient_hook top_k(double share);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/hook.ipp>
#endif
