// SPDX-License-Identifier: MIT
// Fused kernels on the CPU: one function per canonical code.
//
// The instructions are template arguments, so that the compiler knows every load, operation and store; a
// kernel does not depend on the expression it came from. A row is computed a vector at a time; the last
// vector may be partial: lanes beyond the row are loaded as zeros, are neutral in reductions and are not
// stored. So the bits of an element do not depend on its position in the row.
#pragma once

#include <algorithm>
#include <array>

#include <weft/lower/vector_code.hpp>

namespace weft::lower {
inline namespace WEFT_ISA {

/// The kernel of the code `Words`; `run` computes a range of its space.
template <std::uint64_t... Words>
class cpu_kernel {
  static constexpr int count = sizeof...(Words);
  static constexpr vector_code::parsed_code<count> code{
      std::array<std::uint64_t, std::size_t{count}>{Words...}};
  static constexpr int width = vector_bytes / (code.wide ? 8 : 4);
  static constexpr std::uint64_t encoded[] = {Words...};

  template <int I>
  using register_type_of = typename vector_code::register_of<register_type(code.instructions[I].type)>::type;

  template <int N, class Index>
  struct registers;
  template <int N, int... I>
  struct registers<N, std::integer_sequence<int, I...>>
      : vector_code::slot<I, simd::vec<register_type_of<I>, N>>... {};
  using all_instructions = std::make_integer_sequence<int, count>;
  using row_registers = registers<1, all_instructions>;
  using vector_registers = registers<width, all_instructions>;

  /// The offset of a row in each argument.
  struct row_offsets {
    index_t at[max_arguments];
  };

 public:
  static void run(const kernel_args& args, const kernel_range& range) {
    row_registers row{};
    if constexpr (folds_columns()) {
      for (index_t r = range.row_begin; r < range.row_end; ++r) fold_rows_of(args, range, r, row);
    } else {
      run_rows(args, range, 0, args.order - 1, range.row_begin, range.row_end, {}, row);
    }
  }

 private:
  static constexpr bool folds_columns() {
    for (int i = 0; i < count; ++i)
      if (!code.is_data[i] && code.instructions[i].op >= column_sum && code.instructions[i].op <= column_min)
        return true;
    return false;
  }

  static row_offsets offsets(const kernel_args& args, index_t row, int first, int last,
                             row_offsets base = {}) {
    for (int d = last; d-- > first;) {
      const index_t i = row % args.extent[d];
      row /= args.extent[d];
      for (int a = 0; a < args.arguments; ++a) base.at[a] += i * args.stride[a][d];
    }
    return base;
  }

  /// Runs rows begin to end - 1, counted over dims first to last - 1. Offsets along the last of these are
  /// incremented, as a division per row would be measurable.
  static WEFT_INLINE void run_rows(const kernel_args& args, const kernel_range& range, int first, int last,
                                   index_t begin, index_t end, const row_offsets& base, row_registers& row) {
    const index_t inner = first < last ? args.extent[last - 1] : 1;
    for (index_t r = begin; r < end;) {
      row_offsets at = offsets(args, r, first, last, base);
      for (const index_t stop = std::min(end, r + inner - r % inner); r < stop; ++r) {
        run_row(args, range, at, row);
        if (first < last)
          for (int a = 0; a < args.arguments; ++a) at.at[a] += args.stride[a][last - 1];
      }
    }
  }

  template <class T>
  static WEFT_INLINE T* pointer(const kernel_args& args, const row_offsets& at, int a) {
    return static_cast<T*>(args.pointer[a]) + at.at[a];
  }

  static WEFT_INLINE void run_row(const kernel_args& args, const kernel_range& range,
                                  const row_offsets& at, row_registers& row) {
    run_sweeps(args, range, at, row, std::make_integer_sequence<int, code.sweeps>{});
    constexpr int begin = code.sweeps == 0 ? 0 : code.sweep_end[code.sweeps - 1] + 1;
    if (reaches(range, code.sweeps))
      run_row_instructions<begin>(args, range, at, row, std::make_integer_sequence<int, count - begin>{});
  }

  /// Whether a call computes what precedes sweep `sweep`: with blocks, a call ends with its own sweep.
  static WEFT_INLINE bool reaches(const kernel_range& range, int sweep) {
    return !range.blocks || range.blocks->phase >= sweep;
  }

  template <int... S>
  static WEFT_INLINE void run_sweeps(const kernel_args& args, const kernel_range& range,
                                     const row_offsets& at, row_registers& row,
                                     std::integer_sequence<int, S...>) {
    ((reaches(range, S) ? (rows_before<S>(args, range, at, row), sweep_or_folds<S>(args, range, at, row))
                        : void()),
     ...);
  }

  /// The indices of the instructions of sweep S, relative to its first.
  template <int S>
  using instructions_of = std::make_integer_sequence<int, code.sweep_end[S] - code.sweep_begin[S]>;

  template <int S>
  static WEFT_INLINE void rows_before(const kernel_args& args, const kernel_range& range,
                                      const row_offsets& at, row_registers& row) {
    constexpr int begin = S == 0 ? 0 : code.sweep_end[S == 0 ? 0 : S - 1] + 1;
    run_row_instructions<begin>(args, range, at, row,
                     std::make_integer_sequence<int, code.sweep_begin[S] - 1 - begin>{});
  }

  template <int Begin, int... I>
  static WEFT_INLINE void run_row_instructions(const kernel_args& args, const kernel_range& range,
                                               const row_offsets& at, row_registers& row,
                                               std::integer_sequence<int, I...>) {
    (run_row_instruction<Begin + I>(args, range, at, row), ...);
  }

  template <int I>
  static WEFT_INLINE void run_row_instruction(const kernel_args& args,
                                              [[maybe_unused]] const kernel_range& range,
                                              const row_offsets& at, row_registers& row) {
    if constexpr (!code.is_data[I]) {
      constexpr instruction w = code.instructions[I];
      using R = register_type_of<I>;
      using T = typename weft::detail::type_of<w.type>::type;
      auto& out = vector_code::get<I>(row);
      if constexpr (w.op == constant)
        out = vector_code::number_register<w.type>({static_cast<std::int64_t>(encoded[I + 1])});
      else if constexpr (w.op == scalar_argument)
        out = vector_code::number_register<w.type>(args.number[w.a]);
      else if constexpr (w.op == load_row)
        out = vector_code::load_as<T, R>(pointer<const T>(args, at, w.a), 1, 1);
      else if constexpr (w.op == store_row) {
        if (reaches(range, code.sweeps))
          vector_code::store_as<T>(pointer<T>(args, at, w.a), vector_code::get<w.b>(row), 1);  // once
      } else out = operation<I>([&]<int A>(std::integral_constant<int, A>) __attribute__((always_inline)) {
        return vector_code::get<A>(row);
      });
    }
  }

  /// The value of instruction I; at(number) returns the operand registers.
  template <int I, class At>
  static WEFT_INLINE auto operation(At at) {
    constexpr instruction w = code.instructions[I];
    constexpr std::integral_constant<int, w.a> a;
    constexpr std::integral_constant<int, w.b> b;
    constexpr std::integral_constant<int, w.c> c;
    using Op = typename op::op_at<w.op, op::all::list>::type;
    if constexpr (std::is_same_v<Op, op::cast>)
      return vector_code::cast_register<register_type(code.instructions[w.a].type), w.type>(at(a));
    else if constexpr (Op::arity == 1) return Op::lane(at(a));
    else if constexpr (Op::arity == 2) return Op::lane(at(a), at(b));
    else return Op::lane(at(a), at(b), at(c));
  }

  /// Operand register `A` as a vector: from this sweep, or a row value broadcast to all lanes.
  template <int S, int A>
  static WEFT_INLINE auto operand(vector_registers& frame, row_registers& row) {
    using V = simd::vec<register_type_of<A>, width>;
    if constexpr (A >= code.sweep_begin[S] && A < code.sweep_end[S]) return vector_code::get<A>(frame);
    else return simd::splat<V>(vector_code::get<A>(row));
  }

  /// Runs one instruction of sweep S for the `n` elements at `c`; n is at most the number of lanes.
  template <int S, int I>
  static WEFT_INLINE void run_sweep_instruction(const kernel_args& args, const kernel_range& range,
                                                const row_offsets& at, row_registers& row,
                                                vector_registers& frame, vector_registers& folds, index_t c,
                                                index_t n) {
    constexpr instruction w = code.instructions[I];
    using R = register_type_of<I>;
    using V = simd::vec<R, width>;
    using T = typename weft::detail::type_of<w.type>::type;
    if constexpr (w.op == load) {
      const index_t stride = w.b ? args.stride[w.a][args.order - 1] : 1;
      vector_code::get<I>(frame) =
          vector_code::load_as<T, V>(pointer<const T>(args, at, w.a) + c * stride, stride, n);
    } else if constexpr (w.op == coordinate) {
      vector_code::get<I>(frame) = simd::iota<V>() + static_cast<R>(c);
    } else if constexpr (w.op == store) {
      vector_code::store_as<T>(pointer<T>(args, at, w.a) + c, operand<S, w.b>(frame, row), n);
    } else if constexpr (w.op == spill) {
      simd::store(scratch_row<R>(args, range, w.a) + c, operand<S, w.b>(frame, row));
    } else if constexpr (w.op == reload) {
      vector_code::get<I>(frame) = simd::load<V>(scratch_row<const R>(args, range, w.a) + c);
    } else if constexpr (w.op >= fold_sum && w.op <= fold_min) {
      constexpr int which = w.op - fold_sum;
      constexpr R neutral = vector_code::fold_neutral<which, R>();
      auto& sum = vector_code::get<I>(folds);
      sum = vector_code::fold_two<which>(
          sum, simd::first_lanes<V>(operand<S, w.a>(frame, row), simd::splat<V>(neutral), n));
    } else if constexpr (w.op >= column_sum && w.op <= column_min) {
      R* sums = static_cast<R*>(range.scratch) + (c - range.begin);
      simd::store(sums,
                  vector_code::fold_two<w.op - column_sum>(simd::load<V>(sums), operand<S, w.b>(frame, row)));
    } else {
      vector_code::get<I>(frame) =
          operation<I>([&]<int A>(std::integral_constant<int, A>)
                           __attribute__((always_inline)) { return operand<S, A>(frame, row); });
    }
  }

  template <class R>
  static WEFT_INLINE R* scratch_row(const kernel_args& args, const kernel_range& range, int number) {
    return static_cast<R*>(range.scratch) +
           number * scratch_size(args.row_size()) * static_cast<index_t>(8 / sizeof(R));
  }

  template <int S, int... I>
  static WEFT_INLINE void sweep_part(const kernel_args& args, const kernel_range& range,
                                     const row_offsets& at, row_registers& row, vector_registers& folds,
                                     index_t c, index_t n, std::integer_sequence<int, I...>) {
    vector_registers frame;
    (run_sweep_instruction<S, code.sweep_begin[S] + I>(args, range, at, row, frame, folds, c, n), ...);
  }

  template <int S, int... I>
  static WEFT_INLINE void run_sweep(const kernel_args& args, const kernel_range& range,
                                    const row_offsets& at, row_registers& row,
                                    std::integer_sequence<int, I...> instructions) {
    constexpr int begin = code.sweep_begin[S];
    vector_registers folds;
    (begin_fold<begin + I>(folds), ...);
    index_t c = range.begin;
    for (; c + width <= range.end; c += width)
      sweep_part<S>(args, range, at, row, folds, c, width, instructions);
    if (const index_t rest = range.end - c; rest > 0) {
      if (rest >= width) __builtin_unreachable();  // removes bounds checks of loads and stores
      sweep_part<S>(args, range, at, row, folds, c, rest, instructions);
    }
    (end_fold<begin + I>(folds, row), ...);
  }

  /// Runs sweep S of a row, whole or one block of it, or only combines its reductions if it has been computed
  /// before.
  template <int S>
  static WEFT_INLINE void sweep_or_folds(const kernel_args& args, const kernel_range& range,
                                         const row_offsets& at, row_registers& row) {
    const fold_blocks* const b = range.blocks;
    if (b && b->phase > S) return take_folds<S>(*b, row, instructions_of<S>{});
    run_sweep<S>(args, range, at, row, instructions_of<S>{});
    if (b) put_folds<S>(*b, row, instructions_of<S>{});
  }

  template <int S, int... I>
  static WEFT_INLINE void put_folds(const fold_blocks& b, row_registers& row,
                                    std::integer_sequence<int, I...>) {
    (put_fold<code.sweep_begin[S] + I>(b, row), ...);
  }
  template <int S, int... I>
  static WEFT_INLINE void take_folds(const fold_blocks& b, row_registers& row,
                                     std::integer_sequence<int, I...>) {
    (take_fold<code.sweep_begin[S] + I>(b, row), ...);
  }
  template <int I>
  static WEFT_INLINE void put_fold(const fold_blocks& b, row_registers& row) {
    if constexpr (is_fold(I))
      std::memcpy(fold_at<I>(b, b.block), &vector_code::get<I>(row), sizeof(register_type_of<I>));
  }
  /// Combines a reduction over all blocks, in block order.
  template <int I>
  static WEFT_INLINE void take_fold(const fold_blocks& b, row_registers& row) {
    if constexpr (is_fold(I)) {
      using R = register_type_of<I>;
      constexpr int which = code.instructions[I].op - fold_sum;
      R all = vector_code::fold_neutral<which, R>();
      for (index_t block = 0; block < b.count; ++block) {
        R one;
        std::memcpy(&one, fold_at<I>(b, block), sizeof one);
        all = vector_code::fold_two<which>(all, one);
      }
      vector_code::get<I>(row) = all;
    }
  }
  template <int I>
  static char* fold_at(const fold_blocks& b, index_t block) {
    constexpr int number = [] {
      int before = 0;
      for (int i = 0; i < I; ++i) before += !code.is_data[i] && is_fold(i);
      return before;
    }();
    return static_cast<char*>(b.folds) + 8 * (number * b.count + block);
  }

  static constexpr bool is_fold(int i) {
    return code.instructions[i].op >= fold_sum && code.instructions[i].op <= fold_min;
  }
  template <int I>
  static WEFT_INLINE void begin_fold(vector_registers& folds) {
    if constexpr (is_fold(I)) {
      using R = register_type_of<I>;
      constexpr R neutral = vector_code::fold_neutral<code.instructions[I].op - fold_sum, R>();
      vector_code::get<I>(folds) = simd::splat<simd::vec<R, width>>(neutral);
    }
  }
  template <int I>
  static WEFT_INLINE void end_fold(vector_registers& folds, row_registers& row) {
    if constexpr (is_fold(I))
      vector_code::get<I>(row) = simd::fold_lanes(
          vector_code::get<I>(folds), []<class V>(V a, V b) __attribute__((always_inline)) {
            return vector_code::fold_two<code.instructions[I].op - fold_sum>(a, b);
          });
  }

  /// Reduces all rows that belong to row `r` of the result, for the columns of the range.
  static void fold_rows_of(const kernel_args& args, const kernel_range& range, index_t r,
                           row_registers& row) {
    constexpr int last = code.sweep_end[0] - 1;
    constexpr instruction w = code.instructions[last];
    using R = register_type_of<last>;
    using T = typename weft::detail::type_of<w.type>::type;
    constexpr int which = w.op - column_sum;
    const fold_blocks whole{0, 0, 1, range.scratch}, &b = range.blocks ? *range.blocks : whole;
    const index_t width_of_range = range.end - range.begin;
    R* const sums = static_cast<R*>(range.scratch);
    const int kept = args.order - 1 - args.folded;
    const row_offsets base = offsets(args, r, 0, kept);
    if (b.phase == 0) {
      std::fill_n(sums, scratch_size(width_of_range), vector_code::fold_neutral<which, R>());
      index_t folded_rows = 1;
      for (int d = kept; d < args.order - 1; ++d) folded_rows *= args.extent[d];
      kernel_range rows = range;
      rows.blocks = nullptr;
      run_rows(args, rows, kept, args.order - 1, folded_rows * b.block / b.count,
               folded_rows * (b.block + 1) / b.count, base, row);
      if (range.blocks) return;
    } else {
      for (index_t block = 1; block < b.count; ++block) {
        const R* const more = reinterpret_cast<const R*>(static_cast<const char*>(b.folds) +
                                                         8 * block * scratch_size(width_of_range));
        for (index_t c = 0; c < width_of_range; ++c) sums[c] = vector_code::fold_two<which>(sums[c], more[c]);
      }
    }
    T* out = pointer<T>(args, base, w.a);
    for (index_t c = range.begin; c < range.end; ++c)
      vector_code::store_as<T>(out + c, sums[c - range.begin], 1);
  }
};

}  // namespace WEFT_ISA
}  // namespace weft::lower
