// SPDX-License-Identifier: MIT
// A policy: compile-time choices to which a model is bound. It selects the device, the precision of products,
// what the backward pass recomputes and, on many ranks, the parallel strategy (parallel/strategy.hpp).
//
//   using plan = policy<on<cuda>, precision::bf16, recompute::selective, strategy::fully_sharded<3>>;
#pragma once

#include <type_traits>

#include <weft/run/choices.hpp>

namespace weft {

/// A parallel strategy: `options()` returns what ranks divide among themselves, and how.
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
/// The options of programs under a strategy, or along one of its axes, which may change them.
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

/// A policy of at most one kind of device (on<cuda>), one strategy, one precision and one recompute, in any
/// order. Without on<...>, the device is that of the model. The ranks are those of the communicator.
template <class... Choices>
struct policy {
  static_assert(((strategy_choice<Choices> || program_choice<Choices> || device_choice<Choices>) && ...),
                "weft: policy: takes a device (on<...>), a strategy (strategy::...), a precision "
                "(precision::...) and recompute::...");
  static_assert((int{strategy_choice<Choices>} + ... + 0) <= 1, "weft: policy: takes at most one strategy");
  /// on<...>, or void.
  using device_type = typename detail::chosen_device<Choices...>::type;
  /// void for one rank.
  using strategy_type = typename detail::chosen_strategy<Choices...>::type;
  using programs = typename detail::programs_under<strategy_type, options_of<Choices...>>::type;
};

}  // namespace weft
