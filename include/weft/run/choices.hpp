// SPDX-License-Identifier: MIT
// Compilation options of programs, apart from their expression: choices of the policy to which a model is
// bound.
//
//   using plan = policy<precision::bf16, recompute::selective, strategy::fully_sharded<>>;
#pragma once

#include <type_traits>

#include <weft/base/dtype.hpp>

namespace weft {

/// Which values of the forward pass are saved for the backward pass and not recomputed.
enum class saving : std::uint8_t {
  written,  // all values that the forward pass writes to memory
  products  // results of products, attention and indexing; element-wise ops are recomputed
};

namespace detail {
struct chosen_options {
  dtype products = dtype::f32;
  saving saved = saving::written;
};
}  // namespace detail

/// The options of a program as a type, which is part of the program's identity.
template <dtype Products = dtype::f32, saving Saved = saving::written>
struct program_options {
  static constexpr dtype products = Products;
  static constexpr saving saved = Saved;
};

namespace detail {
struct precision_choice {};
struct recompute_choice {};
}  // namespace detail

namespace precision {

/// Products are computed in the dtype of their operands.
struct f32 : detail::precision_choice {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::f32; }
};
/// Mixed precision: operands and results of f32 products and attention are rounded to bf16; sums are f32.
/// Parameters, gradients and optimizer state stay f32. As torch.autocast with bfloat16, except that
/// convolutions stay f32.
struct bf16 : detail::precision_choice {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::bf16; }
};
/// The same with f16, whose range is small: losses must be scaled (optim/loss_scale.hpp).
struct f16 : detail::precision_choice {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::f16; }
};

}  // namespace precision

namespace recompute {

/// Recomputes in the backward pass only what fuses into the kernel that reads it: element-wise chains.
struct none : detail::recompute_choice {
  static constexpr void choose(detail::chosen_options& o) { o.saved = saving::written; }
};
/// Also recomputes norms and activations, before the product that reads them: a few percent more time for a
/// quarter less activation memory (docs/performance.md). To recompute whole blocks, use
/// context::recompute_programs.
struct selective : detail::recompute_choice {
  static constexpr void choose(detail::chosen_options& o) { o.saved = saving::products; }
};

}  // namespace recompute

/// A choice that affects how programs are compiled: one of precision:: or recompute::.
template <class T>
concept program_choice = requires(detail::chosen_options o) { T::choose(o); };

/// The choice of a kind of device: on<...> (device/kind.hpp).
template <class T>
concept device_choice = requires { typename T::kind; &T::where; };

namespace detail {
/// The on<...> among `Choices`; void if there is none.
template <class... Choices>
struct chosen_device {
  using type = void;
};
template <class First, class... Rest>
struct chosen_device<First, Rest...> {
  using type = typename chosen_device<Rest...>::type;
};
template <device_choice First, class... Rest>
struct chosen_device<First, Rest...> {
  using type = First;
};

template <class Choice>
constexpr void choose(chosen_options& o) {
  if constexpr (program_choice<Choice>) Choice::choose(o);
}
template <class... Choices>
struct options_of_choices {
  static_assert((int{std::is_base_of_v<precision_choice, Choices>} + ... + 0) <= 1,
                "weft: a policy or context takes at most one precision (precision::...)");
  static_assert((int{std::is_base_of_v<recompute_choice, Choices>} + ... + 0) <= 1,
                "weft: a policy or context takes at most one of recompute::...");
  static_assert((int{device_choice<Choices>} + ... + 0) <= 1,
                "weft: a policy or context takes at most one device (on<...>)");
  static constexpr chosen_options chosen = [] {
    chosen_options o;
    (choose<Choices>(o), ...);
    return o;
  }();
  using type = program_options<chosen.products, chosen.saved>;
};
}  // namespace detail

/// The options that these choices result in; other choices are ignored.
template <class... Choices>
using options_of = typename detail::options_of_choices<Choices...>::type;

}  // namespace weft
