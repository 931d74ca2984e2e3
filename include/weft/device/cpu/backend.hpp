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

  void* allocate(std::size_t bytes) override {
    void* memory = ::operator new(bytes, alignment, std::nothrow);
    if (!memory)
      refuse<out_of_memory_error>({"weft: cpu: out of memory: could not allocate ", bytes, " bytes"});
    return memory;
  }
  void deallocate(void* memory, std::size_t) noexcept override {
    ::operator delete(memory, alignment);
  }
  bool host_accessible() const override { return true; }
  void upload(void* to, const void* from, std::size_t bytes) override { copy_bytes(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy_bytes(to, from, bytes); }
  void fill_zero(void* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void synchronize() override {}

  void launch(const kernel_call& call) override {
    switch (call.division) {
      case kernel_division::elements: launch_elements(call); break;
      case kernel_division::rows: launch_rows(call); break;
      case kernel_division::columns: launch_columns(call); break;
    }
  }

  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override {
    if (!code.cpu) refuse<device_error>({"weft: cpu: matmul of ", name_of(c.type)});
    const strided in[] = {a, b};
    code.cpu({{in, {&c, 1}, {}, 0}, threads_});
  }

  void copy(const strided& from, const strided& to) override {
    if (to.size() == 0) return;
    const copied_rows c(from, to);
    if (c.outer == 0 && c.is_contiguous())
      return copy_bytes(to.pointer, from.pointer, static_cast<std::size_t>(c.size * c.bytes));
    constexpr index_t worth_dividing = index_t{1} << 18, shortest = index_t{1} << 14;  // bytes
    const bool divides = threads_.threads() > 1 && c.rows * c.size * c.bytes >= worth_dividing;
    const index_t most = divides ? 4 * threads_.threads() : 1, parts = std::min(c.rows, most);
    const index_t pieces =
        std::clamp<index_t>(most / parts, 1, std::max<index_t>(c.size * c.bytes / shortest, 1));
    threads_.parallel_for(parts * pieces, [&](index_t t, scratch_memory&) {
      const index_t part = t / pieces, piece = t % pieces;
      c.run(c.rows * part / parts, c.rows * (part + 1) / parts, c.size * piece / pieces,
            c.size * (piece + 1) / pieces);
    });
  }

  void call_native(const char* op, const native_code& code, const native_operands& operands) override {
    if (!code.cpu)
      refuse<device_error>({"weft: ", op, ": this op has no code for the device cpu"});
    code.cpu({operands, threads_});
  }

 protected:
  static constexpr std::align_val_t alignment{64};
  /// Kernels with less work, in instructions times elements, run on one thread: a parallel call costs a few
  /// microseconds. Measured with a chain of three instructions, which breaks even at 48 K elements.
  static constexpr index_t serial_work = index_t{1} << 18;

  /// Copies on all threads, as one core cannot use the full memory bandwidth.
  void copy_bytes(void* to, const void* from, std::size_t bytes) {
    constexpr std::size_t piece = std::size_t{1} << 20;
    threads_.parallel_for(static_cast<index_t>((bytes + piece - 1) / piece),
                          [&](index_t task, scratch_memory&) {
                            const std::size_t at = static_cast<std::size_t>(task) * piece;
                            std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                                        std::min(piece, bytes - at));
                          });
  }

  bool worth_dividing(const kernel_call& call, index_t elements) const {
    return threads_.threads() > 1 && elements * static_cast<index_t>(call.instructions.size()) >= serial_work;
  }
  /// Number of tasks into which a kernel over `elements` is divided, at most `most`.
  index_t tasks_for(const kernel_call& call, index_t elements, index_t most) const {
    return worth_dividing(call, elements) ? std::min<index_t>(most, 4 * threads_.threads()) : 1;
  }

  /// Divides rows among tasks, and rows into pieces if there are few.
  void launch_elements(const kernel_call& call) {
    constexpr index_t unit = 1024;  // elements, so that tasks begin where vectors do
    const index_t rows = call.args.rows(), size = call.args.row_size(), units = (size + unit - 1) / unit;
    if (!worth_dividing(call, rows * size)) return call.function(call.args, {0, rows, 0, size, nullptr});
    const index_t parts = tasks_for(call, rows * size, rows),
                  pieces = tasks_for(call, rows * size, parts * units) / parts;
    threads_.parallel_for(parts * pieces, [&](index_t t, scratch_memory&) {
      const index_t part = t / pieces, piece = t % pieces;
      call.function(call.args, {rows * part / parts, rows * (part + 1) / parts, units * piece / pieces * unit,
                                std::min(size, units * (piece + 1) / pieces * unit), nullptr});
    });
  }

  /// Few long rows, and few columns of many rows, are computed in blocks of about this many elements. It
  /// depends on sizes only, so that sums are equal for any number of threads.
  static constexpr index_t block_elements = index_t{1} << 16;
  static constexpr index_t few = 64;

  void launch_rows(const kernel_call& call) {
    const index_t rows = call.args.rows(), size = call.args.row_size();
    if (rows < few && size > block_elements && call.scratch_rows == 0) return launch_long_rows(call);
    const index_t tasks = tasks_for(call, rows * size, rows);
    const auto bytes = static_cast<std::size_t>(call.scratch_rows * scratch_size(size) * 8);
    threads_.parallel_for(tasks, [&](index_t t, scratch_memory& scratch) {
      call.function(call.args, {rows * t / tasks, rows * (t + 1) / tasks, 0, size, scratch.get(bytes)});
    });
  }

  void launch_long_rows(const kernel_call& call) {
    const index_t rows = call.args.rows(), size = call.args.row_size();
    const index_t blocks = (size + block_elements - 1) / block_elements, of_row = call.folds * blocks;
    recycled_vector<double> folds(static_cast<std::size_t>(rows * of_row));
    const auto compute = [&](int phase, index_t row, index_t block) {
      const index_t begin = block * block_elements;
      const fold_blocks at{phase, block, blocks, folds.data() + row * of_row};
      call.function(call.args, {row, row + 1, begin, std::min(size, begin + block_elements), nullptr, &at});
    };
    for (int sweep = 0; sweep < call.sweeps; ++sweep)
      threads_.parallel_for(rows * blocks,
                            [&](index_t t, scratch_memory&) { compute(sweep, t / blocks, t % blocks); });
    for (index_t row = 0; row < rows; ++row) compute(call.sweeps, row, 0);
  }

  /// Whole rows are folded, as memory is read in their order; the sums of the widest range stay in the
  /// first-level cache.
  void launch_columns(const kernel_call& call) {
    constexpr index_t widest = 2048, unit = 64;
    const index_t rows = call.args.rows(), size = call.args.row_size(),
                  parts = std::max<index_t>((size + widest - 1) / widest, 1);
    const index_t chunk = std::max<index_t>((size + parts * unit - 1) / (parts * unit) * unit, unit),
                  chunks = (size + chunk - 1) / chunk;
    index_t folded = 1;
    for (int d = 0; d < call.args.folded; ++d) folded *= call.args.extent[call.args.order - 2 - d];
    const auto range_of = [&](index_t t, void* scratch) {
      const index_t begin = t % chunks * chunk;
      return kernel_range{t / chunks, t / chunks + 1, begin, std::min(size, begin + chunk), scratch};
    };
    const index_t blocks =
        std::min(folded, (folded * std::min(size, chunk) + block_elements - 1) / block_elements);
    if (rows * chunks < few && blocks > 1) {
      constexpr std::uintptr_t line = 64;  // of the cache: vectors that cross a boundary take twice as long
      recycled_vector<double> memory(static_cast<std::size_t>(rows * chunks * blocks * scratch_size(chunk)) +
                                     line / 8);
      double* const folds = memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data()) % line) / 8;
      const auto compute = [&](int phase, index_t t, index_t block) {
        double* const of_range = folds + t * blocks * scratch_size(chunk);
        kernel_range range = range_of(t, nullptr);
        range.scratch = of_range + block * scratch_size(range.end - range.begin);
        const fold_blocks at{phase, block, blocks, of_range};
        range.blocks = &at;
        call.function(call.args, range);
      };
      threads_.parallel_for(rows * chunks * blocks,
                            [&](index_t t, scratch_memory&) { compute(0, t / blocks, t % blocks); });
      for (index_t t = 0; t < rows * chunks; ++t) compute(1, t, 0);
      return;
    }
    const bool parallel = worth_dividing(call, rows * folded * size);
    threads_.parallel_for(rows * chunks, [&](index_t t, scratch_memory& scratch) {
      call.function(call.args, range_of(t, scratch.get(static_cast<std::size_t>(scratch_size(chunk) * 8))));
    }, parallel);
  }

  /// A strided copy as rows that are as long as both sides allow; the remaining dims count the rows.
  struct copied_rows {
    const char* from;
    char* to;
    index_t bytes;                                // of an element
    index_t rows = 1, size = 1;                   // of rows
    index_t from_step = 1, to_step = 1;           // within a row, in elements
    int outer = 0;                                // dims that count rows, the first of them outermost
    index_t extent[max_order]{}, from_stride[max_order]{}, to_stride[max_order]{};

    copied_rows(const strided& source, const strided& target)
        : from(source.data<const char>()), to(target.data<char>()), bytes(size_of(target.type)) {
      for (int d = 0; d < target.extents.order; ++d)
        append(target.extents[d], source.stride[d], target.stride[d]);
      if (outer > 0) {
        --outer;
        size = extent[outer];
        from_step = from_stride[outer];
        to_step = to_stride[outer];
      }
      for (int d = 0; d < outer; ++d) rows *= extent[d];
    }
    bool is_contiguous() const { return (from_step == 1 && to_step == 1) || size == 1; }

    void append(index_t e, index_t f, index_t t) {
      index_t merged_from = 0, merged_to = 0;
      const int last = outer - 1;
      if (e == 1) return;
      if (outer > 0 && merge_strides(extent[last], from_stride[last], e, f, merged_from) &&
          merge_strides(extent[last], to_stride[last], e, t, merged_to)) {
        extent[last] *= e;
        from_stride[last] = merged_from;
        to_stride[last] = merged_to;
        return;
      }
      extent[outer] = e;
      from_stride[outer] = f;
      to_stride[outer++] = t;
    }

    /// Copies elements first to last - 1 of rows begin to end - 1.
    void run(index_t begin, index_t end, index_t first, index_t last) const {
      switch (bytes) {
        case 8: run_as<std::uint64_t>(begin, end, first, last); break;
        case 4: run_as<std::uint32_t>(begin, end, first, last); break;
        case 2: run_as<std::uint16_t>(begin, end, first, last); break;
        default: run_as<std::uint8_t>(begin, end, first, last);
      }
    }

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
