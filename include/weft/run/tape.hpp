// SPDX-License-Identifier: MIT
// Tapes: evaluate expressions, record them, and differentiate them in reverse order.
//
// A tape holds one entry for each evaluated expression, with the values that its backward program reads.
// Between entries everything is dynamic: loops, branches and shapes may change from step to step.
//
//   tape steps;
//   auto loss = steps.eval(cross_entropy(model(images), labels));
//   steps.backward(loss);                       // adds gradients to the parameters
#pragma once

#include <weft/grad/derivable.hpp>
#include <weft/run/boundary.hpp>
#include <weft/run/tape_entries.hpp>

namespace weft {

/// Records the expressions that it evaluates, and differentiates them in reverse order; `backward`, `size`
/// and `clear` are inherited. `InParts`: backward() computes the gradients of inputs, and backward_weights(),
/// which must follow, those of parameters.
template <class Options = program_options<>, bool InParts = false>
class tape : public tape_entries {
 public:
  using options = Options;
  /// The program that is executed for E.
  template <expression E>
  using program_of = runtime::forward_program<E, Options>;
  /// The program with which a backward pass through E begins: it computes all gradients or, in parts, only
  /// those of inputs.
  template <expression E>
  using backward_of = std::conditional_t<InParts, runtime::backward_input_program<E, Options>,
                                         runtime::backward_program<E, Options>>;

  explicit tape(context& c = default_context()) : tape_entries(c) {
    if constexpr (InParts) divide_backward();
  }

  /// Evaluates `e` and records it. The result is a variable: later expressions may use it, and gradients
  /// propagate through it. An expression with repeats becomes several entries.
  template <expression E>
  auto eval(const E& e) {
    if constexpr (runtime::detail::has_boundary<E>)
      return eval_program(runtime::without_boundaries(*this, e));
    else return eval_program(e);
  }

  /// Compile-time error: several expressions.
  template <expression A, expression B, expression... Rest>
  void eval(const A&, const B&, const Rest&...) {
    static_assert(detail::unsupported<A>,
                  "weft: eval: one expression at a time: auto y = steps.eval(a); auto z = steps.eval(b); "
                  "evaluate first what both read");
  }

  /// Evaluates an expression that is a single program.
  template <expression E>
  evaluated<E, true> eval_program(const E& e) {
    if constexpr (!can_be_compiled<E>(most_operands_to_differentiate))
      return (void)sizeof(written_out_law < sizeof(E) == 0 >), evaluated<E, true>();
    else {
      (void)autodiff::flows<E>;  // checks that its ops have derivatives
      const runtime::executable& forward = runtime::executable_of<program_of<E>>;
      const runtime::executable& backward = runtime::executable_of<backward_of<E>>;
      const runtime::executable* weight = nullptr;
      if constexpr (InParts) weight = &runtime::executable_of<runtime::backward_weight_program<E, Options>>;
      return evaluated<E, true>(run_forward(forward, backward, runtime::operands_of(e), weight));
    }
  }

  /// The value of `e`, a single program, without recording it.
  template <expression E>
  evaluated<E> unrecorded(const E& e) {
    return runtime::forgetful_evaluator<Options>{run_context()}.eval_program(e);
  }

  /// The sum over slices of rows, see `slices_node`. A single slice is evaluated like any other expression;
  /// with several slices, the gradients of each slice are computed right after its value.
  template <class X, class Labels, class F>
  variable<slice_sum<typename X::value_type>, extents<>> sum_of_slices(const X& x, const Labels& labels,
                                                                       index_t rows, const F& f) {
    using T = slice_sum<typename X::value_type>;
    const runtime::row_slices<X, Labels> of(x, labels, rows);
    const index_t count = of.count();
    if (count <= rows) return eval_program(f(of.whole(), of.whole_labels()));
    context& c = run_context();
    const auto of_rows = runtime::with_rounded_weight(*this, f);
    using E = decltype(of_rows(of.whole(), of.whole_labels()));
    // Scaled like the gradients of a mean over all rows, as f16 products require.
    const double cotangent = c.loss_scale / static_cast<double>(count);
    tape_entries::slice_sums sums{cotangent,
                                  full<T>(extents<>{}, static_cast<T>(cotangent), c.where()).state()};
    const shape& extents_of_x = x.state()->extents;
    if (X::requires_grad && recording()) {
      require_entry(*x.state());
      sums.of_rows = make_state(c.where(), extents_of_x, x.state()->type);
    }
    of.for_each([&](const auto& x_slice, const auto& labels_slice, index_t first) {
      run_slice(sums, runtime::executable_of<program_of<E>>,
                runtime::executable_of<runtime::backward_program<E, Options>>,
                runtime::operands_of(of_rows(x_slice, labels_slice)), x_slice.state(),
                first * extents_of_x[1]);
    });
    if (sums.of_rows) {
      sums.leaves.push_back(x.state());
      sums.gradients.push_back(std::move(sums.of_rows));
    }
    remember(sums);
    of.note_positions(*sums.value);
    return variable<T, extents<>>(sums.value);
  }
};
template <std::derived_from<context> Context>
explicit tape(Context&) -> tape<typename Context::programs>;

/// During its lifetime, the tape evaluates expressions without recording them.
class no_grad {
 public:
  explicit no_grad(tape_entries& t) : tape_(t), before_(t.recording()) { t.record(false); }
  no_grad(const no_grad&) = delete;
  no_grad& operator=(const no_grad&) = delete;
  ~no_grad() { tape_.record(before_); }

 private:
  tape_entries& tape_;
  bool before_;
};

}  // namespace weft
