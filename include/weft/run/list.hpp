// SPDX-License-Identifier: MIT
// Tensors of a list, whose length is known only at run time, joined in an expression.
//
//   std::vector<variable<float, extents<dyn, 8>>> outputs;      // of steps.eval
//   auto y = steps.eval(mean(stack<0>(outputs)));
#pragma once

#include <memory>
#include <vector>

#include <weft/op/join.hpp>
#include <weft/run/bind.hpp>
#include <weft/run/boundary.hpp>

namespace weft {

/// The tensors of a list one after the other along dim Dim, or along a new dim Dim if `Stacks`.
template <index_t Dim, bool Stacks, class Leaf>
struct list_node : expression_base {
  using value_type = typename Leaf::value_type;
  static constexpr shape static_shape = [] {
    const shape& of = Leaf::static_shape;
    shape all;
    for (int d = 0; d < of.order; ++d) {
      if (Stacks && d == Dim) all.append(dyn);
      all.append(!Stacks && d == Dim ? dyn : of[d]);
    }
    if (Stacks && Dim == of.order) all.append(dyn);
    return all;
  }();
  static constexpr long node_count = 1;

  std::shared_ptr<const std::vector<Leaf>> parts;  // with their versions
  index_t call = detail::next_call();
  constexpr auto operator[](index_t i) const { return select<0>(*this, i); }
};

namespace detail {
template <index_t Dim, bool Stacks, class Leaf>
struct parts<list_node<Dim, Stacks, Leaf>> {
  using type = expression_list<Leaf>;
};
template <index_t Dim, bool Stacks, class Leaf>
inline constexpr unsigned own_part<list_node<Dim, Stacks, Leaf>> = boundary_part;

[[noreturn, gnu::cold]] inline void refuse_empty_list(const char* op) {
  refuse<shape_error>({"weft: ", op, ": the list is empty"});
}
template <index_t Dim, bool Stacks, class Leaf, class Listed>
auto list_of(const std::vector<Listed>& list) {
  if (list.empty()) refuse_empty_list(Stacks ? "stack" : "concat");
  std::vector<Leaf> parts;
  parts.reserve(list.size());
  for (const Leaf& leaf : list) parts.push_back(leaf.snapshot());
  return list_node<Dim, Stacks, Leaf>{{}, std::make_shared<const std::vector<Leaf>>(std::move(parts))};
}
}  // namespace detail

namespace runtime {
namespace detail {

/// `parts`, `n` tensors with a dynamic extent along Dim, one after the other; each is copied about log8(n)
/// times.
template <index_t Dim, class Evaluator, class Part>
Part joined(Evaluator& evaluator, const Part* parts, index_t n) {
  if (n == 1) return parts[0];
  const index_t groups = n < 8 ? 2 : 8;
  recycled_vector<Part> of;
  for (index_t i = 0; i < groups; ++i) {
    const index_t first = n * i / groups;
    of.push_back(joined<Dim>(evaluator, parts + first, n * (i + 1) / groups - first));
  }
  if (groups == 2) return Part(evaluator.eval_program(concat<Dim>(of[0], of[1])));
  return Part(evaluator.eval_program(concat<Dim>(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7])));
}

template <class Resolver, class Variables, index_t Dim, bool Stacks, class Leaf>
auto resolve_node(Resolver& to, const Variables&, const list_node<Dim, Stacks, Leaf>& n) {
  using extents = typename extents_from<list_node<Dim, Stacks, Leaf>::static_shape>::type;
  const auto all = [&]<bool Tracked>(auto part, std::bool_constant<Tracked>) {
    using any_extent = tensor<typename Leaf::value_type, extents, Tracked>;
    recycled_vector<any_extent> parts;
    for (const Leaf& leaf : *n.parts) {
      require_unchanged(to.evaluator, leaf, parts.size());
      parts.push_back(any_extent(part(leaf)));
    }
    return joined<Dim>(to.evaluator, parts.begin(), static_cast<index_t>(parts.size()));
  };
  if constexpr (Stacks) {
    const auto row = [&](const Leaf& leaf) { return to.evaluator.eval_program(unsqueeze<Dim>(leaf)); };
    return all(row, std::bool_constant<decltype(row(n.parts->front()))::requires_grad>());
  } else {
    return all([](const Leaf& leaf) { return leaf; }, std::bool_constant<Leaf::requires_grad>());
  }
}

}  // namespace detail
}  // namespace runtime

namespace detail {
/// The tensor type of a leaf, without its role in a model.
template <class Leaf>
using tensor_of_leaf = tensor<typename Leaf::value_type, typename Leaf::extents_type, Leaf::requires_grad>;

/// The compile-time error for lists of expressions that have not been evaluated.
template <bool Holds, class Leaf>
struct list_law {
  static_assert(Holds,
                "weft: concat, stack: a list must hold tensors, parameters or values of a tape: "
                "list.push_back(steps.eval(expression))");
};
template <class Leaf>
inline constexpr bool is_listed = requires {
  typename tensor_of_leaf<Leaf>;
};
}  // namespace detail

/// The tensors of a list one after the other along dim Dim, as torch.cat, for lists whose length is not known
/// at compile time. They must have the same extents except along Dim. An expression, like that of
/// concat<Dim>(a, b); it is evaluated by several programs, and each tensor is copied about log8(list.size())
/// times. Throws shape_error if the list is empty, and at evaluation if shapes do not match.
///   auto y = steps.eval(concat<0>(parts));
template <index_t Dim, expression Leaf>
auto concat(const std::vector<Leaf>& list) {
  (void)sizeof(detail::list_law<detail::is_listed<Leaf>, Leaf>);
  if constexpr (detail::is_listed<Leaf>) {
    constexpr int order = Leaf::static_shape.order, dim = normalized_dim(Dim, order);
    static_assert(dim >= 0 && dim < order, "weft: concat: the dim is out of range");
    return detail::list_of<dim, false, detail::tensor_of_leaf<Leaf>>(list);
  }
}
/// Tensors of the same shape along a new dim Dim, as torch.stack; otherwise like concat of a list, with one
/// more copy.
template <index_t Dim, expression Leaf>
auto stack(const std::vector<Leaf>& list) {
  (void)sizeof(detail::list_law<detail::is_listed<Leaf>, Leaf>);
  if constexpr (detail::is_listed<Leaf>) {
    constexpr int order = Leaf::static_shape.order, dim = normalized_dim(Dim, order + 1);
    static_assert(dim >= 0 && dim <= order && order < max_order,
                  "weft: stack: the dim is out of range, or the result has more than six dims");
    return detail::list_of<dim, true, detail::tensor_of_leaf<Leaf>>(list);
  }
}

/// Compile-time errors: the dim is missing.
template <class Leaf, class... Rest>
void concat(const std::vector<Leaf>&, Rest...) {
  static_assert(detail::unsupported<Leaf>, "weft: concat: the dim is a template argument: concat<0>(list)");
}
template <class Leaf, class... Rest>
void stack(const std::vector<Leaf>&, Rest...) {
  static_assert(detail::unsupported<Leaf>, "weft: stack: the dim is a template argument: stack<0>(list)");
}

}  // namespace weft
