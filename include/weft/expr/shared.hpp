// SPDX-License-Identifier: MIT
// Sharing without a function: a value that is written several times but computed once.
//
//   auto y = shared(x + attention(x));       // as let(x + attention(x), [&](auto y) { return y + mlp(y); })
//   return shared(y + mlp(y));
//
// A node holds its operands by value, so an operand written twice is two operands, and a residual network
// doubles in size with every block. A shared node holds its operand by a reference-counted pointer, and each
// call of `shared` has its own type, which identifies its occurrences.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <weft/base/error.hpp>
#include <weft/base/recycled.hpp>
#include <weft/base/sequence.hpp>
#include <weft/expr/expression.hpp>

namespace weft {

/// The value of `operand`, computed once however often the node occurs in an expression.
template <class Tag, expression E>
struct shared_node : expression_base {
  using value_type = typename E::value_type;
  static constexpr shape static_shape = E::static_shape;
  static constexpr long node_count = 1;

  std::shared_ptr<const E> operand;
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

/// A leaf that is one operand of its program, with one gradient, however often it occurs. Each such leaf of a
/// program has a `Tag` of its own.
template <class Tag, class Leaf>
struct one_operand : Leaf {
  explicit one_operand(const Leaf& x) : Leaf(x) {}
  one_operand snapshot() const { return one_operand(Leaf::snapshot()); }
  auto operator[](index_t i) const { return select<0>(*this, i); }
};

namespace detail {
/// One address per type, which identifies the type.
template <class T>
inline constexpr char identity = 0;

template <class... E>
struct expression_list {};
/// The direct subexpressions of an expression.
template <class E>
struct parts {
  using type = expression_list<>;
};
template <class Op, class Attr, class... A>
struct parts<node<Op, Attr, A...>> {
  using type = expression_list<A...>;
};
template <class Op, class Attr, int Sizes, class... A>
struct parts<sized_node<Op, Attr, Sizes, A...>> {
  using type = expression_list<A...>;
};
template <class Tag, class Value, class Body>
struct parts<let_node<Tag, Value, Body>> {
  using type = expression_list<Value, Body>;
};
template <class... E>
struct parts<bundle<E...>> {
  using type = expression_list<E...>;
};
template <class Tag, class E>
struct parts<shared_node<Tag, E>> {
  using type = expression_list<E>;
};

template <class E>
inline constexpr bool is_shared = false;
template <class Tag, class E>
inline constexpr bool is_shared<shared_node<Tag, E>> = true;

/// Appends the distinct types of which an expression consists, without those inside shared values, until `to`
/// holds `most`.
template <class E>
constexpr void append_types(sequence<const char*>& to, int most) {
  if (to.size() == most) return;
  for (const char* known : to)
    if (same_object(known, &identity<E>)) return;
  to.push_back(&identity<E>);
  if constexpr (!is_shared<E>)
    [&]<class... Part>(expression_list<Part...>) {
      (append_types<Part>(to, most), ...);
    }(typename parts<E>::type{});
}
/// Whether `Op` occurs in E.
template <class Op, class E>
inline constexpr bool contains_op = []<class... Part>(expression_list<Part...>) {
  return (contains_op<Op, Part> || ...);
}(typename parts<E>::type{});
template <class Op, class Attr, class... A>
inline constexpr bool contains_op<Op, node<Op, Attr, A...>> = true;
template <class Op, class Attr, int Sizes, class... A>
inline constexpr bool contains_op<Op, sized_node<Op, Attr, Sizes, A...>> = true;
/// Number of distinct types, counted up to `most`.
template <class E>
constexpr int distinct_types(int most) {
  sequence<const char*> found;
  append_types<E>(found, most);
  return found.size();
}
}  // namespace detail

/// Limits on the number of operands of a statement, written out: for evaluating it, and for differentiating
/// it.
inline constexpr long most_operands = 1'200, most_operands_to_differentiate = 400;

/// Whether a statement with this many operands, written out, can be compiled. It cannot if there are more
/// than 2,000, or more than `most` with over three quarters of them repetitions: compilers would stop at
/// their own limits with unrelated messages.
template <expression E>
consteval bool can_be_compiled(long most) {
  if constexpr (E::node_count > 2'000) return false;
  else if constexpr (E::node_count > most_operands_to_differentiate) {
    constexpr int quarter = static_cast<int>(E::node_count) / 4;
    return E::node_count <= most || detail::distinct_types<E>(quarter) == quarter;
  } else return true;
}
/// The compile-time error for expressions that repeat their operands too often.
template <bool Holds>
struct written_out_law {
  static_assert(
      Holds,
      "weft: this statement writes out its operands hundreds of times over: share what repeats, with "
      "`auto y = shared(x + f(x));` or let(x, f), apply equal blocks with repeat, or evaluate in parts");
};

namespace detail {
template <class E>
inline constexpr bool needs_no_sharing = is_bound<E> || requires { E::is_leaf; };
template <class T>
inline constexpr bool needs_no_sharing<scalar<T>> = true;
template <class Tag, class E>
inline constexpr bool needs_no_sharing<shared_node<Tag, E>> = true;
}  // namespace detail

/// `e` in a form that can be used any number of times and is computed once. Costs one allocation, from a
/// cache.
///
/// If one call creates two values of one type (in a function called twice with operands of equal types) and
/// both occur in one expression, evaluating it throws usage_error, because occurrences are identified by
/// type. In that case make the types of the operands differ: let(x, [&](auto x) { return f(x); }).
template <class Tag = decltype([] {}), expression E>
auto shared(E e) {
  (void)sizeof(written_out_law<can_be_compiled<E>(most_operands)>);
  if constexpr (detail::needs_no_sharing<E>) return detail::as_written(std::move(e));
  else return shared_node<Tag, E>{{}, make_recycled<E>(std::move(e))};
}

namespace detail {

/// State of a walk over an expression: the variables of the enclosing lets, and the shared values met so far.
/// Used for walks over a type (graph/flatten.hpp) and over its objects (run/bind.hpp), which must visit them
/// in the same order.
///
/// A shared value that reads a variable is known only within the let that binds the variable.
template <template <class> class List>
class expression_scope {
 public:
  struct shared_value {
    const char* node;
    int id;               // of its value in the graph
    const void* operand;  // or the object of its operand
    std::uint64_t
        reads;  // a bit for each enclosing let, of at most 64, whose variable it reads
  };

  constexpr void bind(const char* variable, int id) {
    variables_.push_back({variable, id});
    ++depth_;
  }
  /// Ends the scope of the variable bound last and of the shared values that read it.
  constexpr void unbind() {
    variables_.pop_back();
    if (--depth_ >= most_lets) return;
    const std::uint64_t gone = std::uint64_t{1} << depth_;
    reads_ &= ~gone;
    auto kept = shared_.begin();
    for (const shared_value& s : shared_)
      if (!(s.reads & gone)) *kept++ = s;
    while (shared_.end() != kept) shared_.pop_back();
  }
  /// The id of the variable in the graph; -1 if no enclosing let binds it.
  constexpr int read(const char* variable) {
    int at = depth_;
    for (auto v = variables_.end(); v != variables_.begin();) {
      --v;
      --at;
      if (!same_object(v->variable, variable)) continue;
      if (at < most_lets) reads_ |= std::uint64_t{1} << at;
      else if (sharing_ > 0)
        throw value_error("weft: shared: more than 64 nested lets around a shared value");
      return v->id;
    }
    return -1;
  }

  /// The shared value of `node`, or null if it has not been met. Marks the variables that it reads as read.
  constexpr const shared_value* find(const char* node) {
    for (const shared_value& s : shared_)
      if (same_object(s.node, node)) {
        reads_ |= s.reads;
        return &s;
      }
    return nullptr;
  }
  /// `begin` and `end` enclose the walk over a shared operand; `begin` returns the variables read before, for
  /// `end`.
  constexpr std::uint64_t begin() {
    ++sharing_;
    return std::exchange(reads_, 0);
  }
  constexpr void end(const char* node, int id, const void* operand, std::uint64_t before) {
    --sharing_;
    shared_.push_back({node, id, operand, reads_});
    reads_ |= before;
  }

 private:
  static constexpr int most_lets = 64;  // limit on the lets around a shared value
  struct entry {
    const char* variable;
    int id;
  };
  List<entry> variables_;
  List<shared_value> shared_;
  int depth_ = 0;    // number of enclosing lets
  int sharing_ = 0;  // number of enclosing shared values
  std::uint64_t reads_ = 0;
};

/// Whether the op draws random numbers; its one size is the number of its call.
template <class Op>
concept drawing_op = Op::draws;

/// What an expression contains, as bits, so that its type is walked once: boundaries (run/boundary.hpp),
/// shared values, repeated blocks, draws of random numbers.
inline constexpr unsigned boundary_part = 1, shared_part = 2, blocks_part = 4, draws_part = 8;
/// `own_part`: the bit of the expression itself; `seen_parts`: which bits of its parts count for it.
template <class E>
inline constexpr unsigned own_part = is_shared<E> ? shared_part : 0;
template <class Op, class Attr, int Sizes, class... A>
inline constexpr unsigned own_part<sized_node<Op, Attr, Sizes, A...>> = drawing_op<Op> ? draws_part : 0;
template <class E>
inline constexpr unsigned seen_parts = ~0u;
template <class... E>
inline constexpr unsigned seen_parts<bundle<E...>> = shared_part;
template <class List>
inline constexpr unsigned parts_of_all = 0;
template <class E>
inline constexpr unsigned parts_of = own_part<E> | (parts_of_all<typename parts<E>::type> & seen_parts<E>);
template <class... E>
inline constexpr unsigned parts_of_all<expression_list<E...>> = (0u | ... | parts_of<E>);
template <class E>
inline constexpr bool has_shared = (parts_of<E> & shared_part) != 0;
template <class E>
inline constexpr bool has_draws = (parts_of<E> & draws_part) != 0;

}  // namespace detail

}  // namespace weft
