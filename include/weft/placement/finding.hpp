// SPDX-License-Identifier: MIT
// Mistakes of models that ranks are to divide, and their locations.
#pragma once

#include <weft/graph/graph.hpp>

namespace weft::graph {

/// The kinds of mistakes. docs/strategies.md explains how to fix each.
enum class mistake : std::uint8_t {
  none,
  divided_differently,    // operands are divided along different dims, or into different groups
  computed_whole,         // a value computed whole on every rank meets a divided one: a layer is not divided
  contracted_with_whole,  // a matmul sums over a dim that is divided in one operand and not in the other
  lost_in_view,           // the result of a reshape, slice, flip, pad or concat lacks the divided dim
  dim_must_be_whole,      // a native op that does not declare this dim divisible, or a minimum over it
  result_divided          // the value of the whole expression: the last layer must be divided by rows
};

/// The first place where placements do not fit.
struct finding {
  mistake kind = mistake::none;
  op_pointer op{};
  int node = -1;  // node of the original graph
  placement first{}, second{};

  constexpr explicit operator bool() const { return kind != mistake::none; }
};

/// The name and the reason of a mistake.
constexpr const char* sentence_of(mistake m) {
  switch (m) {
    case mistake::none: return "no mistake";
    case mistake::divided_differently: return "operands are divided differently";
    case mistake::computed_whole:
      return "a value that every rank has computed whole meets a divided one: a layer before it has no "
             "division";
    case mistake::contracted_with_whole:
      return "a matmul sums over a dim of which one operand is divided and the other is whole: columns come "
             "before rows";
    case mistake::lost_in_view: return "a view or copy has no dim for the divided one";
    case mistake::dim_must_be_whole: return "this op needs whole operands along the divided dim";
    case mistake::result_divided: return "the result is divided: the last layer must be divided by rows";
  }
  return "unknown mistake";
}

/// One line, for example "add: operands are divided differently (dim 1, dim 1 in 3 groups)".
inline std::string to_text(const finding& f) {
  return std::string(f.op->name) + ": " + sentence_of(f.kind) + " (" + to_string(f.first) + ", " +
         to_string(f.second) + ")";
}

}  // namespace weft::graph
