// SPDX-License-Identifier: MIT
// What programs are compiled for besides their expression: choices of the policy that a model meets
// when it is bound.
//
//   using plan = policy<precision::bf16, recompute::selective, strategy::fully_sharded<>>;
#pragma once

#include <weft/base/dtype.hpp>

namespace weft {

/// Which values of forward backward reads, rather than computing them again.
enum class saving : std::uint8_t {
  written,  // all that forward writes to memory
  products  // results of products, attention and look-ups; what is element-wise is computed again
};

namespace detail {
struct chosen_options {
  dtype products = dtype::f32;
  saving saved = saving::written;
};
}  // namespace detail

/// The choices made, as a type.
template <dtype Products = dtype::f32, saving Saved = saving::written>
struct program_options {
  static constexpr dtype products = Products;
  static constexpr saving saved = Saved;
};

namespace precision {

/// As the model is written.
struct f32 {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::f32; }
};
/// Operands and results of f32 products are bf16; sums in f32. Parameters, gradients and the
/// optimiser stay f32. As torch.autocast with bfloat16.
struct bf16 {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::bf16; }
};
/// The same with IEEE halves, whose range is small: losses are scaled (optim/loss_scale.hpp).
struct f16 {
  static constexpr void choose(detail::chosen_options& o) { o.products = dtype::f16; }
};

}  // namespace precision

namespace recompute {

/// Of element-wise chains alone, inside of the kernel that reads them.
struct none {
  static constexpr void choose(detail::chosen_options& o) { o.saved = saving::written; }
};
/// Of norms and activations too, before the product that reads them: a few percent of the time for
/// a third of the memory of a transformer block. All of a block: context::recompute_programs.
struct selective {
  static constexpr void choose(detail::chosen_options& o) { o.saved = saving::products; }
};

}  // namespace recompute

template <class T>
concept program_choice = requires(detail::chosen_options o) { T::choose(o); };

namespace detail {
template <class Choice>
constexpr void choose(chosen_options& o) {
  if constexpr (program_choice<Choice>) Choice::choose(o);
}
template <class... Choices>
struct options_of_choices {
  static constexpr chosen_options chosen = [] {
    chosen_options o;
    (choose<Choices>(o), ...);
    return o;
  }();
  using type = program_options<chosen.products, chosen.saved>;
};
}  // namespace detail

/// The options that these choices make together; what is none is passed over.
template <class... Choices>
using options_of = typename detail::options_of_choices<Choices...>::type;

}  // namespace weft
