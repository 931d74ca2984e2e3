// SPDX-License-Identifier: MIT
// Evaluates the part of a statement that belongs to one chunk of a pipeline.
//
// The blocks of all repeats of a statement are numbered in the order of evaluation. A chunk computes
// consecutive blocks. The first chunk also computes the programs before the blocks, the last chunk those
// after them, and a program between two repeats belongs to the chunk of the block before it. Other programs
// are not executed: their values are absent, and only their extents are known.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <weft/run/tape.hpp>

namespace weft::parallel {

/// Consecutive blocks: [first, last) in the order of evaluation. The chunk with first = 0 also computes the
/// programs before the blocks.
struct block_range {
  index_t first = 0, last = 0;

  /// Whether a program after `blocks` blocks belongs to the chunk; for a block, `blocks` includes the block
  /// itself.
  bool holds(index_t blocks) const { return (blocks > first || first == 0) && blocks <= last; }
  bool operator==(const block_range&) const = default;
};
/// No program at all.
inline constexpr block_range no_blocks{1, 0};

/// The callbacks of a walk over a statement. Empty functions are not called.
struct stage_events {
  /// Called for every program, computed or not: the number of blocks passed (including this one), its
  /// operands, and the plan of its value.
  std::function<void(index_t blocks, const runtime::operands&, const runtime::plan_view&)> visit{};
  /// Returns the operand of the chunk's first block, a tensor like the given one; called if the chunk does
  /// not compute it.
  std::function<std::shared_ptr<tensor_state>(const tensor_state&)> enter{};
  /// Called with the operand of the block that follows the chunk.
  std::function<void(const std::shared_ptr<tensor_state>&)> leave{};
};

namespace detail {
/// A value like `t` that another stage computes: it has extents and a placement, but no memory.
std::shared_ptr<tensor_state> absent_value(const tensor_state& t);
/// The value, without memory, that a program would compute from these operands; `positions` determines which
/// dims count positions.
std::shared_ptr<tensor_state> absent_result(const context& c, const runtime::plan_view& p,
                                            runtime::positions_function positions,
                                            const runtime::operands& o);
[[noreturn, gnu::cold]] void refuse_absent(const tensor_state& value, index_t blocks);
}  // namespace detail

/// A program_evaluator that executes the programs of one chunk by `Inner`, a tape or a forgetful_evaluator.
template <class Inner>
class stage_evaluator {
 public:
  using options = typename Inner::options;
  static constexpr bool divides_blocks = true;

  /// All objects must outlive the evaluator.
  stage_evaluator(Inner& inner, context& c, block_range mine, const stage_events& events)
      : inner_(inner), context_(c), mine_(mine), events_(events) {}

  /// Walks over a statement. Returns its value, which is absent unless this chunk computes it.
  template <expression E>
  auto eval(const E& e) {
    if constexpr (runtime::detail::has_boundary<E>)
      return eval_program(runtime::without_boundaries(*this, e));
    else return eval_program(e);
  }

  template <expression E>
  auto eval_program(const E& e) {
    using result = decltype(inner_.eval_program(e));
    const runtime::operands o = runtime::operands_of(e);
    constexpr runtime::plan_view plan = Inner::template program_of<E>::plan;
    if (events_.visit) events_.visit(blocks_, o, plan);
    if (computes()) {
      check_present(o.leaves);
      return inner_.eval_program(e);
    }
    context_.next_random();  // as if it had been executed
    return absent<result>(detail::absent_result(context_, plan, Inner::template program_of<E>::positions, o),
                          is_followed<E>(o));
  }

  template <class X, class Labels, class F>
  auto sum_of_slices(const X& x, const Labels& labels, index_t rows, const F& f) {
    using result = decltype(inner_.sum_of_slices(x, labels, rows, f));
    const runtime::row_slices<X, Labels> slices(x, labels, rows);
    auto whole = f(slices.whole(), slices.whole_labels());
    const runtime::operands o = runtime::operands_of(whole);
    if (events_.visit) events_.visit(blocks_, o, Inner::template program_of<decltype(whole)>::plan);
    if (computes()) {
      check_present(o.leaves);
      return inner_.sum_of_slices(x, labels, rows, f);
    }
    tensor_state sum(context_.where(), {}, dtype_of<typename result::value_type>, buffer());
    slices.note_positions(sum);
    return absent<result>(detail::absent_value(sum), is_followed<decltype(whole)>(o));
  }

  /// The value f(inner), a tensor like `x`, which reads the leaves x and y. `each(inner, visit)` calls
  /// visit(e) for the expressions that f evaluates besides; f also executes `programs` programs.
  template <class X, class Y, class F, class Each>
  auto composite(const X& x, const Y& y, int programs, F f, Each each) {
    using result = decltype(f(inner_));
    if (events_.visit)
      each(inner_, [&]<class E>(const E& e) {
        events_.visit(blocks_, runtime::operands_of(e), Inner::template program_of<E>::plan);
      });
    if (computes()) {
      check_present({x.state(), y.state()});
      return f(inner_);
    }
    for (int i = 0; i < programs; ++i) context_.next_random();  // as if they had been executed
    return absent<result>(detail::absent_value(*x.state()), is_followed(x.state()) || is_followed(y.state()));
  }

  /// Called before each block with its operand.
  template <class X>
  void before_block(X& x) {
    if (blocks_ == mine_.first && mine_.first > 0 && events_.enter) {
      const positions_dims positions = x.state()->positions;
      x = X(events_.enter(*x.state()));
      x.state()->positions = positions;
      followed_ = {x.state()};
    }
    if (blocks_ == mine_.last && mine_.last > mine_.first) {
      if (events_.leave) events_.leave(x.state());
      followed_.clear();
      x = absent<X>(detail::absent_value(*x.state()), true);
    }
    ++blocks_;
  }

  /// The number of blocks so far.
  index_t blocks() const { return blocks_; }

  /// Whether a backward pass from `value`, which a later chunk computes, reaches the value that this chunk
  /// passes on, or, for an empty range of blocks, the value that it would start from.
  bool is_followed(const std::shared_ptr<tensor_state>& value) const {
    return std::find(followed_.begin(), followed_.end(), value) != followed_.end();
  }

 private:
  bool computes() const { return mine_.holds(blocks_); }

  /// The same for the value of a program, from its operands.
  template <expression E>
  bool is_followed([[maybe_unused]] const runtime::operands& o) const {
    if constexpr (requires { typename Inner::template backward_of<E>; }) {
      constexpr runtime::plan_view backward = Inner::template backward_of<E>::plan;
      for (std::size_t i = 0; i < o.leaves.size(); ++i)
        if (backward.outputs[i] >= 0 && is_followed(o.leaves[i])) return true;
    }
    return false;
  }

  template <class Result>
  Result absent(std::shared_ptr<tensor_state> value, bool follows) {
    absent_.push_back(value);
    if (follows) followed_.push_back(value);
    return Result(std::move(value));
  }
  /// Throws usage_error if a program of this chunk reads a value of another chunk.
  void check_present(const tensor_list& leaves) const {
    for (const auto& leaf : leaves)
      if (std::find(absent_.begin(), absent_.end(), leaf) != absent_.end())
        detail::refuse_absent(*leaf, blocks_);
  }

  Inner& inner_;
  context& context_;
  block_range mine_;
  const stage_events& events_;
  index_t blocks_ = 0;
  tensor_list absent_;
  tensor_list followed_;  // values that depend on the value between chunks and pass gradients on to it
};

}  // namespace weft::parallel

#ifndef WEFT_COMPILED
#include <weft/parallel/impl/stage_evaluator.ipp>
#endif
