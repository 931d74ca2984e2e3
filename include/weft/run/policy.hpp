// SPDX-License-Identifier: MIT
// A policy: compile-time choices to which a model is bound. It selects the precision of products, what
// backward recomputes, and, on many ranks, the parallel strategy (parallel/strategy.hpp).
//
//   using plan = policy<precision::bf16, recompute::selective, strategy::fully_sharded<3>>;
#pragma once

#include <type_traits>

#include <weft/run/choices.hpp>

namespace weft {

/// A parallel strategy: `options()` returns what ranks divide among themselves, and how.
template <class T>
concept strategy_choice = requires { T::options(); };

namespace detail {
/// The strategy among `Choices`; void without one.
template <class... Choices>
struct chosen_strategy {
  using type = void;
};
template <class First, class... Rest>
struct chosen_strategy<First, Rest...> {
  using type = std::conditional_t<strategy_choice<First>, First, typename chosen_strategy<Rest...>::type>;
};
/// The options of programs under a strategy, or along an axis of one, that may change them.
template <class Strategy, class Options>
struct programs_under {
  using type = Options;
};
template <class Strategy, class Options>
  requires requires { typename Strategy::template programs<Options>; }
struct programs_under<Strategy, Options> {
  using type = typename Strategy::template programs<Options>;
};
}  // namespace detail

/// A policy of at most one strategy, and choices for programs (precision, recompute), in any order. The
/// device is that of the model, the ranks those of the communicator.
template <class... Choices>
struct policy {
  static_assert(((strategy_choice<Choices> || program_choice<Choices>)&&...),
                "weft: policy: takes a strategy (strategy::...), a precision (precision::...) and "
                "recompute::...");
  static_assert((int{strategy_choice<Choices>} + ... + 0) <= 1, "weft: policy: takes one strategy");
  /// void for one rank.
  using strategy_type = typename detail::chosen_strategy<Choices...>::type;
  using programs = typename detail::programs_under<strategy_type, options_of<Choices...>>::type;
};

}  // namespace weft
