// SPDX-License-Identifier: MIT
// The code of a fused kernel: a short sequence of 64-bit instructions, made in encode.hpp.
//
// A kernel runs over rows. Instructions between `sweep` and `end` are computed for every element of the row,
// a vector at a time; the others once per row. A reduction in a sweep has its value after the sweep. Layers
// that compute the same have equal instructions and share one kernel. Each backend uses the instructions
// differently: as template arguments (cpu_kernel.hpp), translated to text (text.hpp), or interpreted
// (reference.hpp).
//
//   softmax of a row:  sweep  0: load a0  1: max 0  end   sweep  2: load a0  3: subtract 2 1 ...
#pragma once

#include <span>

#include <weft/base/sequence.hpp>
#include <weft/device/kernel.hpp>

namespace weft::lower {

/// Instructions that are not ops; the opcodes of ops are their positions in op::all.
enum opcode : int {
  first_opcode = 128,
  load = first_opcode,  // a: buffer, b: 1 if the inner stride is not 1; type: that in memory
  load_row,             // a: buffer; one element per row
  constant,             // the next instruction is its any_number
  scalar_argument,      // a: position among the scalars given at run time
  coordinate,           // position in the row
  store,                // a: buffer, b: register; type: that in memory
  store_row,
  spill,     // a: scratch row, b: register
  reload,    // a: scratch row
  fold_sum,  // a: register; the value is ready after the sweep
  fold_max,
  fold_min,
  column_sum,  // a: buffer, b: register, c: its number; folds rows into the buffer
  column_max,
  column_min,
  sweep,
  end
};

/// One instruction: opcode, type and three operands, encoded in 64 bits. Its register has the instruction's
/// index.
struct instruction {
  int op = 0;
  dtype type = dtype::f32;
  int a = 0, b = 0, c = 0;

  constexpr std::uint64_t encoded() const {
    return static_cast<std::uint64_t>(op) | static_cast<std::uint64_t>(type) << 8 |
           static_cast<std::uint64_t>(a) << 16 | static_cast<std::uint64_t>(b) << 24 |
           static_cast<std::uint64_t>(c) << 32;
  }
  static constexpr instruction decoded(std::uint64_t w) {
    return {static_cast<int>(w & 255), static_cast<dtype>(w >> 8 & 255),
            static_cast<int>(w >> 16 & 255), static_cast<int>(w >> 24 & 255),
            static_cast<int>(w >> 32 & 255)};
  }
};

/// Whether the instruction reduces a row to one value.
constexpr bool is_row_fold(const instruction& w) { return w.op >= fold_sum && w.op <= fold_min; }
/// Whether the instruction reduces the rows to one.
constexpr bool is_column_fold(const instruction& w) { return w.op >= column_sum && w.op <= column_min; }

/// f(instruction) for each instruction of a code, without the numbers that follow constants.
template <class F>
constexpr void for_each_instruction(std::span<const std::uint64_t> code, F f) {
  for (std::size_t i = 0; i < code.size(); ++i) {
    const instruction w = instruction::decoded(code[i]);
    f(w);
    if (w.op == constant) ++i;
  }
}

/// Whether `t` is a type to which stores convert from the type of computation.
constexpr bool is_storage(dtype t) { return is_narrow(t) || t == dtype::u8; }

/// Type of a register that holds a value of type `t`; bool is held as a mask.
constexpr dtype register_type(dtype t) { return is_storage(t) ? compute_type(t) : t; }

/// The code of one kernel, and the nodes it reads and writes.
struct kernel_code {
  sequence<std::uint64_t> instructions;
  kernel_division division = kernel_division::elements;
  bool uses_coordinate = false;
  sequence<int> inputs;     // nodes, in the order of arguments; outputs follow them
  sequence<int> outputs;
  sequence<int> arguments;  // nodes of run-time numbers
  int scratch_rows = 0, sweeps = 0;
  int folds = 0, column_folds = 0;  // reductions of rows, of columns
};

}  // namespace weft::lower
