// SPDX-License-Identifier: MIT
// Fused kernels on the CPU: one function per canonical code.
//
// The instructions are template arguments, so that the compiler knows every load, operation and store; a
// kernel does not depend on the expression it came from. A row is computed a vector at a time. The last
// vector may be partial: lanes beyond the row are loaded as zeros, are neutral in reductions and are not
// stored. So the bits of an element do not depend on its position in the row.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include <weft/device/cpu/tiled_elements.hpp>
#include <weft/lower/vector_code.hpp>

namespace weft::lower {
inline namespace WEFT_ISA {

/// The kernel of the code `Words`; `run` computes a range of its space.
///
/// For each row it alternates between row instructions, whose registers hold one value, and sweeps over the
/// elements of the row, whose registers hold a vector. Folds accumulate a vector during their sweep and leave
/// one value for the row. A range may be one block of a long row (`fold_blocks`): see sweep_and_rows_before.
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

  /// Whether no instruction depends on rows, so that elements can be computed in any order.
  static constexpr bool of_elements = [] {
    if (code.sweeps != 1 || code.column_folds > 0) return false;
    for (int i = 0; i < count; ++i) {
      const instruction& w = code.instructions[i];
      const bool follows_rows =
          is_row_fold(w) || w.op == coordinate || w.op == load_row || w.op == store_row || w.op == spill;
      if (!code.is_data[i] && follows_rows) return false;
    }
    return true;
  }();

  static constexpr cpu::argument_access access = [] {
    cpu::argument_access all;
    for (int i = 0; i < count; ++i) {
      const instruction& w = code.instructions[i];
      if (code.is_data[i] || (w.op != load && w.op != store)) continue;
      all.bytes[w.a] = static_cast<std::uint8_t>(size_of(w.type));
      all.is_loaded[w.a] = w.op == load;
    }
    return all;
  }();

  /// A row of the range, and its registers.
  struct row {
    const kernel_args& args;
    const kernel_range& range;
    const row_offsets& offsets;
    row_registers& values;

    template <class T>
    WEFT_INLINE T* pointer(int argument) const {
      return static_cast<T*>(args.pointer[argument]) + offsets.at[argument];
    }
    template <class R>
    WEFT_INLINE R* scratch_row(int number) const {
      return static_cast<R*>(range.scratch) +
             number * scratch_size(args.row_size()) * static_cast<index_t>(8 / sizeof(R));
    }
    /// Whether this call computes the instructions after the last sweep.
    WEFT_INLINE bool is_finished() const { return !range.blocks || range.blocks->phase >= code.sweeps; }
  };

  /// Up to `width` elements of a row, from element `begin` on, in one sweep.
  struct elements {
    vector_registers& values;
    vector_registers& folds;
    index_t begin, size;
  };

 public:
  static void run(const kernel_args& args, const kernel_range& range) {
    row_registers values{};
    if constexpr (code.column_folds > 0) {
      for (index_t r = range.row_begin; r < range.row_end; ++r) fold_rows_of(args, range, r, values);
    } else {
      if constexpr (of_elements)
        if (cpu::run_in_tiles(args, range, access, &run)) return;
      run_rows(args, range, 0, args.order - 1, range.row_begin, range.row_end, {}, values);
    }
  }

 private:
  /// Runs rows begin to end - 1, counted over dims first to last - 1. Offsets along the last of these dims
  /// are incremented, since a division per row would cost measurable time.
  static WEFT_INLINE void run_rows(const kernel_args& args, const kernel_range& range, int first, int last,
                                   index_t begin, index_t end, const row_offsets& base,
                                   row_registers& values) {
    const index_t inner = first < last ? args.extent[last - 1] : 1;
    for (index_t r = begin; r < end;) {
      row_offsets at = offsets_of(args, r, first, last, base);
      for (const index_t stop = std::min(end, r + inner - r % inner); r < stop; ++r) {
        run_row({args, range, at, values}, std::make_integer_sequence<int, code.sweeps>{});
        if (first < last)
          for (int a = 0; a < args.arguments; ++a) at.at[a] += args.stride[a][last - 1];
      }
    }
  }

  template <int... S>
  static WEFT_INLINE void run_row(const row& r, std::integer_sequence<int, S...>) {
    (sweep_and_rows_before<S>(r), ...);
    if (r.is_finished()) run_row_instructions<code.sweeps>(r);
  }

  /// Runs sweep S of a row and the row instructions before it. If the row is computed in blocks, a call of
  /// phase p sweeps one block for S = p and stores the results of its folds over the block; for the sweeps
  /// before p it combines the results stored for all blocks, and it leaves the sweeps after p to later calls.
  template <int S>
  static WEFT_INLINE void sweep_and_rows_before(const row& r) {
    using folds = std::make_integer_sequence<int, code.fold_begin[S + 1] - code.fold_begin[S]>;
    const fold_blocks* const blocks = r.range.blocks;
    if (blocks && blocks->phase < S) return;
    run_row_instructions<S>(r);
    if (blocks && blocks->phase > S) return combine_folds<S>(r, folds{});
    run_sweep<S>(r, std::make_integer_sequence<int, code.sweep_end[S] - code.sweep_begin[S]>{}, folds{});
    if (blocks) store_folds<S>(r, folds{});
  }

  // Row instructions

  template <int S>
  static WEFT_INLINE void run_row_instructions(const row& r) {
    run_row_instructions<code.rows_begin(S)>(
        r, std::make_integer_sequence<int, code.rows_end(S) - code.rows_begin(S)>{});
  }
  template <int Begin, int... I>
  static WEFT_INLINE void run_row_instructions(const row& r, std::integer_sequence<int, I...>) {
    (run_row_instruction<Begin + I>(r), ...);
  }

  template <int I>
  static WEFT_INLINE void run_row_instruction(const row& r) {
    if constexpr (!code.is_data[I]) {
      constexpr instruction w = code.instructions[I];
      using T = element_of<w.type>;
      auto& out = vector_code::get<I>(r.values);
      if constexpr (w.op == constant)
        out = vector_code::number_register<w.type>({static_cast<std::int64_t>(encoded[I + 1])});
      else if constexpr (w.op == scalar_argument)
        out = vector_code::number_register<w.type>(r.args.number[w.a]);
      else if constexpr (w.op == load_row)
        out = vector_code::load_as<T, register_type_of<I>>(r.template pointer<const T>(w.a), 1, 1);
      else if constexpr (w.op == store_row) {
        if (r.is_finished())  // once, not in every block
          vector_code::store_as<T>(r.template pointer<T>(w.a), vector_code::get<w.b>(r.values), 1);
      } else
        out = operation<I>([&]<int A>(std::integral_constant<int, A>)
                               __attribute__((always_inline)) { return vector_code::get<A>(r.values); });
    }
  }

  /// The value of instruction I; operand(number) returns the registers of its operands.
  template <int I, class Operand>
  static WEFT_INLINE auto operation(Operand operand) {
    constexpr instruction w = code.instructions[I];
    constexpr std::integral_constant<int, w.a> a;
    constexpr std::integral_constant<int, w.b> b;
    constexpr std::integral_constant<int, w.c> c;
    using Op = typename op::op_at<w.op, op::all::list>::type;
    if constexpr (std::is_same_v<Op, op::cast>)
      return vector_code::cast_register<register_type(code.instructions[w.a].type), w.type>(operand(a));
    else if constexpr (Op::arity == 1) return Op::lane(operand(a));
    else if constexpr (Op::arity == 2) return Op::lane(operand(a), operand(b));
    else return Op::lane(operand(a), operand(b), operand(c));
  }

  // Sweeps

  template <int S, int... I, int... F>
  static WEFT_INLINE void run_sweep(const row& r, std::integer_sequence<int, I...> instructions,
                                    std::integer_sequence<int, F...>) {
    [[maybe_unused]] vector_registers folds, of_run;
    (begin_fold<fold_of<S, F>>(folds), ...);
    index_t c = r.range.begin;
    do {
      const index_t end = sizeof...(F) > 0 ? std::min(r.range.end, c + run_of_folds * width) : r.range.end;
      (begin_fold<fold_of<S, F>>(of_run), ...);
      for (; c + width <= end; c += width) sweep_elements<S>(r, of_run, c, width, instructions);
      if (const index_t rest = end - c; rest > 0) {
        if (rest >= width) __builtin_unreachable();  // removes bounds checks of loads and stores
        sweep_elements<S>(r, of_run, c, rest, instructions);
        c = end;
      }
      (add_fold<fold_of<S, F>>(folds, of_run), ...);
    } while (c < r.range.end);
    (end_fold<fold_of<S, F>>(folds, r.values), ...);
  }

  template <int S, int... I>
  static WEFT_INLINE void sweep_elements(const row& r, vector_registers& folds, index_t begin, index_t size,
                                         std::integer_sequence<int, I...>) {
    vector_registers values;
    const elements e{values, folds, begin, size};
    (run_sweep_instruction<S, code.sweep_begin[S] + I>(r, e), ...);
  }

  /// Operand register `A` as a vector: from this sweep, or a row value broadcast to all lanes.
  template <int S, int A>
  static WEFT_INLINE auto operand(const row& r, const elements& e) {
    using V = simd::vec<register_type_of<A>, width>;
    if constexpr (A >= code.sweep_begin[S] && A < code.sweep_end[S]) return vector_code::get<A>(e.values);
    else return simd::splat<V>(vector_code::get<A>(r.values));
  }

  template <int S, int I>
  static WEFT_INLINE void run_sweep_instruction(const row& r, const elements& e) {
    constexpr instruction w = code.instructions[I];
    using R = register_type_of<I>;
    using V = simd::vec<R, width>;
    using T = element_of<w.type>;
    if constexpr (w.op == load) {
      const index_t stride = w.b ? r.args.stride[w.a][r.args.order - 1] : 1;
      vector_code::get<I>(e.values) =
          vector_code::load_as<T, V>(r.template pointer<const T>(w.a) + e.begin * stride, stride, e.size);
    } else if constexpr (w.op == coordinate) {
      vector_code::get<I>(e.values) = simd::iota<V>() + static_cast<R>(e.begin);
    } else if constexpr (w.op == store) {
      vector_code::store_as<T>(r.template pointer<T>(w.a) + e.begin, operand<S, w.b>(r, e), e.size);
    } else if constexpr (w.op == spill) {
      simd::store(r.template scratch_row<R>(w.a) + e.begin, operand<S, w.b>(r, e));
    } else if constexpr (w.op == reload) {
      vector_code::get<I>(e.values) = simd::load<V>(r.template scratch_row<const R>(w.a) + e.begin);
    } else if constexpr (is_row_fold(w)) {
      auto& sum = vector_code::get<I>(e.folds);
      const V present =
          simd::first_lanes<V>(operand<S, w.a>(r, e), simd::splat<V>(neutral_of_fold<I>), e.size);
      sum = vector_code::fold_two<w.op - fold_sum>(sum, present);
    } else if constexpr (is_column_fold(w)) {
      R* const sums = sums_of<R>(r.range, w.c) + (e.begin - r.range.begin);
      simd::store(sums, vector_code::fold_two<w.op - column_sum>(simd::load<V>(sums), operand<S, w.b>(r, e)));
    } else {
      vector_code::get<I>(e.values) =
          operation<I>([&]<int A>(std::integral_constant<int, A>)
                           __attribute__((always_inline)) { return operand<S, A>(r, e); });
    }
  }

  // Folds along rows

  /// The instruction that is fold number `F` of sweep S.
  template <int S, int F>
  static constexpr int fold_of = code.fold[code.fold_begin[S] + F];

  template <int I>
  static constexpr register_type_of<I> neutral_of_fold =
      vector_code::fold_neutral<code.instructions[I].op - fold_sum, register_type_of<I>>();

  /// This many vectors, or blocks of a row, are folded into a partial result before that is folded with the
  /// others: a sum of n numbers of similar size then has the error of a sum of n / 64 + 64 numbers.
  static constexpr index_t run_of_folds = 64;

  template <int I>
  static WEFT_INLINE void begin_fold(vector_registers& folds) {
    vector_code::get<I>(folds) = simd::splat<simd::vec<register_type_of<I>, width>>(neutral_of_fold<I>);
  }
  template <int I>
  static WEFT_INLINE void add_fold(vector_registers& folds, vector_registers& of_run) {
    auto& all = vector_code::get<I>(folds);
    all = vector_code::fold_two<code.instructions[I].op - fold_sum>(all, vector_code::get<I>(of_run));
  }
  template <int I>
  static WEFT_INLINE void end_fold(vector_registers& folds, row_registers& values) {
    vector_code::get<I>(values) =
        simd::fold_lanes(vector_code::get<I>(folds), []<class V>(V a, V b) __attribute__((always_inline)) {
          return vector_code::fold_two<code.instructions[I].op - fold_sum>(a, b);
        });
  }

  /// Where block `block` stores its result of fold number `fold` of the code.
  static char* stored_fold(const fold_blocks& b, int fold, index_t block) {
    return static_cast<char*>(b.folds) + 8 * (fold * b.count + block);
  }
  template <int S, int... F>
  static WEFT_INLINE void store_folds(const row& r, std::integer_sequence<int, F...>) {
    [[maybe_unused]] const fold_blocks& b = *r.range.blocks;
    (std::memcpy(stored_fold(b, code.fold_begin[S] + F, b.block), &vector_code::get<fold_of<S, F>>(r.values),
                 sizeof(register_type_of<fold_of<S, F>>)),
     ...);
  }
  template <int S, int... F>
  static WEFT_INLINE void combine_folds(const row& r, std::integer_sequence<int, F...>) {
    (combine_fold<fold_of<S, F>>(r, code.fold_begin[S] + F), ...);
  }
  /// Folds the results that all blocks stored, in the order of the blocks.
  template <int I>
  static WEFT_INLINE void combine_fold(const row& r, int fold) {
    const fold_blocks& b = *r.range.blocks;
    constexpr auto fold_two = [](auto x, auto y) {
      return vector_code::fold_two<code.instructions[I].op - fold_sum>(x, y);
    };
    register_type_of<I> all = neutral_of_fold<I>, of_run = all, one;
    for (index_t block = 0; block < b.count; ++block) {
      std::memcpy(&one, stored_fold(b, fold, block), sizeof one);
      of_run = fold_two(of_run, one);
      if (block % run_of_folds < run_of_folds - 1 && block < b.count - 1) continue;
      all = fold_two(all, of_run);
      of_run = neutral_of_fold<I>;
    }
    vector_code::get<I>(r.values) = all;
  }

  // Folds along columns

  /// The sums of fold number `fold` for the columns of a range.
  template <class R>
  static WEFT_INLINE R* sums_of(const kernel_range& range, int fold) {
    return static_cast<R*>(range.sums) +
           fold * scratch_size(range.end - range.begin) * static_cast<index_t>(8 / sizeof(R));
  }

  /// Folds all rows that belong to row `r` of the result, for the columns of the range. If the rows are
  /// folded in blocks, a call of phase 0 folds the rows of one block, and a call of phase 1 combines all
  /// blocks.
  static void fold_rows_of(const kernel_args& args, const kernel_range& range, index_t r,
                           row_registers& values) {
    using folds = std::make_integer_sequence<int, code.column_folds>;
    const fold_blocks whole{0, 0, 1, range.sums}, &b = range.blocks ? *range.blocks : whole;
    const int kept = args.order - 1 - args.folded;
    const row_offsets base = offsets_of(args, r, 0, kept);
    if (b.phase == 0) {
      begin_columns(range, folds{});
      const index_t folded_rows = args.folded_rows(), last = folded_rows * (b.block + 1) / b.count;
      const index_t run = range.sums_of_run ? run_of_rows : folded_rows;
      kernel_range rows = range;
      rows.blocks = nullptr;
      if (range.sums_of_run) rows.sums = range.sums_of_run;
      for (index_t first = folded_rows * b.block / b.count; first < last; first += run) {
        if (range.sums_of_run) begin_columns(rows, folds{});
        run_rows(args, rows, kept, args.order - 1, first, std::min(first + run, last), base, values);
        if (range.sums_of_run) add_columns(range, rows, folds{});
      }
      if (range.blocks) return;
    }
    end_columns(args, range, b, base, folds{});
  }

  template <int... F>
  static WEFT_INLINE void begin_columns(const kernel_range& range, std::integer_sequence<int, F...>) {
    (begin_column_fold<code.column_fold[F]>(range), ...);
  }
  template <int I>
  static WEFT_INLINE void begin_column_fold(const kernel_range& range) {
    using R = register_type_of<I>;
    constexpr instruction w = code.instructions[I];
    std::fill_n(sums_of<R>(range, w.c), scratch_size(range.end - range.begin),
                vector_code::fold_neutral<w.op - column_sum, R>());
  }

  template <int... F>
  static WEFT_INLINE void add_columns(const kernel_range& range, const kernel_range& run,
                                      std::integer_sequence<int, F...>) {
    (add_column_fold<code.column_fold[F]>(range, run), ...);
  }
  template <int I>
  static WEFT_INLINE void add_column_fold(const kernel_range& range, const kernel_range& run) {
    using R = register_type_of<I>;
    constexpr instruction w = code.instructions[I];
    R *const sums = sums_of<R>(range, w.c), *const of_run = sums_of<R>(run, w.c);
    for (index_t c = 0; c < range.end - range.begin; ++c)
      sums[c] = vector_code::fold_two<w.op - column_sum>(sums[c], of_run[c]);
  }

  template <int... F>
  static WEFT_INLINE void end_columns(const kernel_args& args, const kernel_range& range,
                                      const fold_blocks& b, const row_offsets& base,
                                      std::integer_sequence<int, F...>) {
    (end_column_fold<code.column_fold[F]>(args, range, b, base), ...);
  }
  /// Folds the sums of all blocks, in order, and stores the results.
  template <int I>
  static WEFT_INLINE void end_column_fold(const kernel_args& args, const kernel_range& range,
                                          const fold_blocks& b, const row_offsets& base) {
    constexpr instruction w = code.instructions[I];
    using R = register_type_of<I>;
    using T = element_of<w.type>;
    const index_t columns = range.end - range.begin;
    R* const sums = sums_of<R>(range, w.c);
    const auto of_block = [&](index_t block) {
      const index_t units = (block * code.column_folds + w.c) * scratch_size(columns);
      return block == 0 ? sums : reinterpret_cast<R*>(static_cast<char*>(b.folds) + 8 * units);
    };
    const auto add = [&](R* to, const R* more) {
      for (index_t c = 0; c < columns; ++c) to[c] = vector_code::fold_two<w.op - column_sum>(to[c], more[c]);
    };
    for (index_t block = 1; block < b.count; ++block)
      if (const index_t of_run = block % run_of_folds) add(of_block(block - of_run), of_block(block));
    for (index_t run = run_of_folds; run < b.count; run += run_of_folds) add(sums, of_block(run));
    T* const out = static_cast<T*>(args.pointer[w.a]) + base.at[w.a];
    for (index_t c = 0; c < columns; ++c) vector_code::store_as<T>(out + range.begin + c, sums[c], 1);
  }
};

}  // namespace WEFT_ISA
}  // namespace weft::lower
