// SPDX-License-Identifier: MIT
// What the function of a native op receives: its operands and results as strided views.
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

/// A tensor in the memory of a device: strides in elements, any of which may be 0 or negative.
struct strided {
  void* pointer = nullptr;
  dtype type = dtype::f32;
  shape extents{};
  index_t stride[max_order]{};
  bool adds = false;  // a result: to what its memory holds

  template <class T>
  T* data() const {
    return static_cast<T*>(pointer);
  }
  index_t size() const { return extents.size(); }
};

/// Offset of element `i`, counted in row-major order over dims [first, last) of `extents`.
inline index_t element_offset(const shape& extents, const index_t* stride, int first, int last, index_t i) {
  index_t offset = 0;
  for (int d = last; d-- > first;) {
    offset += i % extents[d] * stride[d];
    i /= extents[d];
  }
  return offset;
}

/// Strides of a row-major tensor.
inline void set_contiguous(strided& s) {
  index_t n = 1;
  for (int i = s.extents.order; i-- > 0;) {
    s.stride[i] = n;
    n *= s.extents[i];
  }
}

/// Operands and results of one call. Results are contiguous.
struct native_operands {
  std::span<const strided> in;
  std::span<const strided> out;
  const attributes& at;
  std::uint64_t random = 0;  // what random numbers of this program depend on
};

class executor;

struct native_call : native_operands {
  executor& threads;
};

/// The code of a native op: a function for the CPU, a text for devices whose kernels are texts
/// (gpu/dialect.hpp). Null where it has none.
struct native_code {
  void (*cpu)(const native_call&) = nullptr;
  /// The body of a loop over `item`s. It knows operand k as in0, in1, ... and results as out0, ...:
  /// in0_load(i), out0_store(i, x) by element of memory, in0_extent(d), in0_stride(d), in0_offset(i)
  /// of row-major element i, in0_size, in0_order, the type in0_t; out0_adds; attribute(k), random, and
  /// fault() for a bad operand.
  const char* text = nullptr;
  /// How many items there are; null: one for each element of the first result.
  index_t (*items)(const native_operands&) = nullptr;
  /// Whether it can add its result to what the memory holds; it is asked to by `strided::adds`.
  bool adds = false;
  /// Names for messages, where users know the op by several: the one that attribute `named_by` counts.
  const char* const* names = nullptr;
  int named_by = -1;

  /// What is wrong after fault(), for messages; null: an index is out of range.
  const char* fault = nullptr;

  constexpr const char* name(const char* op, const attributes& at) const {
    return named_by < 0 ? op : names[at[named_by]];
  }
};

}  // namespace weft
