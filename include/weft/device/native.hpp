// SPDX-License-Identifier: MIT
// The arguments of native ops: operands and results as strided views.
//
//   static void cpu(const native_call& call) {
//     const float* x = call.in[0].data<float>();
//     ...
//   }
#pragma once

#include <span>

#include <weft/shape/attributes.hpp>
#include <weft/shape/shape.hpp>

namespace weft {

/// For an operand of a product: the dims of a tensor from which its rows and columns are merged, as for
/// windows of an image. Element (i, j) is that of the i-th row and the j-th column in row-major order.
struct merged_dims {
  struct side {
    int order = 0;
    index_t extent[max_order]{}, stride[max_order]{};

    constexpr index_t size() const {
      index_t n = 1;
      for (int d = 0; d < order; ++d) n *= extent[d];
      return n;
    }
    /// Adds a dim inside the others; merges it with the last one if both have a common stride.
    constexpr void add_inner(index_t inner_extent, index_t inner_stride) {
      if (inner_extent == 1) return;
      const int last = order - 1;
      const bool is_one = last >= 0 && stride[last] == inner_extent * inner_stride;
      if (!is_one) ++order;
      extent[order - 1] = is_one ? extent[last] * inner_extent : inner_extent;
      stride[order - 1] = inner_stride;
    }
  };
  side rows, columns;
};

/// A tensor in device memory: strides in elements, any of which may be 0 or negative.
struct strided {
  void* pointer = nullptr;
  dtype type = dtype::f32;
  shape extents{};
  index_t stride[max_order]{};
  bool adds = false;  // for a result: it is added to the contents of the memory
  /// If not null, where rows and columns are; the last two strides are then those of a copy, one of them 1.
  /// Only for devices that support it, backend::multiplies_merged.
  const merged_dims* merged = nullptr;

  template <class T>
  T* data() const {
    return static_cast<T*>(pointer);
  }
  index_t size() const { return extents.size(); }
};

/// Offset of element `i`, counted in row-major order over dims first to last - 1 of `extents`.
inline index_t element_offset(const shape& extents, const index_t* stride, int first, int last, index_t i) {
  index_t offset = 0;
  for (int d = last; d-- > first;) {
    offset += i % extents[d] * stride[d];
    i /= extents[d];
  }
  return offset;
}

/// Sets row-major strides.
inline void set_contiguous(strided& s) {
  index_t n = 1;
  for (int i = s.extents.order; i-- > 0;) {
    s.stride[i] = n;
    n *= s.extents[i];
  }
}

/// Operands and results of one call. Results are contiguous, unless native_code::any_result_strides.
struct native_operands {
  std::span<const strided> in;
  std::span<const strided> out;
  const attributes& at;
  std::uint64_t random = 0;  // key of the program's random numbers
  void* scratch = nullptr;   // device memory of backend::native_scratch_bytes; null if there is none
};

class executor;

/// The arguments of a native op on the CPU.
struct native_call : native_operands {
  executor& threads;
};

/// The function of a native op on the CPU.
using native_function = void (*)(const native_call&);

/// The native ops of the library, whose code is kept with each device: device/cpu/native_ops.hpp,
/// gpu/native_ops.hpp.
enum class native_op : std::uint8_t {
  own,  // any other op: native_code holds its code
  product,
  attention,
  attention_backward,
  merge_attention,
  add_positions,
  checked_index,
  index_select,
  index_add,
  gather,
  scatter_sum,
  arg_extremum,
  argsort,
  cumsum,
  fold_windows,
  arg_window_max,
  depthwise_conv2d,
  depthwise_weight_gradient,
  cumprod,
  linear_recurrence,
  uniform,
  checked_probability
};

/// How an op exchanges messages with other ranks. Other steps of a program run between the start of an
/// exchange and the first step that reads its result.
enum class exchange : std::uint8_t {
  none,
  waits,     // the op waits for its result
  in_place,  // started, element by element or in slices; until it is over, nothing may access its result
  apart      // started; until it is over, nothing may access its result or overwrite its operand
};
constexpr bool is_started(exchange e) { return e == exchange::in_place || e == exchange::apart; }

/// The ops, by the names users call them, that select rows or check indices; an attribute of native ops, for
/// messages.
enum class index_reader : index_t { embedding, index_select, one_hot, cross_entropy, nll_loss };
inline constexpr const char* index_adders[] = {"scatter_add"};
inline constexpr const char* probability_readers[] = {"bernoulli", "multinomial"};
/// What `multinomial` checks in place of the weights of a row in which none is above 0.
inline constexpr double row_without_weight = 2;
inline constexpr const char* index_readers[] = {"embedding", "index_select", "one_hot", "cross_entropy",
                                                "nll_loss"};

/// The code of a native op: a function for the CPU, and source text for devices that compile kernels
/// (gpu/dialect.hpp). Null if there is none, and in an op of the library, which identifies itself by `op`.
struct native_code {
  native_function cpu = nullptr;
  /// The body of a loop over `item`s. Operand k is in0, in1, ... and results are out0, ...; available are
  /// in0_load(i) and out0_store(i, x) by position in memory, in0_extent(d), in0_stride(d), in0_offset(i) of
  /// row-major element i, in0_size, in0_order, the type in0_t; out0_adds; attribute(k), random, and fault()
  /// for an invalid operand.
  const char* text = nullptr;
  /// Number of items, or of tasks; null: one per element of the first result.
  index_t (*items)(const native_operands&) = nullptr;
  /// Whether it can add its result to the contents of the memory, as `strided::adds` requests.
  bool adds = false;
  /// Names for messages, if users know the op by other names: the one at attribute `named_by`, or the only
  /// one.
  static constexpr int own_name = -1, only_name = -2;
  const char* const* names = nullptr;
  int named_by = own_name;

  /// The reason for fault(), for messages; null: an index is out of range.
  const char* fault = nullptr;
  /// Messages to other ranks: executed by the strategy's hooks (run/execution_hooks.hpp) or, if there is one
  /// rank, by `cpu` and `text`; without these the op is a copy.
  exchange messages = exchange::none;
  /// Whether its results may have any strides without overlaps; otherwise they are contiguous.
  bool any_result_strides = false;
  /// Whether backward programs recompute the result and do not keep it, because it is larger than the
  /// operand.
  bool repeats = false;
  /// Number of threads of a group, if they cooperate by SHARED_MEMORY and BARRIER; the text is then functions
  /// and `NATIVE_KERNEL { ... }`, whose body loops over tasks from GROUP_ID in steps of GROUPS.
  int threads = 0;
  native_op op = native_op::own;

  constexpr const char* name(const char* given, const attributes& at) const {
    return named_by == own_name ? given : names[named_by == only_name ? 0 : at[named_by]];
  }
};

}  // namespace weft
