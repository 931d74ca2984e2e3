// SPDX-License-Identifier: MIT
// Definitions of <weft/onnx/save.hpp>.
#pragma once

#include <algorithm>

#include <weft/onnx/save.hpp>

namespace weft::onnx {

namespace detail {

WEFT_DEFINE void refuse_training() {
  refuse<value_error>(
      {"weft: onnx: batch norm in training and mixtures of experts cannot be exported: for batch norm, call "
       "set_training(model, false) first"});
}
WEFT_DEFINE void refuse_routing() {
  refuse<value_error>({"weft: onnx: mixtures of experts cannot be exported"});
}
WEFT_DEFINE void refuse_outputs(std::size_t names, std::size_t outputs) {
  refuse<value_error>({"weft: onnx: there are ", names, " names for ", outputs, " outputs"});
}

}  // namespace detail

WEFT_DEFINE exporter::exporter(const onnx_options& options)
    : options_(options), is_read_(options.inputs.size(), false) {
  for (const onnx_input& i : options.inputs) file_.reserve(i.name, "input");
  for (const std::string& name : options.outputs) file_.reserve(name, "output");
  for (const onnx_input& i : options.inputs) add_input(i);
  for (const auto& [name, t] : options.tensors) {
    if (!t) refuse<value_error>({"weft: onnx: tensor ", name, " is null"});
    file_.reserve(name, "tensor");
    if (values_.find(t.get())) continue;  // an input, or tied to an earlier tensor
    file_.add_initializer(name, io::stored(*t));
    add_known(t, name);
  }
}

WEFT_DEFINE void exporter::add_known(const std::shared_ptr<tensor_state>& t, const std::string& name) {
  known_value v{t, widened(file_, name, t->type), {}};
  for (int d = 0; d < t->extents.order; ++d) v.extents.push_back({t->extents[d]});
  values_.add(std::move(v));
}

WEFT_DEFINE void exporter::add_input(const onnx_input& input) {
  if (values_.find(input.state.get()))
    refuse<value_error>({"weft: onnx: input ", input.name, ": the same tensor is another input, too"});
  if (static_cast<int>(input.dims.size()) > input.extents.order)
    refuse<value_error>({"weft: onnx: input ", input.name, ": there are ", input.dims.size(), " names for ",
                         input.extents.order, " dims"});
  known_value v{input.state, widened(file_, input.name, input.state->type), {}};
  for (int d = 0; d < input.extents.order; ++d) {
    const std::size_t at = static_cast<std::size_t>(d);
    extent e{input.state->whole()[d]};
    if (options_.dynamic && input.extents[d] == dyn) {
      e.symbol =
          values_.symbol(at < input.dims.size() ? input.dims[at] : "", input.name + "_" + std::to_string(d));
      e.value =
          file_.apply("Shape", {input.name}, {{"start", std::int64_t{d}}, {"end", std::int64_t{d + 1}}});
    }
    v.extents.push_back(std::move(e));
  }
  values_.add(std::move(v));
}

WEFT_DEFINE std::shared_ptr<tensor_state> exporter::append(const graph::compute_graph& g,
                                                           const runtime::operands& o) {
  runtime::plan_view sizes;
  const auto all_of = [](const auto& s) { return std::span(s.begin(), static_cast<std::size_t>(s.size())); };
  sizes.symbols = all_of(g.dims.symbols);
  sizes.checks = all_of(g.dims.checks);
  sizes.laws = all_of(g.dims.laws);
  const runtime::symbol_values numbers = runtime::resolve_symbols(sizes, o.leaves, o.sizes);
  for (const auto& leaf : o.leaves) (void)known(leaf);
  translator t(*here_, g, o, numbers, values_);
  const int output = g.outputs[0];
  shape extents = g[output].result.extents;
  for (int d = 0; d < extents.order; ++d)
    extents[d] = runtime::detail::number_of(numbers, g.dims.canonical(extents[d]));
  auto made = make_recycled<tensor_state>(o.leaves.empty() ? default_device() : o.leaves[0]->where, extents,
                                          g[output].result.type, buffer());
  values_.add({made, t.name_of(output), t.extents_of(output)});
  return made;
}

namespace detail {
/// A tensor without elements.
inline std::shared_ptr<tensor_state> like(const tensor_state& t, const shape& extents) {
  return make_recycled<tensor_state>(t.where, extents, t.type, buffer());
}
inline std::vector<dimension> dimensions_in_body(const std::vector<extent>& extents) {
  std::vector<dimension> all;
  for (const extent& e : extents) all.push_back(e.is_number() ? e.number : dyn);
  return all;
}
}  // namespace detail

WEFT_DEFINE exporter::recurrence exporter::begin(const std::shared_ptr<tensor_state>& x,
                                                 const std::shared_ptr<tensor_state>& first,
                                                 shape (*state_of)(shape)) {
  known_value sequence = known(x), element{nullptr, here_->new_name("element"), sequence.extents},
              state{nullptr, here_->new_name("state"), {}};
  element.extents.erase(element.extents.begin());
  shape of_element, marked;  // `marked`: extents of the sequence except the last, as numbers below -1
  for (int d = 1; d < x->extents.order; ++d) {
    const bool is_marked =
        !sequence.extents[static_cast<std::size_t>(d)].is_number() && d + 1 < x->extents.order;
    of_element.append(x->extents[d]);
    marked.append(is_marked ? -1 - d : x->extents[d]);
  }
  const shape extents = state_of(of_element), from = state_of(marked);
  std::string start;
  if (first) {
    if (!(first->extents == extents))
      refuse<shape_error>({"weft: recurrence: the first state has the shape ", first->extents,
                           ", but later states the shape ", extents});
    state.extents = known(first).extents;
    start = known(first).name;
  } else {
    if (!sequence.extents.back().is_number())
      refuse<value_error>(
          {"weft: onnx: a recurrence over an unknown number of features needs a first state"});
    for (int d = 0; d < extents.order; ++d)
      state.extents.push_back(from[d] < -1 ? sequence.extents[static_cast<std::size_t>(-1 - from[d])]
                                           : extent{extents[d]});
    const dtype t = type_in_file(x->type);
    const std::vector<char> zero(static_cast<std::size_t>(size_of(t)));
    start = here_->apply("Expand", {here_->constant({t, {}, zero}), value_of(*here_, state.extents)});
  }
  recurrence r{std::make_shared<operator_graph>(*here_),
               here_,
               {start, sequence.name},
               x,
               detail::like(*x, of_element),
               detail::like(*x, extents)};
  r.body->add_input(state.name, type_in_file(x->type), detail::dimensions_in_body(state.extents));
  r.body->add_input(element.name, type_in_file(x->type), detail::dimensions_in_body(element.extents));
  element.state = r.element;
  state.state = r.state;
  values_.add(std::move(element));
  values_.add(std::move(state));
  here_ = r.body.get();
  return r;
}

WEFT_DEFINE std::shared_ptr<tensor_state> exporter::end(const recurrence& r,
                                                        const std::shared_ptr<tensor_state>& after) {
  const std::vector<extent>& extents = known(r.state).extents;
  const dtype t = type_in_file(after->type);
  for (const char* name : {"state_after", "state_of_sequence"})
    r.body->add_output(r.body->new_name(name), known(after).name, t, detail::dimensions_in_body(extents));
  here_ = r.outer;
  const names results = here_->scan(r.body, r.operands, {{"num_scan_inputs", std::int64_t{1}}}, 2);
  shape all{1, {r.sequence->extents[0]}};
  for (int d = 0; d < after->extents.order; ++d) all.append(after->extents[d]);
  known_value states{detail::like(*after, all), results[1], {known(r.sequence).extents[0]}};
  states.extents.insert(states.extents.end(), extents.begin(), extents.end());
  const auto made = states.state;
  values_.add(std::move(states));
  return made;
}

WEFT_DEFINE const known_value& exporter::known(const std::shared_ptr<tensor_state>& t) {
  for (std::size_t i = 0; i < options_.inputs.size(); ++i)
    if (options_.inputs[i].state == t) is_read_[i] = true;
  if (!values_.find(t.get())) {
    const std::string name = file_.new_name("constant");
    file_.add_initializer(name, io::stored(*t));
    add_known(t, name);
  }
  return *values_.find(t.get());
}

WEFT_DEFINE void exporter::add_output(const std::shared_ptr<tensor_state>& t, std::size_t outputs) {
  if (!options_.outputs.empty() && options_.outputs.size() != outputs)
    detail::refuse_outputs(options_.outputs.size(), outputs);
  std::string name = outputs == 1 ? "output" : "output_" + std::to_string(outputs_.size());
  if (options_.outputs.empty()) file_.reserve(name, "output");
  else name = options_.outputs[outputs_.size()];
  outputs_.emplace_back(std::move(name), t);
}

/// Inputs and outputs are added last, when everything about their extents is known.
WEFT_DEFINE void exporter::write(const std::string& path) {
  for (const auto& [name, t] : outputs_) {
    const known_value& v = known(t);
    file_.add_output(name, is_narrow(t->type) ? converted(file_, v.name, t->type) : v.name, t->type,
                     dimensions_of(v.extents, name));
  }
  for (std::size_t i = 0; i < options_.inputs.size(); ++i) {
    const onnx_input& input = options_.inputs[i];
    if (!is_read_[i])
      refuse<value_error>({"weft: onnx: input ", input.name, " is not an operand of the expression"});
    file_.add_input(input.name, input.state->type, dimensions_of(known(input.state).extents, input.name));
  }
  file_.write(path, options_.storage);
}

WEFT_DEFINE std::vector<dimension> exporter::dimensions_of(const std::vector<extent>& extents,
                                                           const std::string& name) const {
  std::vector<dimension> all;
  for (const extent& e : extents)
    if (e.symbol >= 0) all.push_back(values_.dimension_of(e.symbol));
    else if (e.is_number()) all.push_back(e.number);
    else all.push_back(name + "_" + std::to_string(all.size()));
  return all;
}

}  // namespace weft::onnx
