// SPDX-License-Identifier: MIT
// Evaluation: the value of an expression as a tensor.
//
//   auto t = eval(relu(matmul(x, w) + 1.0f));
#pragma once

#include <weft/run/add.hpp>
#include <weft/run/bind.hpp>
#include <weft/run/boundary.hpp>
#include <weft/run/placed.hpp>
#include <weft/run/program.hpp>

namespace weft {

namespace runtime {

/// A program, independent of the expression type it was made from: what the engine needs to execute it.
struct executable {
  lower::plan_view plan;
  std::span<const kernel_function> kernels;
  positions_function positions = nullptr;  // of its first output; null if ranks divide no positions
};

/// The specialization of `p` for these symbol values, made at the first request.
specialization& specialization_of(context& c, const executable& p, const symbol_values& symbols);

/// The executable of a `program` type (run/program.hpp).
template <class Program>
inline constexpr executable executable_of{Program::plan, Program::kernels, Program::positions};

namespace detail {
/// `what`: "operand", "target" or similar.
[[noreturn, gnu::cold]] void refuse_device(const char* what, std::size_t number, const tensor_state& t,
                                           const device& here);

/// Passes the memory of the leaves to the program.
void set_leaves(const context& c, specialization& i, const tensor_list& leaves);

/// Passes the memory of the given outputs to the program; returns true if it can write to them directly.
[[gnu::cold]] bool can_write_to(specialization& i, const tensor_list& outputs);

/// Passes the memory of the outputs to the program: that of `outputs`; otherwise that of `sums`, if the
/// program can add to it; otherwise new memory.
void set_outputs(const context& c, specialization& i, tensor_list& outputs, const tensor_list& sums);

/// Copies the outputs of a program that could not write directly to the given ones.
[[gnu::cold]] void copy_to_given(const context& c, tensor_list& outputs, const tensor_list& given);
}  // namespace detail

/// Executes a program in `c`. `outputs[o]` is allocated if it is null, or aliases `sums[o]` if the program
/// can accumulate into that. Given outputs are written in place; if the program reads one in an order other
/// than that in which it writes it, it computes into a buffer and copies. `together` may take its kernel and
/// launch it later. Throws device_error if an operand is on another device.
void execute(context& c, specialization& i, const tensor_list& leaves,
             const recycled_vector<any_number>& numbers, tensor_list& outputs, const purpose& why = {},
             const tensor_list& sums = {}, launch_collector* together = nullptr);
/// The same for a program and the values of its symbols. Throws usage_error, before anything is computed, if
/// it needs positions that other ranks hold.
inline void execute(context& c, const executable& p, const tensor_list& leaves,
                    const recycled_vector<any_number>& numbers, const symbol_values& symbols,
                    tensor_list& outputs, const purpose& why = {}, const tensor_list& sums = {}) {
  specialization& i = specialization_of(c, p, symbols);
  const positions_dims positions = positions_of_result(c, p.positions, leaves, &i.known_positions);
  execute(c, i, leaves, numbers, outputs, why, sums);
  if (positions != no_positions) outputs[0]->positions = positions;
}

/// The value of `p` for these operands; throws shape_error if their extents do not match.
std::shared_ptr<tensor_state> execute_value(context& c, const executable& p, operands o);

}  // namespace runtime

/// The tensor type to which an expression evaluates.
template <expression E, bool Tracked = false>
using evaluated = tensor<typename E::value_type, extents_of<E>, Tracked>;

namespace runtime {
namespace detail {
[[noreturn, gnu::cold]] void refuse_labels(const tensor_state& x, const tensor_state& labels);
}  // namespace detail

/// A matrix and labels of its rows, in slices of at most `rows` rows. The type of a slice depends on that of
/// the matrix only in its last extent, and in whether it is tracked.
template <class X, class Labels>
struct row_slices {
  using matrix = tensor<typename X::value_type, extents<dyn, X::static_shape.last()>, X::requires_grad>;
  using row_labels = tensor<typename Labels::value_type, extents<dyn>>;

  std::shared_ptr<tensor_state> x, labels;
  index_t rows;

  /// Throws shape_error unless there is one label, of a tensor with any dims, for each row.
  row_slices(const X& all_rows, const Labels& all_labels, index_t most)
      : x(all_rows.state()), labels(all_labels.state()), rows(most) {
    if (labels->extents.size() != count()) detail::refuse_labels(*x, *labels);
  }

  index_t count() const { return x->extents[0]; }
  /// All rows and their labels as one slice.
  matrix whole() const { return matrix(x); }
  row_labels whole_labels() const { return row_labels(part_of(*labels, 0, {1, {count()}})); }
  /// If ranks divide positions, marks `sum` as a sum over this rank's positions only.
  void note_positions(tensor_state& sum) const {
    if (x->positions != no_positions || labels->positions != no_positions) sum.positions = sum_of_positions;
  }
  /// Calls f(matrix, labels, index of the first row) for slices of about equal size.
  template <class F>
  void for_each(F f) const {
    const index_t width = x->extents[1], slices = std::max<index_t>((count() + rows - 1) / rows, 1);
    for (index_t s = 0; s < slices; ++s) {
      const index_t first = count() * s / slices, n = count() * (s + 1) / slices - first;
      f(matrix(part_of(*x, first * width, {2, {n, width}})), row_labels(part_of(*labels, first, {1, {n}})),
        first);
    }
  }
};

/// Whether products on the slices of `F` read its weight rounded, in programs that ranks do not divide.
template <class F, class Options>
inline constexpr bool rounds_weight = false;
template <class F, class Options>
  requires requires { &F::weight; }
inline constexpr bool rounds_weight<F, Options> =
    Options::products != dtype::f32 && !detail::divides_programs<F, Options> &&
    std::is_same_v<typename decltype(F::weight)::value_type, float>;

/// `f` for several slices: if each of them would round the weight, it is rounded once for all.
template <class Evaluator, class F>
auto with_rounded_weight(Evaluator& evaluator, const F& f) {
  using options = typename Evaluator::options;
  if constexpr (rounds_weight<F, options>)
    return f.rounded(evaluator.unrecorded(cast<element_of<options::products>>(f.weight)));
  else return f;
}

/// Evaluates programs without recording them on a tape.
template <class Options>
struct forgetful_evaluator {
  using options = Options;
  /// The program that is executed for E.
  template <expression E>
  using program_of = value_program<E, Options>;

  context& in;
  bool check_versions = true;

  context& run_context() const { return in; }
  /// Does nothing with a value and its derivative; see tape_entries::remember.
  template <class F>
  void remember(const std::shared_ptr<tensor_state>&, const tensor_list&, F) {}
  /// The value of `e`, which is not recorded by any evaluator.
  template <expression E>
  evaluated<E> unrecorded(const E& e) {
    return eval_program(e);
  }

  template <expression E>
  evaluated<E> eval_program(const E& e) {
    if constexpr (!can_be_compiled<E>(most_operands))
      return (void)sizeof(written_out_law < sizeof(E) == 0 >), evaluated<E>();
    else return evaluated<E>(execute_value(in, executable_of<program_of<E>>, operands_of(e, check_versions)));
  }

  template <expression E>
  auto eval(const E& e) {
    if constexpr (detail::has_boundary<E>) return eval_program(without_boundaries(*this, e));
    else return eval_program(e);
  }

  template <class X, class Labels, class F>
  auto sum_of_slices(const X& x, const Labels& labels, index_t rows, const F& f) {
    std::shared_ptr<tensor_state> sum;
    const row_slices<X, Labels> slices(x, labels, rows);
    const auto add_up = [&](const auto& of_rows) {
      slices.for_each([&](const auto& x_slice, const auto& labels_slice, index_t) {
        const auto part = eval_program(of_rows(x_slice, labels_slice));
        if (sum) add(in.engine(), *sum, *part.state(), *sum);
        else sum = part.state();
      });
    };
    if (slices.count() <= rows) add_up(f);
    else add_up(with_rounded_weight(*this, f));
    slices.note_positions(*sum);
    return tensor<slice_sum<typename X::value_type>, extents<>>(sum);
  }
};
}  // namespace runtime

/// Computes `e` on the context's device and returns a tensor with its shape and dtype; nothing is recorded
/// for a backward pass. Throws shape_error if dynamic extents do not match, value_error if an operand was
/// changed in place since `e` was written or an index is out of range, and device_error if an operand is on
/// another device.
template <expression E, std::derived_from<context> Context = context>
auto eval(const E& e, Context& c = default_context()) {
  return runtime::forgetful_evaluator<typename Context::programs>{c}.eval(e);
}

/// Compile-time error: several expressions.
template <expression A, expression B, expression... Rest>
void eval(const A&, const B&, const Rest&...) {
  static_assert(detail::unsupported<A>,
                "weft: eval: one expression at a time: auto y = eval(a); auto z = eval(b); "
                "evaluate first what both read");
}

/// An expression to be evaluated repeatedly: each call computes it from the values that its tensors have at
/// the time of the call.
///
///   auto step = compile(relu(matmul(x, w)));
///   x.copy_from(next);
///   auto y = step();
template <expression E, class Options>
class compiled {
 public:
  explicit compiled(E e, context& c) : expression_(std::move(e)), context_(&c) {}
  auto operator()() const {
    return runtime::forgetful_evaluator<Options>{*context_, false}.eval(expression_);
  }

 private:
  E expression_;
  context* context_;
};

/// `e` as a `compiled` object; calling it evaluates `e` in `c`, which must outlive it.
template <expression E, std::derived_from<context> Context = context>
auto compile(E e, Context& c = default_context()) {
  return compiled<E, typename Context::programs>(std::move(e), c);
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/run/impl/eval.ipp>
#endif
