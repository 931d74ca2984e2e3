// SPDX-License-Identifier: MIT
// Export of an expression as an ONNX model, torch.onnx.export in PyTorch.
//
//   auto x = zeros<float>(extents<dyn, 784>{1, 784});
//   save_onnx("mlp.onnx", softmax(model(x)),
//             {.inputs = {{"pixels", x, {"batch"}}}, .outputs = {"probabilities"}, .tensors =
//             state_dict(model)});
//
//   onnxruntime.InferenceSession("mlp.onnx").run(None, {"pixels": pixels})      # Python
//
// The file contains the computation that `eval` would execute. weft.hpp does not include this header.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <weft/graph/flatten.hpp>
#include <weft/onnx/translator.hpp>
#include <weft/run/batch_statistics.hpp>
#include <weft/run/eval.hpp>
#include <weft/run/experts.hpp>
#include <weft/run/recurrence.hpp>

namespace weft {

/// A tensor that is an input of an ONNX model, whose elements are not in the file.
struct onnx_input {
  std::string name;
  std::shared_ptr<tensor_state> state;
  shape extents;                    // static extents of its type
  std::vector<std::string> dims{};  // names of its dims

  /// The input named `called`, which represents the tensor `t`. Extents that are dyn in the type of `t` may
  /// have any value when the model is run; `named` gives their names, by default NAME_DIM as in "x_0".
  /// Extents with the same name are equal.
  template <element T, class Extents, bool Tracked>
  onnx_input(std::string called, const tensor<T, Extents, Tracked>& t, std::vector<std::string> named = {})
      : name(std::move(called)), state(t.state()), extents(Extents::static_shape), dims(std::move(named)) {}
};

/// Options of save_onnx.
struct onnx_options {
  /// Tensors of the expression that become inputs.
  std::vector<onnx_input> inputs{};
  /// Names of the outputs; by default "output", or, if there are several, "output_0", "output_1", ...
  std::vector<std::string> outputs{};
  /// Names of other tensors of the expression, such as state_dict(model). All tensors that are not inputs are
  /// constants in the file; unnamed ones are called "constant_0", "constant_1", ...
  io::named_tensors tensors{};
  /// Whether dyn extents stay symbolic in the file. If not, they are the extents of the tensors.
  bool dynamic = true;
  /// Where the elements of tensors are written. A file of 2 GiB or more is refused; the elements must then be
  /// in another file.
  onnx::tensor_storage storage = onnx::tensor_storage::in_file;
};

namespace onnx {

/// Collects the programs of an expression in one graph.
class exporter {
 public:
  /// Throws value_error if names are not unique or not UTF-8, or a tensor is an input twice.
  explicit exporter(const onnx_options& options);

  /// Appends a program with one output, whose value represents the returned tensor, which has no elements.
  /// Throws what save_onnx throws.
  std::shared_ptr<tensor_state> append(const graph::compute_graph& g, const runtime::operands& o);
  /// A recurrence that is being exported: its body, and the tensors that its step reads.
  struct recurrence {
    std::shared_ptr<operator_graph> body;
    operator_graph* outer;
    names operands;
    std::shared_ptr<tensor_state> sequence, element, state;
  };
  /// Begins the body of a recurrence over `x`, to which `append` appends until `end` is called with the state
  /// after a step. Without a first state it starts from zeros of the extents state_of(extents of an element).
  /// `end` returns the states.
  recurrence begin(const std::shared_ptr<tensor_state>& x, const std::shared_ptr<tensor_state>& first,
                   shape (*state_of)(shape));
  std::shared_ptr<tensor_state> end(const recurrence& r, const std::shared_ptr<tensor_state>& after);
  /// Makes the value of a tensor the next output.
  void add_output(const std::shared_ptr<tensor_state>& t, std::size_t outputs);
  /// Writes the file. Throws value_error if an input is not read.
  void write(const std::string& path);

 private:
  void add_input(const onnx_input& input);
  /// Adds the value `name`, whose extents are numbers.
  void add_known(const std::shared_ptr<tensor_state>& t, const std::string& name);
  /// The value of a tensor that is read; creates a constant if it has none so far.
  const known_value& known(const std::shared_ptr<tensor_state>& t);
  /// The extents of the input or output `name`.
  std::vector<dimension> dimensions_of(const std::vector<extent>& extents, const std::string& name) const;

  const onnx_options& options_;
  operator_graph file_;
  operator_graph* here_ = &file_;  // the graph to which programs are appended
  known_values values_;
  std::vector<bool> is_read_;  // by input
  std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>> outputs_;
};

namespace detail {

[[noreturn, gnu::cold]] void refuse_training();
[[noreturn, gnu::cold]] void refuse_routing();
[[noreturn, gnu::cold]] void refuse_outputs(std::size_t names, std::size_t outputs);

/// Whether E contains derivatives, `grad(f, x)`, which require formulas.
template <class E>
inline constexpr bool differentiates = []<class... Part>(weft::detail::expression_list<Part...>) {
  return (differentiates<Part> || ...);
}(typename weft::detail::parts<E>::type{});
template <class Tag, class Point, class Body>
inline constexpr bool differentiates<gradient_node<Tag, Point, Body>> = true;

/// The graph of E, in which formulas are nodes.
template <expression E>
graph::compute_graph graph_of() {
  graph::compute_graph g;
  g.keeps_formulas = !differentiates<E>;
  g.outputs.push_back(graph::flatten<E>(g).id);
  return with_operators(g);
}

/// Exports programs instead of executing them. A program_evaluator.
struct exporting_evaluator {
  using options = program_options<>;
  static constexpr bool scans_sequences = true;
  exporter& to;

  /// For ops that change running statistics or depend on unknown elements.
  [[noreturn]] context& run_context() const { refuse_training(); }
  template <class F>
  void remember(const std::shared_ptr<tensor_state>&, const tensor_list&, F) {}
  template <expression E>
  evaluated<E> unrecorded(const E&) {
    refuse_routing();
  }
  template <expression E>
  evaluated<E> eval_program(const E& e) {
    return evaluated<E>(to.append(graph_of<E>(), runtime::operands_of(e)));
  }
  template <expression E>
  auto eval(const E& e) {
    if constexpr (runtime::detail::has_boundary<E>)
      return eval_program(runtime::without_boundaries(*this, e));
    else return eval_program(e);
  }
  /// Exports a recurrence as one operator.
  template <class Element, class State, class Step>
  std::shared_ptr<tensor_state> scan(const std::shared_ptr<tensor_state>& x,
                                     const std::shared_ptr<tensor_state>& first, const Step& step) {
    const auto r = to.begin(x, first, [](shape s) { return Step::state_of(s); });
    return to.end(r, eval(step(Element(r.element), State(r.state))).state());
  }
  /// Exports all rows as one slice.
  template <class X, class Labels, class F>
  auto sum_of_slices(const X& x, const Labels& labels, index_t, const F& f) {
    const auto of_rows = eval_program(reshape<dyn>(labels));
    const runtime::row_slices slices(x, of_rows, x.extents()[0]);
    const auto sum = eval_program(f(slices.whole(), of_rows));
    return tensor<slice_sum<typename X::value_type>, weft::extents<>>(sum.state());
  }
};

template <class E>
void add_outputs(exporter& to, const E& e, std::size_t outputs = 1) {
  to.add_output(exporting_evaluator{to}.eval(e).state(), outputs);
}
template <class... E>
void add_outputs(exporter& to, const bundle<E...>& b) {
  b.values.apply([&](const auto&... e) { (add_outputs(to, e, sizeof...(E)), ...); });
}

}  // namespace detail
}  // namespace onnx

/// Writes the computation of `e` as an ONNX model, which ONNX Runtime and other programs read, replacing an
/// existing file atomically; with elements in another file, an interruption may leave no file. Nothing is
/// computed. For several outputs, pass bundled(a, b). Tensors of `e` listed in `options.inputs` are inputs;
/// the elements of all others are in the file. Numbers and bounds given at run time, as in reshape, become
/// constants. Call set_training(model, false) before.
///
/// Values are those of `eval` up to the rounding of ONNX Runtime's own kernels; bf16 and f16 are computed in
/// f32 and rounded wherever weft rounds, integers as integers. ONNX does not define the results of amax,
/// amin, max_pool2d, sorting and positions of extrema for NaN, nor of everything that eval refuses, such as
/// indices and slice bounds that are out of range when the model is run.
///
/// Throws value_error, naming the op, for computations without ONNX operators: random numbers, derivatives of
/// attention, convolutions, pooling and cumprod, your own native ops, batch norm in training, mixtures of
/// experts. Throws value_error also if names are not unique, `e` does not read an input, or the file would be
/// 2 GiB or larger; shape_error as evaluation does; io_error if the file cannot be written.
template <expression E>
void save_onnx(const std::string& path, const E& e, const onnx_options& options = {}) {
  onnx::exporter to(options);
  onnx::detail::add_outputs(to, e);
  to.write(path);
}

/// Compile-time error: save_onnx takes an expression.
template <class M>
  requires(!expression<M>)
void save_onnx(const std::string&, const M&, const onnx_options& = {}) {
  static_assert(detail::unsupported<M>,
                "weft: save_onnx: pass what the model computes: save_onnx(path, model(x), {.inputs = "
                "{{\"x\", x}}, .tensors = state_dict(model)})");
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/onnx/impl/save.ipp>
#endif
