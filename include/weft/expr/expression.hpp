// SPDX-License-Identifier: MIT
// Expressions: computations as types. Nothing is computed here.
//
// A node holds its operands by value and leaves are handles, so `auto` is always safe: an expression may be
// returned, stored and copied. Its type is the graph; `spec_of` below is what the type tells about the value.
//
//   auto y = relu(matmul(x, w) + 1.0f);     // node<op::relu, attr<>, node<op::add, ...>>
//
// See op/rule.hpp for the definition of ops, and graph/flatten.hpp for the conversion of an expression to a
// graph.
#pragma once

#include <atomic>
#include <concepts>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include <weft/base/dtype.hpp>
#include <weft/expr/operands.hpp>
#include <weft/shape/attributes.hpp>
#include <weft/shape/extents.hpp>
#include <weft/shape/laws.hpp>

namespace weft {

namespace detail {
/// Always false, for static_asserts in templates that explain what to write instead.
template <class...>
inline constexpr bool unsupported = false;

/// One number, or several in braces, where a type or template arguments are expected.
struct numbers_at_run_time {
  template <std::integral N>
  constexpr numbers_at_run_time(N) {}
  constexpr numbers_at_run_time(std::initializer_list<index_t>) {}
};
}  // namespace detail

/// Base of all expressions. Its members are compile-time errors that say what to write instead; tensors have
/// members with the same names, which hide these.
struct expression_base {
  template <class E = void>
  constexpr double item() const {  // returns a number, so that this is the only error
    static_assert(detail::unsupported<E>, "weft: item: nothing is computed yet: write eval(e).item()");
    return 0;
  }
  template <class E = void>
  constexpr void to_vector() const {
    static_assert(detail::unsupported<E>,
                  "weft: to_vector: nothing is computed yet: write eval(e).to_vector()");
  }
  template <class E = void>
  constexpr void data() const {
    static_assert(detail::unsupported<E>, "weft: data: nothing is computed yet: auto t = eval(e); t.data()");
  }
  template <class... A>
  constexpr void backward(const A&...) const {
    static_assert(
        detail::unsupported<A...>,
        "weft: backward is a function of the tape: auto loss = steps.eval(e); steps.backward(loss)");
  }
  template <std::same_as<bool> B>
  constexpr explicit operator B() const {
    static_assert(detail::unsupported<B>,
                  "weft: tensors and expressions have no truth value: write if (eval(e).item()) or if "
                  "(t.defined()); for masks, a & b, a | b, !a");
    return false;
  }
};

/// A tensor, a parameter, or ops applied to them.
template <class T>
concept expression = std::derived_from<std::remove_cvref_t<T>, expression_base>;

/// The role of a leaf in a statement. Tapes compute gradients of variables and parameters. A variable is an
/// input or the value of another statement; a parameter is changed by optimizers.
enum class leaf_role : std::uint8_t { untracked, variable, parameter };

/// Element type and shape of an expression's value, as far as its type determines them; unknown extents are
/// `dyn`.
template <expression E>
inline constexpr tensor_spec spec_of{dtype_of<typename E::value_type>, E::static_shape};

/// The extents type of an expression's value.
template <expression E>
using extents_of = typename extents_from<E::static_shape>::type;

namespace detail {
/// Number of operands written out in a type, saturated at a million: the number that flattening visits.
constexpr long sum_of_counts(std::initializer_list<long> counts) {
  long n = 1;
  for (long c : counts) n += c;
  return n < 1'000'000 ? n : 1'000'000;
}

template <class E>
void refuse_assignment() {
  static_assert(unsupported<E>,
                "weft: nothing can be assigned to an expression, not even to a part of a tensor: write "
                "update(t[i], e), update(slice<1>(t, 2, 5), e)");
}

template <class E>
void refuse_reassignment() {
  static_assert(
      unsupported<E>,
      "weft: a variable cannot be assigned another expression, whose type differs: write auto h2 = relu(h); "
      "for equal layers, use a repeat; or evaluate each: auto h = steps.eval(a(x)); h = steps.eval(b(h))");
}

/// Whether E has elements. Has a name, because g++ 12 fails when it deduces a class by such a constraint.
template <class E>
inline constexpr bool is_leaf = requires { E::is_leaf; };

/// A module or function that can be called with an X.
template <class M, class X>
concept applies_to = requires(M& module, X x) { module(x); };
/// Whether a non-const `M` can be called with an X but a const one cannot.
template <class M, class X>
inline constexpr bool applies_if_not_const = !applies_to<const M, X> && applies_to<M, X>;
}  // namespace detail

/// A number in an expression, converted to the element type of the tensor operand.
template <element T>
struct scalar : expression_base {
  using value_type = T;
  static constexpr shape static_shape{};
  static constexpr long node_count = 1;
  T value;
  constexpr explicit scalar(T v) : value(v) {}
};

namespace detail {
/// A number that identifies a call; copies of the expression that the call returns keep it.
inline index_t next_call() {
  static std::atomic<index_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed);
}

/// `e` as an expression holds it: a leaf with the version count of its elements, so that a change in place
/// after the expression was written is noticed.
template <expression E>
constexpr auto as_written(E e) {
  if constexpr (requires { e.snapshot(); }) return e.snapshot();
  else return e;
}
}  // namespace detail

/// An op applied to operands. The op determines dtype and shape; see `infer` in op/rule.hpp.
template <class Op, class Attr, class... Operands>
struct node : expression_base {
  static constexpr inferred law = [] {
    static_dims dims;
    const tensor_spec specs[] = {spec_of<Operands>..., tensor_spec{}};
    return Op::infer(dims, Attr::value, specs);
  }();
  using value_type = element_of<law.value.type>;
  static constexpr shape static_shape = law.value.extents;
  static constexpr long node_count = detail::sum_of_counts({Operands::node_count...});

  operand_list<Operands...> operands;

  constexpr explicit node(Operands... o) : operands(std::move(o)...) {}
  node(const node&) = default;
  node(node&&) = default;
  node& operator=(const node&) & = default;  // of an lvalue only: t[0] = t[1] would do nothing
  node& operator=(node&&) & = default;
  template <class E>
  void operator=(const E&) && {
    detail::refuse_assignment<E>();
  }
  template <class E>
    requires(!std::same_as<E, node>)
  void operator=(const E&) & {
    detail::refuse_reassignment<E>();
  }

  /// The expression select<0>(*this, i), which drops the first dim.
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

/// A node with attributes given at run time, one for each `dyn` among `Attr`, in order.
template <class Op, class Attr, int Sizes, class... Operands>
struct sized_node : node<Op, Attr, Operands...> {
  index_t sizes[std::size_t{Sizes}];

  constexpr sized_node(const index_t (&s)[std::size_t{Sizes}], Operands... o)
      : node<Op, Attr, Operands...>(std::move(o)...) {
    for (int i = 0; i < Sizes; ++i) sizes[i] = s[i];
  }
  sized_node(const sized_node&) = default;
  sized_node(sized_node&&) = default;
  sized_node& operator=(const sized_node&) & = default;
  sized_node& operator=(sized_node&&) & = default;
  template <class E>
  void operator=(const E&) && {
    detail::refuse_assignment<E>();
  }
  template <class E>
    requires(!std::same_as<E, sized_node>)
  void operator=(const E&) & {
    detail::refuse_reassignment<E>();
  }
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }  // includes the sizes
};

/// The variable of a `let`; stateless, identified by the type of the function that binds it.
template <class Tag, element T, class Extents>
struct bound : expression_base {
  using value_type = T;
  static constexpr shape static_shape = Extents::static_shape;
  static constexpr long node_count = 1;
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

/// Computes `value` once, and `body`, which may refer to it any number of times.
template <class Tag, expression Value, expression Body>
struct let_node : expression_base {
  using value_type = typename Body::value_type;
  using variable = bound<Tag, typename Value::value_type, extents_of<Value>>;
  static constexpr shape static_shape = Body::static_shape;
  static constexpr long node_count = detail::sum_of_counts({Value::node_count, Body::node_count});

  Value value;
  Body body;
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

/// Several values computed by one program, for in-place updates (run/update.hpp).
template <expression First, expression... Rest>
struct bundle : expression_base {
  using value_type = typename First::value_type;
  static constexpr shape static_shape = First::static_shape;
  static constexpr long node_count = detail::sum_of_counts({First::node_count, Rest::node_count...});

  operand_list<First, Rest...> values;

  constexpr explicit bundle(First first, Rest... rest) : values(std::move(first), std::move(rest)...) {}
};

/// Several expressions combined into one that one program evaluates; see `update`.
template <expression... E>
constexpr auto bundled(E... e) {
  return bundle<E...>(detail::as_written(std::move(e))...);
}

namespace detail {
template <class E>
inline constexpr bool is_bound = false;
template <class Tag, class T, class Extents>
inline constexpr bool is_bound<bound<Tag, T, Extents>> = true;
}  // namespace detail

/// Shares `value`: calls `f` immediately with a variable that represents it, and returns an expression whose
/// value is that of f's result.
///
/// Without it, an operand written twice is two operands, and types grow with every repetition.
///
///   let(x + attention(x), [&](auto h) { return h + mlp(h); })
template <expression Value, class F>
constexpr auto let(Value value, F f) {
  if constexpr (detail::is_bound<Value>) {
    return f(value);
  } else {
    using variable = bound<F, typename Value::value_type, extents_of<Value>>;
    using body = decltype(f(variable{}));
    static_assert(expression<body>, "weft: let: the function must return an expression");
    if constexpr (expression<body>)
      return let_node<F, Value, body>{{}, detail::as_written(std::move(value)), f(variable{})};
  }
}

}  // namespace weft
