// SPDX-License-Identifier: MIT
// A policy: what a model is bound to. It chooses the precision of products, what backward recomputes, and,
// on many ranks, the parallel strategy (parallel/strategy.hpp).
//
//   using plan = policy<precision::bf16, recompute::selective, strategy::fully_sharded<3>>;
#pragma once

#include <type_traits>

#include <weft/run/choices.hpp>

namespace weft {

/// A strategy says with `options()` what ranks divide among themselves, and how.
template <class T>
concept strategy_choice = requires { T::options(); };

namespace detail {
/// The strategy among `Choices`; void if there is none.
template <class... Choices>
struct chosen_strategy {
  using type = void;
};
template <class First, class... Rest>
struct chosen_strategy<First, Rest...> {
  using type = std::conditional_t<strategy_choice<First>, First, typename chosen_strategy<Rest...>::type>;
};
}  // namespace detail

/// At most one strategy, and choices for programs (precision, recompute), in any order. Devices come with the
/// model, ranks with the communicator.
template <class... Choices>
struct policy {
  static_assert(((strategy_choice<Choices> || program_choice<Choices>)&&...),
                "weft: policy: takes a strategy (strategy::...), a precision (precision::...) and "
                "recompute::...");
  static_assert((int{strategy_choice<Choices>} + ... + 0) <= 1, "weft: policy: takes one strategy");
  /// void: one rank.
  using strategy_type = typename detail::chosen_strategy<Choices...>::type;
  using programs = options_of<Choices...>;
};

}  // namespace weft
