// SPDX-License-Identifier: MIT
// Matrix multiplication on the CPU: C = A B, or C += A B, for operands with any strides.
//
// The classic scheme (Goto and van de Geijn, 2008): a micro-kernel keeps a tile of C in registers, blocks of
// A stay in the second-level cache, and B is packed in panels. If all of A fits that cache, tasks are parts
// of C and pack panels when they first read them; otherwise all threads pack B once. How an element is
// computed depends only on sizes, not on the number of threads.
//
// Sums of bf16 and f16 are f32; C is rounded once, when its tile is complete. bf16 uses tile registers
// (tiles.hpp) or instructions for pairs, if available; products with few rows use few_rows.hpp.
//
//   multiply({m, n, k}, matrix<float>{a, k, 1}, matrix<float>{b, n, 1}, result_matrix<float>{c, n}, threads);
#pragma once

#include <algorithm>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/cpu/few_rows.hpp>
#include <weft/device/cpu/gemm_plan.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {

/// One product C = A B with A [m, k], B [k, n] and C [m, n] in row-major order. C has the type of the
/// operands, or f32 if those are bf16 or f16.
template <class From, class Out = From>
struct operands_of_product {
  matrix<From> a, b;
  result_matrix<Out> c;
};

namespace detail {

/// A product computed in blocks as planned. If sums have another type than C, they are kept until the last
/// part of K.
template <class From, class Out>
class blocked_product {
 public:
  using T = typename packing<From>::type;
  using S = sum_of<T>;
  using B = blocking<T>;

  blocked_product(const gemm_size& size, const operands_of_product<From, Out>& o)
      : a_(o.a), b_(o.b), c_(o.c), plan_(size, a_, b_) {}

  /// The size of what is computed: C or its transpose.
  const gemm_size& size() const { return plan_.size; }
  bool is_one_block() const { return plan_.size.m <= plan_.whole_rows; }

  /// Computes a part of C, with all of A as one block.
  void multiply_block(const block_range& range, scratch_memory& scratch) const {
    const index_t rows = range.i1 - range.i0, panels = quotient_up(range.j1 - range.j0, plan_.panel_columns);
    const index_t a_space = a_space_for(rows), b_space = panel_size();
    const index_t sums_space =
        direct() ? 0 : rows * B::tile_columns * (plan_.part < plan_.depth ? panels : 1);
    T* const a_packed =
        static_cast<T*>(scratch.get(static_cast<std::size_t>(a_space + b_space + sums_space) * sizeof(T)));
    T* const b_packed = a_packed + a_space;
    S* const sums = reinterpret_cast<S*>(b_packed + b_space);
    for (index_t k0 = 0; k0 < plan_.depth; k0 += plan_.part) {
      const block at{range.i0, rows, k0, std::min(plan_.part, plan_.depth - k0)};
      const T* const tiles = tiles_of(at, a_packed);
      for (index_t j0 = range.j0, p = 0; j0 < range.j1; j0 += plan_.panel_columns, ++p) {
        const index_t columns = std::min(plan_.panel_columns, range.j1 - j0);
        S* const sum = sums + (plan_.part < plan_.depth ? p : 0) * rows * B::tile_columns;
        if (reads_in_place(rows, columns)) {
          multiply_panel(at, tiles, j0, columns, reinterpret_cast<const T*>(b_.data + k0 * b_.row + j0),
                         b_.row, sum);
        } else if (packs_on_the_way(columns)) {
          multiply_and_pack(at, tiles, j0, b_packed);
          multiply_panel(at, tiles, j0, columns, b_packed, B::tile_columns, sum, B::tile_rows);
        } else {
          pack_panel<T, B::tile_columns>(b_, k0 * n, at.depth, plan_.size.k - k0 * n, j0, columns, b_packed);
          multiply_panel(at, tiles, j0, columns, b_packed, B::tile_columns, sum);
        }
      }
    }
  }

  /// Computes all of C, with A in several blocks. B is packed for as many columns as fit the last-level
  /// cache. for_each(n, f) calls f(task, scratch) for n tasks.
  template <class ForEach>
  void multiply_all(scratch_memory& shared, int threads, const ForEach& for_each) const {
    constexpr index_t cached = index_t{6} << 20;  // bytes
    const bool keeps_sums = !direct() && plan_.part < plan_.depth;
    const index_t sums_size = keeps_sums ? plan_.size.m * B::tile_columns : 0,
                  panel_bytes = (panel_size() + sums_size) * static_cast<index_t>(sizeof(T));
    const index_t panels = quotient_up(plan_.size.n, plan_.panel_columns),
                  groups = quotient_up(panels, std::max<index_t>(cached / panel_bytes, 1));
    const index_t most = quotient_up(panels, groups),
                  blocks = quotient_up(quotient_up(plan_.size.m, plan_.block_rows), threads) * threads;
    T* const b_packed = static_cast<T*>(shared.get(static_cast<std::size_t>(most * panel_bytes)));
    S* const sums = reinterpret_cast<S*>(b_packed + most * panel_size());
    for (index_t first = 0; first < panels; first += most)
      for (index_t k0 = 0; k0 < plan_.depth; k0 += plan_.part) {
        const panel_group group{first, std::min(most, panels - first), k0,
                                std::min(plan_.part, plan_.depth - k0), b_packed};
        const index_t piece = std::clamp<index_t>(group.count / (2 * threads), 1, 4);
        for_each(quotient_up(group.count, piece), [&](index_t task, scratch_memory&) {
          pack(group, task * piece, std::min(group.count, (task + 1) * piece));
        });
        for_each(blocks, [&](index_t task, scratch_memory& scratch) {
          const index_t begin = part_begin(plan_.size.m, B::tile_rows, task, blocks),
                        end = part_begin(plan_.size.m, B::tile_rows, task + 1, blocks);
          multiply_rows(group, {begin, end - begin, group.k0, group.depth},
                        keeps_sums ? sums + begin * B::tile_columns : nullptr, sums_size, scratch);
        });
      }
  }

 private:
  static constexpr index_t n = elements_in<T>;
  /// Whether sums are accumulated in C.
  bool direct() const { return std::is_same_v<Out, S> && !plan_.transposed && c_.piece == 0; }

  /// Rows i0 to i0 + rows - 1 of A, for `depth` packed elements starting at the k0-th.
  struct block {
    index_t i0, rows, k0, depth;
  };
  /// `count` consecutive panels of B, for the same part of K.
  struct panel_group {
    index_t first, count, k0, depth;
    T* packed;
  };

  index_t panel_size() const { return plan_.part * B::tile_columns; }
  index_t columns_of(index_t panel) const {
    return std::min(plan_.panel_columns, plan_.size.n - panel * plan_.panel_columns);
  }

  index_t a_space_for(index_t rows) const {
    return plan_.a_in_place
               ? 0
               : quotient_up(quotient_up(rows, B::tile_rows) * plan_.layout.tile, B::lanes) * B::lanes;
  }
  const T* tiles_of(const block& at, T* packed) const {
    if (plan_.a_in_place) return reinterpret_cast<const T*>(a_.data + at.i0 * a_.row + at.k0 * n);
    pack_tiles<T, B::tile_rows>(a_, at.i0, at.rows, at.k0 * n, at.depth, plan_.size.k - at.k0 * n,
                                plan_.layout, packed);
    return packed;
  }

  /// Packs panels begin to end - 1 of a group, a few rows of B at a time, since each row is in a different
  /// page.
  void pack(const panel_group& g, index_t begin, index_t end) const {
    const index_t some = b_.column == 1 ? rows_ahead : g.depth;
    for (index_t from = 0; from < g.depth; from += some)
      for (index_t p = begin; p < end; ++p)
        pack_panel<T, B::tile_columns>(b_, (g.k0 + from) * n, std::min(some, g.depth - from),
                                       plan_.size.k - (g.k0 + from) * n, (g.first + p) * plan_.panel_columns,
                                       columns_of(g.first + p),
                                       g.packed + p * panel_size() + from * B::tile_columns);
  }

  /// Multiplies a block of A by a group of panels. The sums kept for the next part of K are `sums_size`
  /// apart.
  void multiply_rows(const panel_group& g, const block& at, S* kept, index_t sums_size,
                     scratch_memory& scratch) const {
    const index_t a_space = a_space_for(at.rows), own = direct() || kept ? 0 : at.rows * B::tile_columns;
    T* const a_packed = static_cast<T*>(scratch.get(static_cast<std::size_t>(a_space + own) * sizeof(T)));
    const T* const tiles = tiles_of(at, a_packed);
    for (index_t p = 0; p < g.count; ++p)
      multiply_panel(at, tiles, (g.first + p) * plan_.panel_columns, columns_of(g.first + p),
                     g.packed + p * panel_size(), B::tile_columns,
                     kept ? kept + p * sums_size : reinterpret_cast<S*>(a_packed + a_space));
  }

  /// Whether a panel of B is read so few times that packing it is not worthwhile.
  bool reads_in_place(index_t rows, index_t columns) const {
    if (!std::is_same_v<T, From> || b_.column != 1 || b_.is_merged()) return false;
    if (columns == B::tile_columns) return rows <= B::tile_rows;
    return rows <= 64 && columns == micro_kernels<T>::vectors_for(columns) * B::lanes;
  }

  /// Whether a panel of B is packed while it is first read.
  bool packs_on_the_way(index_t columns) const {
    return direct() && std::is_same_v<T, From> && b_.column == 1 && !b_.is_merged() &&
           columns == B::tile_columns;
  }

  bool adds(const block& at) const { return at.k0 > 0 || (direct() && c_.add); }

  /// Multiplies a block of A by a panel of B, starting with the tile at row `from` of the block.
  void multiply_panel(const block& at, const T* tiles, index_t j0, index_t columns, const T* panel,
                      index_t panel_row, S* sums, index_t from = 0) const {
    S* to = sums;
    index_t to_row = B::tile_columns, width = micro_kernels<T>::vectors_for(columns) * B::lanes;
    if constexpr (std::is_same_v<Out, S>)
      if (direct()) to = c_.data + at.i0 * c_.row + j0, to_row = c_.row, width = columns;
    for (index_t t = from; t < at.rows; t += B::tile_rows)
      multiply_tile<T>(at.depth, tiles + t / B::tile_rows * plan_.layout.tile, plan_.layout.row,
                       plan_.layout.column, panel, panel_row, to + t * to_row, to_row,
                       static_cast<int>(std::min<index_t>(B::tile_rows, at.rows - t)), width, adds(at));
    if (direct() || at.k0 + at.depth < plan_.depth) return;
    if (plan_.transposed)
      store_transposed_tile<B::tile_columns>(sums, c_.data + j0 * c_.row + at.i0, c_.row, at.rows, columns,
                                             c_.add);
    else store(at, sums, j0, columns);
  }

  /// Stores the sums of a panel to C, piece by piece.
  void store(const block& at, const S* sums, index_t j0, index_t columns) const {
    const index_t piece = c_.piece > 0 ? c_.piece : plan_.size.n;
    for (index_t j = 0, some; j < columns; j += some) {
      const index_t before = (j0 + j) / piece, first = (j0 + j) % piece;
      some = std::min(columns - j, piece - first);
      store_tile<B::tile_columns>(sums + j, c_.data + before * c_.next + at.i0 * c_.row + first, c_.row,
                                  at.rows, some, c_.add);
    }
  }

  /// Multiplies the first tile of a block by a panel of B, which it packs at the same time.
  void multiply_and_pack(const block& at, const T* tiles, index_t j0, T* packed) const {
    if constexpr (std::is_same_v<Out, S> && std::is_same_v<T, From>)
      packing_kernel<T>(at.depth, tiles, plan_.layout.row, plan_.layout.column, b_.data + at.k0 * b_.row + j0,
                        b_.row, c_.data + at.i0 * c_.row + j0, c_.row, adds(at), packed);
  }

  matrix<From> a_, b_;
  result_matrix<Out> c_;
  gemm_plan<From> plan_;
};

/// Divides products of `size` into tasks of whole tiles: as many as keep `threads` busy, each at least two
/// tiles high and wide. The assignment of elements to tasks depends on the number of threads, but how each
/// element is computed does not.
class task_grid {
 public:
  task_grid(const gemm_size& size, index_t products, index_t tile_rows, index_t tile_columns,
            double serial_work, int threads);

  /// Calls f(product, block, scratch) for every task.
  template <class F>
  void run(executor& threads, const F& f) const {
    const index_t blocks = rows_ * columns_, all = products_ * blocks,
                  tasks = std::min<index_t>(all, 8 * threads.threads());
    threads.parallel_for(
        tasks,
        [&](index_t task, scratch_memory& scratch) {
          for (index_t n = all * task / tasks; n < all * (task + 1) / tasks; ++n)
            f(n / blocks, block(n % blocks), scratch);
        },
        parallel_);
  }

 private:
  block_range block(index_t n) const;

  gemm_size size_;
  index_t products_, tile_rows_, tile_columns_, rows_ = 1, columns_ = 1;
  bool parallel_;
};

/// Scratch memory of the thread that calls a product, separate from that of the tasks it runs.
inline scratch_memory& shared_scratch() {
  static thread_local scratch_memory scratch;
  return scratch;
}

}  // namespace detail

/// Computes `products` products of equal size and strides; at(n) returns the operands of product n.
template <class From, class Out, class At>
void multiply_each(const gemm_size& size, index_t products, const At& at, executor& threads) {
  if (products == 0 || size.m == 0 || size.n == 0) return;
  const operands_of_product<From, Out> first = at(0);
  if (size.k == 0) {
    for (index_t p = 0; p < products; ++p)
      for (index_t i = 0; i < size.m && !first.c.add; ++i)
        std::fill_n(at(p).c.data + i * first.c.row, size.n, Out{});
    return;
  }
  // A column of C without gaps is the row of the transposed product.
  const bool transposes = size.n == 1 && first.c.row == 1;
  const auto in_rows = [&](const operands_of_product<From, Out>& o) -> operands_of_product<From, Out> {
    if (!transposes) return o;
    return {o.b.transposed(), o.a.transposed(), {o.c.data, size.m, o.c.add}};
  };
  const gemm_size rows = transposes ? gemm_size{1, size.m, size.k} : size;
  const operands_of_product<From, Out> first_rows = in_rows(first);
  if (const auto how = detail::few_rows_of(rows, first_rows.a, first_rows.b); how != detail::few_rows::no) {
    using B = detail::dot_blocking<From>;
    return detail::task_grid(rows, products, B::task_rows, 16 * B::columns, 1e6, threads.threads())
        .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory&) {
          const operands_of_product<From, Out> o = in_rows(at(n));
          detail::multiply_few_rows(how, block, size.k, o.a, o.b, o.c);
        });
  }
#if WEFT_HAS_TILES
  if constexpr (std::is_same_v<From, bfloat16>)
    if (detail::tiles_permitted()) {
      using B = detail::tile_blocking;
      return detail::task_grid(size, products, B::tile_rows, B::tile_columns, 4e6, threads.threads())
          .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory& scratch) {
            const operands_of_product<From, Out> o = at(n);
            detail::tile_product<Out>(block, size.k, o.a, o.b, o.c, scratch).multiply();
          });
    }
#endif
  using product = detail::blocked_product<From, Out>;
  if (const product one(size, first); one.is_one_block()) {
    using B = typename product::B;
    return detail::task_grid(one.size(), products, B::tile_rows, B::tile_columns, 1e6, threads.threads())
        .run(threads, [&](index_t n, const detail::block_range& block, scratch_memory& scratch) {
          product(size, at(n)).multiply_block(block, scratch);
        });
  }
  for (index_t n = 0; n < products; ++n)
    product(size, at(n))
        .multiply_all(detail::shared_scratch(), threads.threads(),
                      [&](index_t tasks, const auto& f) { threads.parallel_for(tasks, f); });
}

/// C = A B, or C += A B if c.add, on the executor's threads.
template <class From, class Out>
void multiply(const gemm_size& size, const matrix<From>& a, const matrix<From>& b,
              const result_matrix<Out>& c, executor& threads) {
  multiply_each<From, Out>(
      size, 1, [&](index_t) { return operands_of_product<From, Out>{a, b, c}; }, threads);
}

}  // namespace WEFT_ISA
}  // namespace weft::cpu

#ifndef WEFT_COMPILED
#include <weft/device/cpu/impl/gemm.ipp>
#endif
