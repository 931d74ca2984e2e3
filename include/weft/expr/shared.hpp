// SPDX-License-Identifier: MIT
// Sharing without a function: a value that is written several times and computed once.
//
//   auto y = shared(x + attention(x));       // as let(x + attention(x), [&](auto y) { return y + mlp(y); })
//   return shared(y + mlp(y));
//
// A node holds its operands by value, so an operand written twice is two operands, and natural residual
// code doubles with every block. A shared node holds its operand by a counted
// pointer, and each call of `shared` has a type of its own, by which its occurrences are recognised.
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

/// The value of `operand`, wherever the node occurs in an expression.
template <class Tag, expression E>
struct shared_node : expression_base {
  using value_type = typename E::value_type;
  static constexpr shape static_shape = E::static_shape;
  static constexpr long node_count = 1;

  std::shared_ptr<const E> operand;
};

namespace detail {
/// One address per type.
template <class T>
inline constexpr char identity = 0;

/// The types that an expression is made of, each once.
template <class E, class... Parts>
struct listed_types;
template <class E>
struct types_in : listed_types<E> {};
template <class Op, class Attr, class... A>
struct types_in<node<Op, Attr, A...>> : listed_types<node<Op, Attr, A...>, A...> {};
template <class Op, class Attr, int Sizes, class... A>
struct types_in<sized_node<Op, Attr, Sizes, A...>> : listed_types<sized_node<Op, Attr, Sizes, A...>, A...> {};
template <class Tag, class Value, class Body>
struct types_in<let_node<Tag, Value, Body>> : listed_types<let_node<Tag, Value, Body>, Value, Body> {};
template <class... E>
struct types_in<bundle<E...>> : listed_types<bundle<E...>, E...> {};
template <class E, class... Parts>
struct listed_types {
  static constexpr void append(sequence<const char*>& to, int most) {
    if (to.size() == most) return;
    for (const char* known : to)
      if (same_object(known, &identity<E>)) return;
    to.push_back(&identity<E>);
    (types_in<Parts>::append(to, most), ...);
  }
};
/// How many, counted to `most`.
template <class E>
constexpr int distinct_types(int most) {
  sequence<const char*> found;
  types_in<E>::append(found, most);
  return found.size();
}
}  // namespace detail

inline constexpr long most_operands = 1'200, most_operands_to_differentiate = 400;

/// Whether a statement of so many operands, written out, can be compiled: not if it has more than 2,000, or
/// more than `most` of which three quarters are repetitions. Compilers give up by limits of their own, which
/// say nothing of the cause.
template <expression E>
consteval bool can_be_compiled(long most) {
  if constexpr (E::node_count > 2'000) return false;
  else if constexpr (E::node_count > most_operands_to_differentiate) {
    constexpr int quarter = static_cast<int>(E::node_count) / 4;
    return E::node_count <= most || detail::distinct_types<E>(quarter) == quarter;
  } else return true;
}
/// The sentence for expressions that repeat their operands.
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

/// `e`, to be used as often as one likes and computed once. One allocation, recycled.
///
/// If a call makes two values of one type (in a function that is called twice with operands of equal types)
/// and both are in one expression, its evaluation throws usage_error: occurrences could not be told apart.
/// Then give the operands types of their own: let(x, [&](auto x) { return f(x); }).
template <class Tag = decltype([] {}), expression E>
auto shared(E e) {
  (void)sizeof(written_out_law<can_be_compiled<E>(most_operands)>);
  if constexpr (requires { e.snapshot(); }) return e.snapshot();
  else if constexpr (detail::needs_no_sharing<E>) return e;
  else return shared_node<Tag, E>{{}, make_recycled<E>(std::move(e))};
}

namespace detail {

/// What a walk over an expression has met: variables of the lets around it, and values that are shared. The
/// same for walks over a type (graph/flatten.hpp) and over its objects (run/bind.hpp), which must go the same
/// way.
///
/// A shared value that reads a variable is one only within the let that binds the variable.
template <template <class> class List>
class expression_scope {
 public:
  struct shared_value {
    const char* node;
    int id;               // of its value in the graph
    const void* operand;  // or its object
    std::uint64_t
        reads;  // a bit for each let around it whose variable it reads; the last one for all from there on
  };

  constexpr void bind(const char* variable, int id) {
    variables_.push_back({variable, id});
    ++depth_;
  }
  /// The variable bound last is gone, and with it what reads it.
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
  /// Its number in the graph; -1 if no let around binds it.
  constexpr int read(const char* variable) {
    int at = depth_;
    for (auto v = variables_.end(); v != variables_.begin();) {
      --v;
      --at;
      if (!same_object(v->variable, variable)) continue;
      if (at < most_lets) reads_ |= std::uint64_t{1} << at;
      else if (sharing_ > 0) throw value_error("weft: shared: more than 64 lets around a shared value");
      return v->id;
    }
    return -1;
  }

  /// Null where it has not been met yet; otherwise it is read.
  constexpr const shared_value* find(const char* node) {
    for (const shared_value& s : shared_)
      if (same_object(s.node, node)) {
        reads_ |= s.reads;
        return &s;
      }
    return nullptr;
  }
  /// Around the walk over a shared operand: what has been read before it, and what came of it.
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
  static constexpr int most_lets = 64;  // that a shared value may read
  struct entry {
    const char* variable;
    int id;
  };
  List<entry> variables_;
  List<shared_value> shared_;
  int depth_ = 0;    // of lets around
  int sharing_ = 0;  // shared values around
  std::uint64_t reads_ = 0;
};

/// What an expression has in it, in one trait so that types are walked once: a bit for boundaries
/// (run/boundary.hpp), one for shared values.
inline constexpr unsigned boundary_part = 1, shared_part = 2;
template <class E>
inline constexpr unsigned parts_of = 0;
template <class Op, class Attr, class... A>
inline constexpr unsigned parts_of<node<Op, Attr, A...>> = (0u | ... | parts_of<A>);
template <class Op, class Attr, int Sizes, class... A>
inline constexpr unsigned parts_of<sized_node<Op, Attr, Sizes, A...>> = (0u | ... | parts_of<A>);
template <class Tag, class Value, class Body>
inline constexpr unsigned parts_of<let_node<Tag, Value, Body>> = parts_of<Value> | parts_of<Body>;
template <class... E>
inline constexpr unsigned parts_of<bundle<E...>> = (0u | ... | parts_of<E>) & shared_part;
template <class Tag, class E>
inline constexpr unsigned parts_of<shared_node<Tag, E>> = parts_of<E> | shared_part;
template <class E>
inline constexpr bool has_shared = (parts_of<E> & shared_part) != 0;

}  // namespace detail

}  // namespace weft
