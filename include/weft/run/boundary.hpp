// SPDX-License-Identifier: MIT
// Boundaries inside expressions, at which one program ends and another begins.
//
// Before an expression with a boundary is evaluated, everything below the boundary is evaluated and replaced
// by a leaf. The rest is an ordinary expression. An evaluator computes the parts: a tape, which records them,
// or `eval`.
#pragma once

#include <algorithm>
#include <vector>

#include <weft/expr/shared.hpp>
#include <weft/grad/derivative.hpp>
#include <weft/run/bind.hpp>
#include <weft/tensor/tensor.hpp>

namespace weft {

/// `blocks` applied to `operand` in order; each must keep the shape and dtype of its operand.
template <class Block, expression X>
struct boundary_node : expression_base {
  using value_type = typename X::value_type;
  static constexpr shape static_shape = X::static_shape;
  static constexpr long node_count = X::node_count;

  X operand;
  const std::vector<Block>* blocks;
  index_t call = detail::next_call();
};

/// The type in which values of slices with elements T are summed: f32 for bf16 and f16.
template <element T>
using slice_sum = std::conditional_t<is_narrow(dtype_of<T>), float, T>;

/// The sum, of type slice_sum, of f(rows of operand, labels of these rows) over slices of `rows` rows, so
/// that the intermediate values of only one slice exist at a time. `f.weight`: what else f reads;
/// `f.rounded(copy)`: f with the elements of `copy` in place of those of the weight.
template <class F, expression X, expression Labels>
struct slices_node : expression_base {
  using value_type = slice_sum<typename X::value_type>;
  static constexpr shape static_shape{};
  static constexpr long node_count = X::node_count;

  X operand;  // [rows, ...]
  Labels labels;
  F f;
  index_t rows;
};

namespace detail {
template <class F, class X, class Labels>
struct parts<slices_node<F, X, Labels>> {
  using type = expression_list<X, Labels>;
};
template <class F, class X, class Labels>
inline constexpr unsigned own_part<slices_node<F, X, Labels>> = boundary_part;
template <class Block, class X>
struct parts<boundary_node<Block, X>> {
  using type = expression_list<X>;
};
template <class Block, class X>
inline constexpr unsigned own_part<boundary_node<Block, X>> = boundary_part | blocks_part;
}  // namespace detail

namespace runtime {

namespace detail {

template <class E>
inline constexpr bool has_boundary = (weft::detail::parts_of<E> & weft::detail::boundary_part) != 0;

/// Whether two nodes of the same type, which may be copies of one call, draw random numbers or are
/// boundaries. Appends the types of such nodes to `found`.
template <class E>
constexpr bool repeats_calls(sequence<const char*>& found) {
  constexpr unsigned calls = weft::detail::draws_part | weft::detail::boundary_part;
  if constexpr (!(weft::detail::parts_of<E> & calls)) return false;
  else {
    if (weft::detail::own_part<E> & calls) {
      for (const char* known : found)
        if (same_object(known, &weft::detail::identity<E>)) return true;
      found.push_back(&weft::detail::identity<E>);
    }
    return [&]<class... Part>(weft::detail::expression_list<Part...>) {
      return (repeats_calls<Part>(found) || ...);
    }(typename weft::detail::parts<E>::type{});
  }
}

/// The variables of lets whose values have been replaced by leaves.
struct no_variables {
  static constexpr int depth = 0;
};
template <class Tag, class Leaf, class Outer>
struct variables {
  static constexpr int depth = Outer::depth + 1;
  Leaf leaf;
  const Outer& outer;
};

template <class Tag, class T, class Extents>
auto look_up(const bound<Tag, T, Extents>& b, const no_variables&) {
  return b;
}
template <class Tag, class T, class Extents, class Found, class Leaf, class Outer>
auto look_up(const bound<Tag, T, Extents>& b, const variables<Found, Leaf, Outer>& v) {
  if constexpr (std::is_same_v<bound<Tag, T, Extents>, Found>) return v.leaf;
  else return look_up(b, v.outer);
}

/// Whether `E` reads one of the variables.
template <class Variable, class E>
inline constexpr bool reads_variable = std::is_same_v<Variable, E> ||
                                       []<class... Part>(weft::detail::expression_list<Part...>) {
                                         return (reads_variable<Variable, Part> || ...);
                                       }(typename weft::detail::parts<E>::type{});
template <class Variables, class E>
inline constexpr bool reads_any = false;
template <class Variable, class Leaf, class Outer, class E>
inline constexpr bool reads_any<variables<Variable, Leaf, Outer>, E> =
    reads_variable<Variable, E> || reads_any<Outer, E>;

/// Whether `E` reads the variable of a gradient around it, or of a let that stays: it cannot be computed
/// before them.
template <class Variables, class E>
inline constexpr bool reads_open = []<class... Part>(weft::detail::expression_list<Part...>) {
  return (reads_open<Variables, Part> || ...);
}(typename weft::detail::parts<E>::type{});
template <class Variables, class Tag, class T, class Extents>
inline constexpr bool reads_open<Variables, bound<Tag, T, Extents>> =
    !reads_any<Variables, bound<Tag, T, Extents>>;
template <class Variables, class Tag, class Value, class Body>
inline constexpr bool reads_open<Variables, let_node<Tag, Value, Body>> =
    reads_open<Variables, Value> ||
    reads_open<variables<typename let_node<Tag, Value, Body>::variable, Value, Variables>, Body>;
template <class Variables, class Tag, class Point, class Body>
inline constexpr bool reads_open<Variables, gradient_node<Tag, Point, Body>> =
    reads_open<Variables, Point> ||
    reads_open<variables<typename gradient_node<Tag, Point, Body>::variable, Point, Variables>, Body>;

/// Whether an evaluator computes only some of the blocks, as a stage of a pipeline does. It has a function
/// before_block(x), which receives the operand of each block and may replace it.
template <class Evaluator>
concept block_divider = Evaluator::divides_blocks;

/// Whether `E` reads the variable after a boundary of `E`, and not in the operand of its first one.
template <class Variable, class E>
inline constexpr bool reads_after_boundary = std::is_same_v<Variable, E>;
template <class Variable, class Block, class X>
inline constexpr bool reads_after_boundary<Variable, boundary_node<Block, X>> =
    has_boundary<X>&& reads_after_boundary<Variable, X>;
template <class Variable, class Op, class Attr, class... A>
inline constexpr bool reads_after_boundary<Variable, node<Op, Attr, A...>> =
    (reads_after_boundary<Variable, A> || ...);
template <class Variable, class Op, class Attr, int Sizes, class... A>
inline constexpr bool reads_after_boundary<Variable, sized_node<Op, Attr, Sizes, A...>> =
    (reads_after_boundary<Variable, A> || ...);
template <class Variable, class Tag, class Value, class Body>
inline constexpr bool reads_after_boundary<Variable, let_node<Tag, Value, Body>> =
    reads_after_boundary<Variable, Value> || reads_after_boundary<Variable, Body>;
template <class Variable, class Tag, class Point, class Body>
inline constexpr bool reads_after_boundary<Variable, gradient_node<Tag, Point, Body>> =
    reads_after_boundary<Variable, Point> || reads_after_boundary<Variable, Body>;
template <class Variable, class Tag, class E>
inline constexpr bool reads_after_boundary<Variable, shared_node<Tag, E>> = reads_after_boundary<Variable, E>;
template <class Variable, class F, class X, class Labels>
inline constexpr bool reads_after_boundary<Variable, slices_node<F, X, Labels>> =
    reads_after_boundary<Variable, X> || reads_after_boundary<Variable, Labels>;

/// The compile-time error for a value that the stages of a pipeline would have to send past blocks.
template <bool Holds>
struct crossing_law {
  static_assert(Holds,
                "weft: pipeline: a let shares a value between the code before a repeat and the code after "
                "it, which other stages compute: compute the value again after the repeat, or pass it "
                "through the blocks");
};

/// Identifies what is one value wherever it occurs: a shared operand, or the call of a boundary or of a draw.
struct occurrence {
  const void* operand = nullptr;
  index_t call = -1;
  friend bool operator==(const occurrence&, const occurrence&) = default;
};

/// The evaluator, and what is already resolved and occurs several times in `Root`: shared values and, if
/// there may be copies of them, calls.
template <class Evaluator, class Root>
class resolver {
 public:
  using evaluator_type = Evaluator;
  static constexpr bool keeps_calls = [] {
    sequence<const char*> found;
    return repeats_calls<Root>(found);
  }();
  /// Whether parts of `E` are evaluated before `E`.
  template <class E>
  static constexpr bool divides = (weft::detail::parts_of<E> &
                                   (weft::detail::boundary_part |
                                    (keeps_calls ? weft::detail::draws_part : 0))) != 0;

  explicit resolver(Evaluator& e) : evaluator(e) {}

  /// The value's tensor_state, or the expression of a shared value that is not computed before its statement;
  /// null if it has not been met.
  std::shared_ptr<const void> find(const occurrence& what) const {
    for (const auto& c : computed_)
      if (c.what == what) return c.value;
    return nullptr;
  }
  /// `depth`: the number of enclosing lets whose variables the value reads.
  void remember(const occurrence& what, std::shared_ptr<const void> value, int depth) {
    computed_.push_back({what, std::move(value), depth});
  }
  /// Drops what was computed inside the let at `depth`, which is being left.
  void leave(int depth) {
    computed_.erase_from(
        std::remove_if(computed_.begin(), computed_.end(), [&](const auto& c) { return c.depth >= depth; }));
  }

  Evaluator& evaluator;

 private:
  struct computed {
    occurrence what;
    std::shared_ptr<const void> value;
    int depth;
  };
  recycled_vector<computed> computed_;
};

template <class Resolver, class Variables, class E>
auto resolve(Resolver& to, const Variables& v, const E& e);

template <class Resolver, class Variables, class Op, class Attr, class... A>
auto resolve_node(Resolver& to, const Variables& v, const node<Op, Attr, A...>& n) {
  return n.operands.apply(
      [&](const auto&... a) { return node<Op, Attr, decltype(resolve(to, v, a))...>{resolve(to, v, a)...}; });
}

template <class Resolver, class Variables, class Op, class Attr, int Sizes, class... A>
auto resolve_node(Resolver& to, const Variables& v, const sized_node<Op, Attr, Sizes, A...>& n) {
  return n.operands.apply([&](const auto&... a) {
    return sized_node<Op, Attr, Sizes, decltype(resolve(to, v, a))...>{n.sizes, resolve(to, v, a)...};
  });
}

[[noreturn, gnu::cold]] inline void refuse_block(const shape& from, const shape& to) {
  refuse<shape_error>(
      {"weft: repeat: a block must keep the shape of its operand: it returned ", to, " for ", from});
}

/// The value of a block applied to a leaf.
template <class Evaluator, class E>
auto eval_block(Evaluator& evaluator, const E& e) {
  if constexpr (has_boundary<E>) {
    resolver<Evaluator, E> inside(evaluator);
    return evaluator.eval_program(resolve(inside, no_variables{}, e));
  } else return evaluator.eval_program(e);
}

template <class Resolver, class Variables, class Block, class X>
auto resolve_node(Resolver& to, const Variables& v, const boundary_node<Block, X>& n) {
  auto x = to.evaluator.eval_program(resolve(to, v, n.operand));
  static_assert(
      !weft::detail::applies_if_not_const<Block, decltype(x)>,
      "weft: repeat: operator() of a block must be const: auto operator()(expression auto x) const");
  for (const Block& block : *n.blocks) {
    const auto apply_block = [&] {
      return eval_block(to.evaluator, block(one_operand<Block, decltype(x)>(x)));
    };
    using result = decltype(apply_block());
    static_assert(std::is_same_v<typename result::value_type, typename X::value_type> &&
                      weft::detail::can_be_equal(result::static_shape, X::static_shape),
                  "weft: repeat: a block must keep the shape and dtype of its operand");
    if constexpr (block_divider<typename Resolver::evaluator_type>) to.evaluator.before_block(x);
    const result y = apply_block();
    if (!(y.extents() == x.extents())) refuse_block(x.extents(), y.extents());
    x = decltype(x)(y);
  }
  return x;
}

/// Throws value_error if operand `number`, a leaf, was changed in place since it was written, unless the
/// evaluator reads tensors as they are (check_versions is false).
template <class Evaluator, class Leaf>
void require_unchanged(const Evaluator& evaluator, const Leaf& leaf, std::size_t number) {
  if constexpr (requires { evaluator.check_versions; })
    if (!evaluator.check_versions) return;
  if (!leaf.is_current()) refuse_changed(leaf.extents(), number);
}

/// `e`, operand `number` of a node, as a leaf: `e` itself, or its value. Throws value_error for a leaf that
/// was changed in place.
template <class Evaluator, class E>
auto as_leaf(Evaluator& evaluator, const E& e, std::size_t number = 0) {
  if constexpr (requires { E::is_leaf; }) {
    require_unchanged(evaluator, e, number);
    return e;
  } else return evaluator.eval_program(e);
}

/// The expression compute() as a leaf, computed where `what` first occurs. `depth`: as in resolver::remember.
template <class Resolver, class F>
auto computed_once(Resolver& to, const occurrence& what, int depth, F compute) {
  using leaf = decltype(as_leaf(to.evaluator, compute()));
  if (const auto known = to.find(what))
    return leaf(std::const_pointer_cast<tensor_state>(std::static_pointer_cast<const tensor_state>(known)));
  const leaf value = as_leaf(to.evaluator, compute());
  to.remember(what, value.state(), depth);
  return value;
}

template <class Resolver, class Variables, class F, class X, class Labels>
auto resolve_node(Resolver& to, const Variables& v, const slices_node<F, X, Labels>& n) {
  const auto x = as_leaf(to.evaluator, resolve(to, v, n.operand));
  const auto labels = as_leaf(to.evaluator, resolve(to, v, n.labels), 1);
  require_unchanged(to.evaluator, n.f.weight, 2);
  return to.evaluator.sum_of_slices(x, labels, n.rows, n.f);
}

template <class Resolver, class Variables, class Tag, class Value, class Body>
auto resolve_node(Resolver& to, const Variables& v, const let_node<Tag, Value, Body>& l) {
  auto value = resolve(to, v, l.value);
  using variable = typename let_node<Tag, Value, Body>::variable;
  // A shared value that reads a variable replaced by a leaf is computed before the body.
  constexpr bool shares = weft::detail::has_shared<Body> && reads_any<Variables, Body>;
  if constexpr ((Resolver::template divides<Body> || shares) && !reads_open<Variables, Value>) {
    auto leaf = as_leaf(to.evaluator, value);
    constexpr bool has_blocks = (weft::detail::parts_of<Body> & weft::detail::blocks_part) != 0;
    constexpr bool crosses = has_blocks && !requires { decltype(value)::is_leaf; }
    &&reads_after_boundary<variable, Body>;
    (void)sizeof(crossing_law<!(block_divider<typename Resolver::evaluator_type> && crosses)>);
    const variables<variable, decltype(leaf), Variables> inside{leaf, v};
    auto body = resolve(to, inside, l.body);
    to.leave(inside.depth);
    return body;
  } else {
    static_assert(decltype(value)::static_shape == Value::static_shape,
                  "the replacement of a let's value must have its static shape");
    auto body = resolve(to, v, l.body);
    return let_node<Tag, decltype(value), decltype(body)>{{}, std::move(value), std::move(body)};
  }
}

/// The derivative is taken in one program: what does not read its variable may be computed before.
template <class Resolver, class Variables, class Tag, class Point, class Body>
auto resolve_node(Resolver& to, const Variables& v, const gradient_node<Tag, Point, Body>& n) {
  auto point = resolve(to, v, n.point);
  static_assert(decltype(point)::static_shape == Point::static_shape,
                "the replacement of a gradient's point must have its static shape");
  auto body = resolve(to, v, n.body);
  return gradient_node<Tag, decltype(point), decltype(body)>{{}, {}, std::move(point), std::move(body)};
}

/// A shared value is replaced by a leaf if it contains boundaries or reads something that a leaf has
/// replaced, unless it also reads the variable of a gradient.
template <class Resolver, class Variables, class Tag, class E>
auto resolve_node(Resolver& to, const Variables& v, const shared_node<Tag, E>& s) {
  using resolved = decltype(resolve(to, v, *s.operand));
  constexpr int depth = reads_any<Variables, E> ? Variables::depth : 0;
  const occurrence what{.operand = s.operand.get()};
  if constexpr (std::is_same_v<resolved, E>) return s;
  else if constexpr (reads_open<Variables, E>) {
    auto known = to.find(what);
    if (!known) to.remember(what, known = make_recycled<resolved>(resolve(to, v, *s.operand)), depth);
    return shared_node<Tag, resolved>{{}, std::static_pointer_cast<const resolved>(known)};
  } else return computed_once(to, what, depth, [&] { return resolve(to, v, *s.operand); });
}

/// The number of the call that made a boundary or a draw, shared by its copies; other nodes have none.
template <class E>
requires requires(const E& e) { e.call; }
index_t call_of(const E& e) { return e.call; }
template <class Op, class Attr, int Sizes, class... A>
requires weft::detail::drawing_op<Op> index_t call_of(const sized_node<Op, Attr, Sizes, A...>& n) {
  return n.sizes[0];
}

template <class Resolver, class Variables, class E>
auto resolve(Resolver& to, const Variables& v, const E& e) {
  if constexpr (weft::detail::is_bound<E>) return look_up(e, v);
  else if constexpr (requires { E::is_leaf; } || E::static_shape.order < 0) return e;
  else if constexpr (!Resolver::template divides<E> && std::is_same_v<Variables, no_variables>) return e;
  else if constexpr (Resolver::keeps_calls && requires { call_of(e); } && !reads_open<Variables, E>)
    return computed_once(to, {.call = call_of(e)}, 0, [&] { return resolve_node(to, v, e); });
  else if constexpr (std::is_same_v<E, scalar<typename E::value_type>>) return e;
  else return resolve_node(to, v, e);
}

}  // namespace detail

/// Computes the programs of a statement, in order:
/// - eval_program(e) returns the value of `e`, which has no boundaries, as a leaf;
/// - sum_of_slices(x, labels, rows, f) returns, as a leaf, the sum of f(slice of x, slice of labels) over
///   slices of `rows` rows of the leaves x and labels.
/// Checking the concept compiles the programs of a few small expressions.
template <class E>
concept program_evaluator = requires(E& e, const tensor<float, extents<2, 3>>& x) {
  { e.eval_program(x) } -> expression;
  {
    e.sum_of_slices(x, x, index_t{}, [](auto a, auto) { return sum(a); })
    } -> expression;
};

/// `e` with everything below its boundaries replaced by leaves, which `evaluator`, a program_evaluator,
/// computes.
template <class Evaluator, expression E>
auto without_boundaries(Evaluator& evaluator, const E& e) {
  detail::resolver<Evaluator, E> to(evaluator);
  return detail::resolve(to, detail::no_variables{}, e);
}

}  // namespace runtime
}  // namespace weft
