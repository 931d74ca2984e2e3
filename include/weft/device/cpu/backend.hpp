// SPDX-License-Identifier: MIT
// The CPU as a device: compiled kernels on the executor's threads; the host accesses its memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include <weft/base/recycled.hpp>
#include <weft/device/backend.hpp>
#include <weft/device/cpu/executor.hpp>
#include <weft/shape/layout.hpp>

namespace weft::cpu {

/// The CPU. `threads`: number of threads, 0 for one per core; a negative number throws value_error.
class cpu_backend : public backend {
 public:
  explicit cpu_backend(int threads = 0) : threads_(threads) {}

  const char* name() const override { return "cpu"; }
  const executor& threads() const { return threads_; }

  void* allocate(std::size_t bytes) override;
  void deallocate(void* memory, std::size_t) noexcept override {
    ::operator delete(memory, alignment);
  }
  device_room room() const override;
  bool host_accessible() const override { return true; }
  void upload(void* to, const void* from, std::size_t bytes) override { copy_bytes(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy_bytes(to, from, bytes); }
  void fill_zero(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void synchronize() override {}

  void launch(const kernel_call& call) override;

  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override;
  bool multiplies_merged() const override { return true; }

  void copy(const strided& from, const strided& to) override;

  void call_native(const char* op, const native_code& code, const native_operands& operands) override;

 protected:
  static constexpr std::align_val_t alignment{64};
  /// Kernels with less work than this, in instructions times elements, run on one thread, since a parallel
  /// call costs a few microseconds. Measured with a chain of three instructions, which breaks even at 48 K
  /// elements.
  static constexpr index_t serial_work = index_t{1} << 18;

  /// Copies on all threads, since one core cannot use the full memory bandwidth.
  void copy_bytes(void* to, const void* from, std::size_t bytes);

  bool worth_dividing(const kernel_call& call, index_t elements) const;
  /// Number of tasks into which a kernel over `elements` is divided, at most `most`.
  index_t tasks_for(const kernel_call& call, index_t elements, index_t most) const {
    return worth_dividing(call, elements) ? std::min<index_t>(most, 4 * threads_.threads()) : 1;
  }

  /// Divides rows among tasks and, if there are few rows, rows into pieces.
  void launch_elements(const kernel_call& call);

  /// A few long rows, or a few columns of many rows, are computed in blocks of about this many elements. The
  /// blocks depend only on sizes, so that sums are the same for any number of threads.
  static constexpr index_t block_elements = index_t{1} << 16;
  static constexpr index_t few = 64;

  void launch_rows(const kernel_call& call);

  void launch_long_rows(const kernel_call& call);

  /// Folds whole rows, so that memory is read in order, over ranges of columns whose sums fit the first-level
  /// cache. Kernels that fold rows, too, compute whole rows of any length.
  void launch_columns(const kernel_call& call);

  /// A strided copy as rows that are as long as both sides allow; the remaining dims count the rows.
  struct copied_rows {
    const char* from;
    char* to;
    index_t bytes;                                // of an element
    index_t rows = 1, size = 1;                   // of rows
    index_t from_step = 1, to_step = 1;           // within a row, in elements
    int outer = 0;                                // dims that count rows, outermost first
    index_t extent[max_order]{}, from_stride[max_order]{}, to_stride[max_order]{};

    copied_rows(const strided& source, const strided& target);
    bool is_contiguous() const { return (from_step == 1 && to_step == 1) || size == 1; }

    void append(index_t e, index_t f, index_t t);

    /// Copies elements first to last - 1 of rows begin to end - 1.
    void run(index_t begin, index_t end, index_t first, index_t last) const;

    /// Offsets are computed by division once and then incremented from row to row.
    template <class Bits>
    void run_as(index_t begin, index_t end, index_t first, index_t last) const {
      index_t at[max_order]{}, f = first * from_step, t = first * to_step, rest = begin;
      for (int d = outer; d-- > 0; rest /= extent[d]) {
        at[d] = rest % extent[d];
        f += at[d] * from_stride[d];
        t += at[d] * to_stride[d];
      }
      for (index_t r = begin; r < end; ++r) {
        copy_row<Bits>(t, f, last - first);
        for (int d = outer; d-- > 0;) {
          f += from_stride[d];
          t += to_stride[d];
          if (++at[d] < extent[d]) break;
          f -= from_stride[d] * extent[d];
          t -= to_stride[d] * extent[d];
          at[d] = 0;
        }
      }
    }

    template <class Bits>
    void copy_row(index_t t, index_t f, index_t count) const {
      constexpr index_t short_row = 16, width = sizeof(Bits);
      if (is_contiguous() && count > short_row) {
        std::memcpy(to + t * width, from + f * width, static_cast<std::size_t>(count * width));
        return;
      }
      for (index_t i = 0; i < count; ++i, f += from_step, t += to_step)
        std::memcpy(to + t * width, from + f * width, sizeof(Bits));
    }
  };

  executor threads_;
};

}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/backend.ipp>
#endif
