// SPDX-License-Identifier: MIT
// Programs on ranks that divide positions among themselves: attention is the only op that reads positions of
// other ranks, so only that op changes, in the forward and in the backward pass.
//
//   using graph = context_graph<Source, pass>;     // Source::frozen with attention over all ranks' positions
#pragma once

#include <weft/graph/freeze.hpp>
#include <weft/graph/op_info.hpp>
#include <weft/graph/rewrite.hpp>
#include <weft/graph/verify.hpp>
#include <weft/op/attention.hpp>

namespace weft::op {

/// Attention over the positions of all ranks, of which each has some. Executed by the strategy's hooks
/// (run/execution_hooks.hpp); without hooks, or on one rank, it is attention. Occurs only in graphs that are
/// already differentiated, and has no derivative.
struct context_attention : attention {
  static constexpr auto name = "context_attention";
  static constexpr native_code code{.messages = exchange::waits, .op = native_op::attention};
};
/// The derivative of attention over the positions of all ranks.
struct context_attention_backward : attention_backward {
  static constexpr auto name = "context_attention_backward";
  static constexpr native_code code{.messages = exchange::waits, .op = native_op::attention_backward};
};

/// Base class of exchanges of positions for heads, executed by the strategy's hooks; on one rank a copy.
/// Operand and result are [batch, position, head, feature]. Attributes: the numbers of positions and heads of
/// the result, and the number of heads that stay together.
struct positions_exchange : rule<1> {
  static constexpr auto kind = op_kind::native;
  static constexpr native_code code{.messages = exchange::waits};
  static constexpr unsigned extents = 0b111;
  template <class Dims>
  static constexpr inferred infer(Dims&, const attributes& at, const tensor_spec* operands) {
    inferred result{operands[0].extents.order == 4, operands[0]};
    result.value.extents[1] = at[0];
    result.value.extents[2] = at[1];
    return result;
  }
};
/// From this rank's positions of all heads to all positions of some heads (Jacobs et al., "DeepSpeed
/// Ulysses", 2023).
struct positions_to_heads : positions_exchange {
  static constexpr auto name = "positions_to_heads";
};
/// The inverse.
struct heads_to_positions : positions_exchange {
  static constexpr auto name = "heads_to_positions";
};

}  // namespace weft::op

namespace weft::graph {

/// Whether `g` has a second derivative of attention, which would compute with this rank's positions only. It
/// reads the log-sum-exps, which otherwise only the first derivative reads.
constexpr bool differentiates_attention_twice(const compute_graph& g) {
  for (const node& n : g.nodes)
    for (int k = 0; k < n.operands; ++k) {
      const node& from = g[n.operand[k]];
      if (from.op->kind == op::op_kind::result && g[from.operand[0]].op == &info_of<op::attention> &&
          n.op != &info_of<op::attention_backward>)
        return true;
    }
  return false;
}

namespace detail {

/// Replaces attention by attention over the positions of all ranks, in f32 if the operands are bf16 or f16:
/// the results for the keys of one rank after the other are merged, and rounded once.
class ring_attention {
 public:
  constexpr explicit ring_attention(const compute_graph& g) : g_(g), whole_(g.size(), -1) {}

  constexpr compute_graph run() {
    return rewritten(g_, [&](compute_graph& to, const node& n, int i) {
      if (n.op == &info_of<op::attention>) return over_ranks(to, n, i, info_of<op::context_attention>);
      if (n.op == &info_of<op::attention_backward>)
        return over_ranks(to, n, i, info_of<op::context_attention_backward>);
      const int of = n.op->kind == op::op_kind::result ? g_[i].operand[0] : -1;
      if (of < 0 || whole_[of] < 0) return to.intern(n).id;
      return cast_to(result_of({&to, whole_[of]}, static_cast<int>(n.at[0])), n.result.type).id;
    });
  }

 private:
  constexpr int over_ranks(compute_graph& to, const node& n, int i, const op_info& op) {
    value in[6]{};
    for (int k = 0; k < n.operands; ++k) {
      const bool is_result = k == 3;  // result of the forward pass before rounding
      const value given{&to, is_result ? whole_[g_[i].operand[k]] : n.operand[k]};
      in[k] = cast_to(given, compute_type(given.type()));
    }
    const value y = to.apply(op, n.at, in, n.operands);
    whole_[i] = y.id;
    return cast_to(y, n.result.type).id;
  }

  const compute_graph& g_;
  sequence<int> whole_;  // by node of g_: the attention that replaces it
};

}  // namespace detail

/// `g` with attention over the positions of all ranks.
constexpr compute_graph with_context_attention(const compute_graph& g) {
  return detail::ring_attention(g).run();
}

namespace detail {

/// Puts exchanges around attention and its derivative.
class head_exchange {
 public:
  constexpr explicit head_exchange(const compute_graph& g) : g_(g), in_heads_(g.size(), -1) {}

  constexpr compute_graph run() {
    return rewritten(g_, [&](compute_graph& to, const node& n, int i) {
      if (n.op == &info_of<op::attention>) return forward(to, n, i);
      if (n.op == &info_of<op::attention_backward>) return backward(to, n, i);
      const int of = n.op->kind == op::op_kind::result ? g_[i].operand[0] : -1;
      if (of < 0 || in_heads_[of] < 0) return to.intern(n).id;
      const value other = result_of({&to, in_heads_[of]}, static_cast<int>(n.at[0]));
      if (g_[of].op == &info_of<op::attention>) return other.id;  // log-sum-exps, for backward only
      return to_positions(other, n.result.extents).id;
    });
  }

 private:
  /// Exchanges to this rank's heads; the heads of each of `key_heads` key heads stay together.
  static constexpr value to_heads(value x, index_t key_heads) {
    symbol_table& dims = x.owner->dims;
    const shape e = dims.canonical(x.extents());
    const index_t unit = dims.divide(e[2], key_heads);
    const index_t own = dims.multiply(dims.context_part(key_heads), unit);
    return x.owner->apply<op::positions_to_heads>(attributes{{dims.all_positions(e[1]), own, unit}, 3}, x);
  }
  constexpr value to_positions(value x, const shape& whole) const {
    symbol_table& dims = x.owner->dims;
    const shape e = dims.canonical(whole);
    const index_t unit = dims.divide(e[2], key_heads_);
    return x.owner->apply<op::heads_to_positions>(attributes{{e[1], e[2], unit}, 3}, x);
  }

  constexpr int forward(compute_graph& to, const node& n, int i) {
    key_heads_ = to.dims.canonical(to[n.operand[1]].result.extents[2]);
    value in[3]{};
    for (int k = 0; k < 3; ++k) in[k] = to_heads({&to, n.operand[k]}, key_heads_);
    const value y = to.apply(*n.op, n.at, in, 3);
    in_heads_[i] = y.id;
    return to_positions(y, n.result.extents).id;
  }
  /// Reads the operands that the forward pass has exchanged, so that only cotangents are exchanged.
  constexpr int backward(compute_graph& to, const node& n, int i) {
    key_heads_ = to.dims.canonical(to[n.operand[1]].result.extents[2]);
    const value y{&to, in_heads_[g_[i].operand[3]]};
    value in[6]{{}, {}, {}, y, result_of(y, 1), to_heads({&to, n.operand[5]}, key_heads_)};
    for (int k = 0; k < 3; ++k) in[k] = {&to, to[y.id].operand[k]};
    const value d = to.apply(*n.op, n.at, in, 6);
    in_heads_[i] = d.id;
    return to_positions(d, n.result.extents).id;
  }

  const compute_graph& g_;
  sequence<int> in_heads_;  // by node of g_: attention, or its derivative, on this rank's heads
  index_t key_heads_ = 1;   // of the last of these
};

}  // namespace detail

/// `g` with exchanges of positions for heads before attention, and back after it.
constexpr compute_graph with_exchanged_heads(const compute_graph& g) {
  return detail::head_exchange(g).run();
}

}  // namespace weft::graph

namespace weft {

/// The graph Source::frozen transformed by `Pass` for ranks that divide positions.
template <class Source, auto Pass>
class context_graph {
  struct source {
    static constexpr graph::compute_graph make() {
      return verified(Pass(Source::frozen.thaw()), graph::verify_expanded);
    }
  };

  static_assert(!graph::differentiates_attention_twice(Source::frozen.thaw()),
                "weft: attention: where ranks divide positions (axis cp), it has only a first derivative");

 public:
  static constexpr auto frozen = graph::freeze_graph<source>();
};

}  // namespace weft
