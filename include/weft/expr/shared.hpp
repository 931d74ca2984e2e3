// SPDX-License-Identifier: MIT
// Sharing without a function: a value that is written several times and computed once.
//
//   auto y = shared(x + attention(x));       // as let(x + attention(x), [&](auto y) { return y + mlp(y); })
//   return shared(y + mlp(y));
//
// A node holds its operands by value, so an operand written twice is two operands, and in natural
// residual code types' values double with every block. A shared node holds its operand by a counted
// pointer, and each call of `shared` has a type of its own, by which its occurrences are recognised.
#pragma once

#include <cstdint>
#include <memory>
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

/// How often operands may be written out in one expression. Beyond, compilers give up by their own limits, without
/// saying why.
inline constexpr long most_operands = 2'000;

/// The sentence for expressions that repeat their operands.
template <bool Holds>
struct written_out_law {
  static_assert(Holds, "weft: this expression writes out more than 2,000 operands: share what repeats, with "
                       "`auto y = shared(x + f(x));` or let(x, f), apply equal blocks with repeat, or evaluate in parts");
};
template <expression E>
inline constexpr bool can_be_compiled = E::node_count < most_operands;

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
/// If a call makes two values of one type (in a function that is called twice with operands of equal types) and
/// both are in one expression, its evaluation throws usage_error: occurrences could not be told apart. Then give
/// the operands types of their own: let(x, [&](auto x) { return f(x); }).
template <class Tag = decltype([] {}), expression E>
auto shared(E e) {
  (void)sizeof(written_out_law<can_be_compiled<E>>);
  if constexpr (requires { e.snapshot(); }) return e.snapshot();
  else if constexpr (detail::needs_no_sharing<E>) return e;
  else return shared_node<Tag, E>{{}, make_recycled<E>(std::move(e))};
}

namespace detail {

/// One address per type.
template <class T>
inline constexpr char identity = 0;

/// What a walk over an expression has met: variables of the lets around it, and values that are shared. The same
/// for walks over a type (graph/flatten.hpp) and over its objects (run/bind.hpp), which must go the same way.
///
/// A shared value that reads a variable is one only within the let that binds the variable.
template <template <class> class List>
class expression_scope {
 public:
  struct shared_value {
    const char* node;
    int id;               // of its value in the graph
    const void* operand;  // or its object
    std::uint64_t reads;  // a bit for each let around it whose variable it reads; the last one for all from there on
  };

  constexpr void bind(const char* variable, int id) {
    variables_.push_back({variable, id});
    ++depth_;
  }
  /// The variable bound last is gone, and with it what reads it.
  constexpr void unbind() {
    variables_.pop_back();
    const std::uint64_t gone = bit(--depth_);
    if (depth_ <= last_bit) reads_ &= ~gone;
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
      reads_ |= bit(at);
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
  constexpr std::uint64_t begin() { return std::exchange(reads_, 0); }
  constexpr void end(const char* node, int id, const void* operand, std::uint64_t before) {
    shared_.push_back({node, id, operand, reads_});
    reads_ |= before;
  }

 private:
  static constexpr int last_bit = 63;
  static constexpr std::uint64_t bit(int depth) { return std::uint64_t{1} << (depth < last_bit ? depth : last_bit); }

  struct entry {
    const char* variable;
    int id;
  };
  List<entry> variables_;
  List<shared_value> shared_;
  int depth_ = 0;
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
