// SPDX-License-Identifier: MIT
// Definitions of <weft/device/cpu/backend.hpp>.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include <weft/base/config.hpp>
#include <weft/device/cpu/backend.hpp>

namespace weft {
namespace cpu {

WEFT_DEFINE void* cpu_backend::allocate(std::size_t bytes) {
  void* memory = ::operator new(bytes, alignment, std::nothrow);
  if (!memory)
    refuse<out_of_memory_error>({"weft: cpu: out of memory: could not allocate ", bytes, " bytes"});
  return memory;
}

WEFT_DEFINE device_room cpu_backend::room() const {
  const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return {};
  const auto in_bytes = [&](long n) { return static_cast<std::size_t>(n) * static_cast<std::size_t>(bytes); };
  device_room all{in_bytes(pages), in_bytes(std::max(::sysconf(_SC_AVPHYS_PAGES), 0L))};
  rlimit addresses{};
  long used = 0;
  if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY &&
      std::ifstream("/proc/self/statm") >> used)
    all.free =
        std::min(all.free, addresses.rlim_cur - std::min<std::size_t>(addresses.rlim_cur, in_bytes(used)));
  return all;
}

WEFT_DEFINE void cpu_backend::launch(const kernel_call& call) {
  switch (call.division) {
    case kernel_division::elements: launch_elements(call); break;
    case kernel_division::rows: call.column_folds > 0 ? launch_columns(call) : launch_rows(call); break;
    case kernel_division::columns: launch_columns(call); break;
  }
}

WEFT_DEFINE void cpu_backend::multiply(const native_code& code, const strided& a, const strided& b,
                                       const strided& c) {
  if (!code.cpu) refuse<device_error>({"weft: cpu: matmul does not support ", name_of(c.type)});
  const strided in[] = {a, b};
  code.cpu({{in, {&c, 1}, {}, 0}, threads_});
}

WEFT_DEFINE void cpu_backend::copy(const strided& from, const strided& to) {
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

WEFT_DEFINE void cpu_backend::call_native(const char* op, const native_code& code,
                                          const native_operands& operands) {
  if (!code.cpu) refuse<device_error>({"weft: ", op, ": this op has no code for the device cpu"});
  code.cpu({operands, threads_});
}

WEFT_DEFINE void cpu_backend::copy_bytes(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  threads_.parallel_for(static_cast<index_t>((bytes + piece - 1) / piece),
                        [&](index_t task, scratch_memory&) {
                          const std::size_t at = static_cast<std::size_t>(task) * piece;
                          std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                                      std::min(piece, bytes - at));
                        });
}

WEFT_DEFINE bool cpu_backend::worth_dividing(const kernel_call& call, index_t elements) const {
  return threads_.threads() > 1 && elements * static_cast<index_t>(call.instructions.size()) >= serial_work;
}

WEFT_DEFINE void cpu_backend::launch_elements(const kernel_call& call) {
  constexpr index_t unit = 1024;  // elements, so that tasks begin at vector boundaries
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

WEFT_DEFINE void cpu_backend::launch_rows(const kernel_call& call) {
  const index_t rows = call.args.rows(), size = call.args.row_size();
  if (rows < few && size > block_elements && call.scratch_rows == 0) return launch_long_rows(call);
  const index_t tasks = tasks_for(call, rows * size, rows);
  const auto bytes = static_cast<std::size_t>(call.scratch_rows * scratch_size(size) * 8);
  threads_.parallel_for(tasks, [&](index_t t, scratch_memory& scratch) {
    call.function(call.args, {rows * t / tasks, rows * (t + 1) / tasks, 0, size, scratch.get(bytes)});
  });
}

WEFT_DEFINE void cpu_backend::launch_long_rows(const kernel_call& call) {
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

WEFT_DEFINE void cpu_backend::launch_columns(const kernel_call& call) {
  constexpr index_t widest = 2048, unit = 64;
  const index_t rows = call.args.rows(), folded = call.args.folded_rows(), size = call.args.row_size(),
                parts = std::max<index_t>((size + widest - 1) / widest, 1);
  const index_t chunk = std::max<index_t>((size + parts * unit - 1) / (parts * unit) * unit, unit),
                chunks = (size + chunk - 1) / chunk,
                blocks =
                    std::min(folded, (folded * std::min(size, chunk) + block_elements - 1) / block_elements);
  const bool in_blocks = (rows == 1 || rows * chunks < few) && blocks > 1;
  const bool in_runs = folded > run_of_rows * (in_blocks ? blocks : 1);
  // If rows are folded, too, each task has whole rows; the blocks are the same, and so are the sums.
  const bool whole_rows = call.division == kernel_division::rows;
  const index_t width = whole_rows ? size : chunk, ranges = whole_rows ? 1 : chunks;
  const index_t sums = call.column_folds * scratch_size(width),
                scratch_rows = call.scratch_rows * scratch_size(width), of_run = in_runs ? sums : 0;
  const auto scratch_of = [](scratch_memory& memory, index_t units) {
    return static_cast<double*>(memory.get(static_cast<std::size_t>(units * 8)));
  };
  const auto range_of = [&](index_t t, void* scratch, void* to) {
    const index_t begin = t % ranges * width;
    return kernel_range{t / ranges, t / ranges + 1, begin, std::min(size, begin + width),
                        scratch,    nullptr,        to};
  };
  if (in_blocks) {
    constexpr std::uintptr_t line = 64;  // of the cache: vectors that cross a line take twice as long
    recycled_vector<double> memory(static_cast<std::size_t>(rows * ranges * blocks * sums) + line / 8);
    double* const folds = memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data()) % line) / 8;
    const auto compute = [&](int phase, index_t t, index_t block, double* scratch) {
      double* const of_range = folds + t * blocks * sums;
      kernel_range range = range_of(t, scratch, nullptr);
      if (in_runs && phase == 0) range.sums_of_run = scratch + scratch_rows;
      range.sums = of_range + block * call.column_folds * scratch_size(range.end - range.begin);
      const fold_blocks at{phase, block, blocks, of_range};
      range.blocks = &at;
      call.function(call.args, range);
    };
    threads_.parallel_for(rows * ranges * blocks, [&](index_t t, scratch_memory& scratch) {
      compute(0, t / blocks, t % blocks, scratch_of(scratch, scratch_rows + of_run));
    });
    for (index_t t = 0; t < rows * ranges; ++t) compute(1, t, 0, nullptr);
    return;
  }
  const bool parallel = worth_dividing(call, rows * folded * size);
  threads_.parallel_for(
      rows * ranges,
      [&](index_t t, scratch_memory& memory) {
        double* const scratch = scratch_of(memory, scratch_rows + sums + of_run);
        kernel_range range = range_of(t, scratch, scratch + scratch_rows);
        if (in_runs) range.sums_of_run = scratch + scratch_rows + sums;
        call.function(call.args, range);
      },
      parallel);
}

WEFT_DEFINE cpu_backend::copied_rows::copied_rows(const strided& source, const strided& target)
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

WEFT_DEFINE void cpu_backend::copied_rows::append(index_t e, index_t f, index_t t) {
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

WEFT_DEFINE void cpu_backend::copied_rows::run(index_t begin, index_t end, index_t first,
                                               index_t last) const {
  switch (bytes) {
    case 8: run_as<std::uint64_t>(begin, end, first, last); break;
    case 4: run_as<std::uint32_t>(begin, end, first, last); break;
    case 2: run_as<std::uint16_t>(begin, end, first, last); break;
    default: run_as<std::uint8_t>(begin, end, first, last);
  }
}

}  // namespace cpu
}  // namespace weft
