// SPDX-License-Identifier: MIT
// Definitions of <weft/onnx/translator.hpp>: extents, types and the choice of operators. The ops that are
// several operators are in translator_ops.ipp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <weft/onnx/translator.hpp>

namespace weft::onnx {

namespace detail {

template <class Op>
inline constexpr int number_of = op::number_of_op<Op>;

struct plain_operator {
  int op;  // number in the list of ops
  const char* name;
};
/// Element-wise ops that are one operator, on operands that have been converted.
inline constexpr plain_operator elementwise_operators[] = {
    {number_of<op::add>, "Add"},         {number_of<op::subtract>, "Sub"},
    {number_of<op::multiply>, "Mul"},    {number_of<op::divide>, "Div"},
    {number_of<op::negate>, "Neg"},      {number_of<op::maximum>, "Max"},
    {number_of<op::minimum>, "Min"},     {number_of<op::pow>, "Pow"},
    {number_of<op::exp>, "Exp"},         {number_of<op::log>, "Log"},
    {number_of<op::sqrt>, "Sqrt"},       {number_of<op::sin>, "Sin"},
    {number_of<op::cos>, "Cos"},         {number_of<op::atan>, "Atan"},
    {number_of<op::tanh>, "Tanh"},       {number_of<op::erf>, "Erf"},
    {number_of<op::abs>, "Abs"},         {number_of<op::floor>, "Floor"},
    {number_of<op::round>, "Round"},     {number_of<op::equal>, "Equal"},
    {number_of<op::less>, "Less"},       {number_of<op::less_equal>, "LessOrEqual"},
    {number_of<op::logical_and>, "And"}, {number_of<op::logical_or>, "Or"},
    {number_of<op::logical_not>, "Not"}, {number_of<op::where>, "Where"}};
/// Formulas of one floating operand that are one operator.
inline constexpr plain_operator floating_operators[] = {{number_of<op::relu>, "Relu"},
                                                        {number_of<op::sigmoid>, "Sigmoid"},
                                                        {number_of<op::softplus>, "Softplus"}};
/// The same along the dim v0.
inline constexpr plain_operator operators_along_dim[] = {{number_of<op::softmax>, "Softmax"},
                                                         {number_of<op::log_softmax>, "LogSoftmax"}};

template <std::size_t N>
constexpr const char* find_operator(const plain_operator (&all)[N], int op) {
  for (const plain_operator& o : all)
    if (o.op == op) return o.name;
  return nullptr;
}

}  // namespace detail

WEFT_DEFINE std::string converted(operator_graph& in, const std::string& x, dtype to) {
  return in.apply("Cast", {x}, {{"to", number_of_type(to)}});
}

WEFT_DEFINE std::string value_of(operator_graph& in, const std::vector<extent>& all) {
  names parts;
  for (std::size_t i = 0; i < all.size();) {
    integers known;
    while (i < all.size() && all[i].is_number()) known.push_back(all[i++].number);
    if (!known.empty() || all.empty()) parts.push_back(in.constant(known));
    if (i < all.size()) parts.push_back(all[i++].value);
  }
  if (parts.empty()) return in.constant(integers{});
  return parts.size() == 1 ? parts[0] : in.apply("Concat", parts, {{"axis", std::int64_t{0}}});
}

WEFT_DEFINE int known_values::symbol(const std::string& name, const std::string& otherwise) {
  const int next = static_cast<int>(symbols_.size());
  if (!name.empty())
    if (const auto [known, is_new] = by_name_.emplace(name, next); !is_new) return known->second;
  symbols_.push_back({name.empty() ? otherwise : name, !name.empty(), next, {}});
  return next;
}

WEFT_DEFINE int known_values::representative(int symbol) const {
  while (symbols_[static_cast<std::size_t>(symbol)].same_as != symbol)
    symbol = symbols_[static_cast<std::size_t>(symbol)].same_as;
  return symbol;
}

WEFT_DEFINE void known_values::unify(int a, int b) {
  int first = std::min(representative(a), representative(b)),
      second = std::max(representative(a), representative(b));
  if (first == second) return;
  const auto is_given = [&](int symbol) { return symbols_[static_cast<std::size_t>(symbol)].is_given; };
  if (is_given(second) && !is_given(first)) std::swap(first, second);
  symbols_[static_cast<std::size_t>(second)].same_as = first;
  if (const auto number = symbols_[static_cast<std::size_t>(second)].number) fix(first, *number);
}

WEFT_DEFINE void known_values::fix(int symbol, index_t number) {
  symbols_[static_cast<std::size_t>(representative(symbol))].number = number;
}

WEFT_DEFINE dimension known_values::dimension_of(int symbol) const {
  const symbol_entry& s = symbols_[static_cast<std::size_t>(representative(symbol))];
  return s.number ? dimension(*s.number) : dimension(s.name);
}

WEFT_DEFINE const known_value* known_values::find(const tensor_state* t) const {
  const auto found = values_.find(t);
  return found == values_.end() ? nullptr : &found->second;
}

WEFT_DEFINE bool has_operator(const graph::compute_graph& g, const graph::node& n) {
  const dtype from = g[n.operand[0]].result.type;
  switch (n.op->number) {
    case detail::number_of<op::matmul>:
    case detail::number_of<op::conv2d>:
    case detail::number_of<op::conv_transpose2d>:
    case detail::number_of<op::max_pool2d>:
    case detail::number_of<op::dropout>:  // refused under their own names
    case detail::number_of<op::bernoulli>:
    case detail::number_of<op::multinomial>:
    case detail::number_of<op::sum>:
    case detail::number_of<op::mean>:
    case detail::number_of<op::amax>:
    case detail::number_of<op::amin>:
    case detail::number_of<op::sort>:
    case detail::number_of<op::topk>: return true;
    case detail::number_of<op::avg_pool2d>:  // of zeros around, or without any
      return n.at[2] == n.at[3] || n.at[4] == 0;
    case detail::number_of<op::standardize>:  // epsilons are f32
    case detail::number_of<op::batch_norm>:
      for (int k = 0; k < n.operands; ++k)
        if (g[n.operand[k]].result.type != dtype::f32) return false;
      return true;
    default:
      return (detail::find_operator(detail::floating_operators, n.op->number) ||
              detail::find_operator(detail::operators_along_dim, n.op->number)) &&
             from == n.result.type && is_floating(from);
  }
}

WEFT_DEFINE graph::compute_graph with_operators(const graph::compute_graph& g) {
  return graph::expanded(graph::with_canonical_extents(g), has_operator);
}

WEFT_DEFINE translator::translator(operator_graph& to, const graph::compute_graph& g,
                                   const runtime::operands& o, const runtime::symbol_values& numbers,
                                   known_values& values)
    : to_(to),
      g_(g),
      operands_(o),
      numbers_(numbers),
      values_(values),
      names_(static_cast<std::size_t>(g.size())) {
  note_symbols();
}

/// Translates operands first and without recursion, because graphs may be long chains.
WEFT_DEFINE const std::string& translator::name_of(int i) {
  const auto known = [&](int k) -> std::string& { return names_[static_cast<std::size_t>(k)]; };
  std::vector<int> open{i};
  while (!open.empty()) {
    const int at = open.back();
    const std::size_t before = open.size();
    for (int k = 0; known(at).empty() && k < g_[at].operands; ++k)
      if (known(g_[at].operand[k]).empty()) open.push_back(g_[at].operand[k]);
    if (open.size() > before) continue;
    if (known(at).empty()) known(at) = translate(g_[at]);
    open.pop_back();
  }
  return known(i);
}

WEFT_DEFINE void translator::refuse_op(const node& n, const char* why) const {
  refuse<value_error>({"weft: onnx: op ", n.op->name, " cannot be exported: ", why});
}

WEFT_DEFINE bool translator::is_zero(const node& n, int k) const {
  const node& from = g_[n.operand[k]];
  return from.op->number == detail::number_of<op::argument> &&
         operands_.numbers[static_cast<std::size_t>(from.at[0])].as<double>() == 0;
}

WEFT_DEFINE void translator::refuse_random(const node& n) const {
  refuse_op(n, "its numbers are random; layers have no dropout after set_training(model, false)");
}

WEFT_DEFINE names translator::operands(const node& n) {
  names all;
  for (int k = 0; k < n.operands; ++k) all.push_back(operand(n, k));
  return all;
}

WEFT_DEFINE std::string translator::scalar(any_number x, dtype t) {
  io::stored_tensor value{type_in_file(t), {}, {}};
  visit_type(value.type, [&]<class T>(T) {
    T element{};
    if constexpr (std::is_floating_point_v<T>) element = x.as<T>();
    else if constexpr (std::is_integral_v<T>) element = static_cast<T>(x.bits);
    value.bytes.resize(sizeof(T));
    std::memcpy(value.bytes.data(), &element, sizeof(T));
  });
  return to_.constant(std::move(value));
}

WEFT_DEFINE std::string translator::rounded(const std::string& x, dtype t) {
  return is_narrow(t) ? cast_in_file(cast_in_file(x, t), dtype::f32) : x;
}

/// ONNX does not define conversions of values that an integer type cannot hold; op cast does
/// (base/dtype.hpp).
WEFT_DEFINE std::string translator::integer_of_floating(const std::string& x, dtype from, dtype to) {
  const auto [low, most, end] = visit_type(to, []<class T>(T) {
    using limits = std::numeric_limits<T>;
    if constexpr (limits::is_integer)
      return std::array{static_cast<double>(limits::min()), static_cast<double>(limits::max()),
                        std::ldexp(1.0, limits::digits)};
    else return std::array{0.0, 0.0, 0.0};
  });
  const bool is_exact = from == dtype::f64 ? most < end : static_cast<float>(most) < static_cast<float>(end);
  const double below = from == dtype::f64
                           ? std::nextafter(end, 0.0)
                           : static_cast<double>(std::nextafter(static_cast<float>(end), 0.0f));
  const std::string number = to_.apply("Where", {to_.apply("IsNaN", {x}), scalar(0.0, from), x});
  const std::string inside =
      to_.apply("Clip", {number, scalar(low, from), scalar(is_exact ? most : below, from)});
  const std::string converted = cast_in_file(inside, to);
  if (is_exact) return converted;
  const index_t largest =
      to == dtype::i64 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int32_t>::max();
  return to_.apply("Where", {to_.apply("Less", {number, scalar(end, from)}), converted, scalar(largest, to)});
}

WEFT_DEFINE std::string translator::cast(const std::string& x, dtype from, dtype to) {
  if (from == to) return x;
  const dtype here = type_in_file(from);
  if (is_narrow(to)) return rounded(here == dtype::f32 ? x : cast_in_file(x, dtype::f32), to);
  if (here == to) return x;
  const bool is_integer = !is_floating(to) && to != dtype::boolean;
  return is_floating(from) && is_integer ? integer_of_floating(x, here, to) : cast_in_file(x, to);
}

WEFT_DEFINE std::string translator::index(const node& n, int k) {
  const dtype t = spec(n, k).type;
  return t == dtype::u8 ? cast(operand(n, k), t, dtype::i64) : operand(n, k);
}

/// Records which extents of inputs are numbers, or are equal, because an op or another operand determines
/// them.
WEFT_DEFINE void translator::note_symbols() {
  for (const node& n : g_.nodes) {
    if (n.op != &graph::info_of<op::leaf>) continue;
    for (int d = 0; d < n.result.extents.order; ++d) {
      const extent in_graph = extent_of(n.result.extents[d]),
                   here = value_of_leaf(n.at[0]).extents[static_cast<std::size_t>(d)];
      if (here.symbol >= 0 && in_graph.symbol >= 0) values_.unify(here.symbol, in_graph.symbol);
      else if (here.symbol >= 0 && in_graph.is_number()) values_.fix(here.symbol, in_graph.number);
      else if (in_graph.symbol >= 0 && here.is_number()) values_.fix(in_graph.symbol, here.number);
    }
  }
}

WEFT_DEFINE extent translator::combined(symbol_kind how, const extent& a, const extent& b) {
  const bool known = a.is_number() && b.is_number();
  const auto computed = [&](const char* op, index_t number) -> extent {
    return known ? extent{number} : extent{0, to_.apply(op, {value_of({a}), value_of({b})})};
  };
  switch (how) {
    case symbol_kind::add: return computed("Add", a.number + b.number);
    case symbol_kind::subtract: return computed("Sub", a.number - b.number);
    case symbol_kind::multiply: return computed("Mul", wrapping_product(a.number, b.number));
    default: return computed("Div", known ? a.number / b.number : 0);
  }
}

WEFT_DEFINE extent translator::extent_of(index_t e) {
  e = g_.dims.canonical(e);
  if (e >= 0) return {e};
  if (const auto known = extents_.find(e); known != extents_.end()) return known->second;
  const symbol s = g_.dims.formula(e);
  extent found;
  switch (s.kind) {
    case symbol_kind::leaf_extent: found = value_of_leaf(s.a).extents[static_cast<std::size_t>(s.b)]; break;
    case symbol_kind::given: found = {number_of(e)}; break;
    case symbol_kind::add:
    case symbol_kind::subtract:
    case symbol_kind::multiply:
    case symbol_kind::divide: found = combined(s.kind, extent_of(s.a), extent_of(s.b)); break;
    case symbol_kind::divide_up: {
      const extent by = extent_of(s.b), rest = combined(symbol_kind::subtract, by, {1});
      found = combined(symbol_kind::divide, combined(symbol_kind::add, extent_of(s.a), rest), by);
      break;
    }
    default: refuse<value_error>({"weft: onnx: an expression of divided layers cannot be exported"});
  }
  extents_[e] = found;
  return found;
}

WEFT_DEFINE std::vector<extent> translator::extents_of(const shape& s) {
  std::vector<extent> all;
  for (int d = 0; d < s.order; ++d) all.push_back(extent_of(s[d]));
  return all;
}

WEFT_DEFINE std::string translator::scalar_of(index_t e) {
  const extent x = extent_of(e);
  if (x.is_number()) return scalar(x.number, dtype::i64);
  return to_.apply("Squeeze", {x.value, to_.constant(integers{0})});
}

WEFT_DEFINE std::string translator::reshaped(const std::string& x, const std::vector<extent>& to) {
  bool may_be_empty = false;  // otherwise 0 stands for the operand's extent
  for (const extent& e : to) may_be_empty = may_be_empty || !e.is_number() || e.number == 0;
  attribute_list at;
  if (may_be_empty) at.push_back({"allowzero", std::int64_t{1}});
  return to_.apply("Reshape", {x, value_of(to)}, at);
}

WEFT_DEFINE std::string translator::permuted(const std::string& x, const integers& order) {
  return to_.apply("Transpose", {x}, {{"perm", order}});
}

WEFT_DEFINE std::string translator::expanded(const std::string& x, const shape& to) {
  return to_.apply("Expand", {x, value_of(extents_of(to))});
}

WEFT_DEFINE std::string translator::sliced(const std::string& x, int dim, const std::string& start,
                                           const std::string& stop, index_t step) {
  return to_.apply("Slice", {x, start, stop, to_.constant({dim}), to_.constant({step})});
}

WEFT_DEFINE std::string translator::padded(const std::string& x, int dim, const extent& before,
                                           const extent& after, dtype t) {
  return to_.apply("Pad", {x, value_of({before, after}), scalar(0, t), to_.constant({dim})});
}

WEFT_DEFINE std::string translator::range(index_t count, index_t step) {
  std::string end = scalar_of(count);
  if (step != 1) end = to_.apply("Mul", {end, scalar(step, dtype::i64)});
  return to_.apply("Range", {scalar(0, dtype::i64), end, scalar(step, dtype::i64)});
}

WEFT_DEFINE std::string translator::translate(const node& n) {
  if (n.op->kind == op::op_kind::composed) return composed(n);
  if (n.op->kind == op::op_kind::native) return native(n);
  if (const char* name = detail::find_operator(detail::elementwise_operators, n.op->number))
    return to_.apply(name, operands(n));
  switch (n.op->number) {
    case detail::number_of<op::leaf>: return value_of_leaf(n.at[0]).name;
    case detail::number_of<op::detach>: return operand(n, 0);
    case detail::number_of<op::argument>:
      return scalar(operands_.numbers[static_cast<std::size_t>(n.at[0])], n.result.type);
    case detail::number_of<op::constant>: return scalar(any_number{n.at[0]}, n.result.type);
    case detail::number_of<op::extent_value>: return cast(scalar_of(n.at[0]), dtype::i64, n.result.type);
    case detail::number_of<op::coordinate>: return cast(range(n.at[0]), dtype::i64, n.result.type);
    case detail::number_of<op::cast>: return operand_as(n, 0, n.result.type);
    case detail::number_of<op::contiguous>: return operand(n, 0);
    case detail::number_of<op::rsqrt>: return to_.apply("Reciprocal", {to_.apply("Sqrt", {operand(n, 0)})});
    case detail::number_of<op::log1p>: return log1p(n);
    case detail::number_of<op::expm1>: return expm1(n);
    case detail::number_of<op::sign>: return sign(n);
    case detail::number_of<op::reduce_sum>: return reduction(n, "ReduceSum");
    case detail::number_of<op::reduce_max>: return reduction(n, "ReduceMax");
    case detail::number_of<op::reduce_min>: return reduction(n, "ReduceMin");
    case detail::number_of<op::reshape>: return reshaped(operand(n, 0), n.result.extents);
    case detail::number_of<op::permute>:
      return permuted(operand(n, 0), integers(n.at.v, n.at.v + n.at.count));
    case detail::number_of<op::expand>: return expanded(operand(n, 0), n.result.extents);
    case detail::number_of<op::slice>: return slice(n);
    case detail::number_of<op::flip>:
      return sliced(operand(n, 0), static_cast<int>(n.at[0]), to_.constant({-1}),
                    to_.constant({std::numeric_limits<std::int64_t>::min()}), -1);
    case detail::number_of<op::windows>: return windows(n);
    case detail::number_of<op::pad>: return pad(n);
    case detail::number_of<op::concat>: return to_.apply("Concat", operands(n), {{"axis", n.at[0]}});
    case detail::number_of<op::contract>: return rounded(to_.apply("MatMul", operands(n)), n.result.type);
    default: refuse_op(n, "it has no counterpart in ONNX");
  }
}

WEFT_DEFINE std::string translator::composed(const node& n) {
  switch (n.op->number) {
    case detail::number_of<op::matmul>: return rounded(to_.apply("MatMul", operands(n)), n.result.type);
    case detail::number_of<op::conv2d>: return convolution(n, "Conv");
    case detail::number_of<op::conv_transpose2d>: return convolution(n, "ConvTranspose");
    case detail::number_of<op::max_pool2d>:
      if (n.result.type == dtype::i64) refuse_op(n, "MaxPool does not support i64");
      return pool2d(n, "MaxPool");
    case detail::number_of<op::avg_pool2d>: return pool2d(n, "AveragePool");
    case detail::number_of<op::batch_norm>: return batch_norm(n);
    case detail::number_of<op::standardize>: return standardize(n);
    case detail::number_of<op::sum>: return dims_reduction(n, "ReduceSum");
    case detail::number_of<op::mean>: return dims_reduction(n, "ReduceMean");
    case detail::number_of<op::amax>: return dims_reduction(n, "ReduceMax");
    case detail::number_of<op::amin>: return dims_reduction(n, "ReduceMin");
    case detail::number_of<op::sort>:
    case detail::number_of<op::topk>: return ordered(n, 0);
    case detail::number_of<op::dropout>:
      if (!is_zero(n, 1)) refuse_random(n);  // operand 1 is the rate, 0 after set_training(model, false)
      return operand_as(n, 0, n.result.type);
    case detail::number_of<op::bernoulli>:
    case detail::number_of<op::multinomial>: refuse_random(n);
    default:
      if (const char* name = detail::find_operator(detail::operators_along_dim, n.op->number))
        return rounded(to_.apply(name, operands(n), {{"axis", n.at[0]}}), n.result.type);
      return rounded(to_.apply(detail::find_operator(detail::floating_operators, n.op->number), operands(n)),
                     n.result.type);
  }
}

WEFT_DEFINE std::string translator::native(const node& n) {
  switch (n.op->number) {
    case detail::number_of<op::attention>: return attention(n);
    case detail::number_of<op::index_select>:
      return to_.apply("Gather", {operand(n, 0), index(n, 1)}, {{"axis", std::int64_t{0}}});
    case detail::number_of<op::gather>:
      return to_.apply("GatherElements", {operand(n, 0), index(n, 1)}, {{"axis", n.at[0]}});
    case detail::number_of<op::scatter_sum>:
      return to_.apply("ScatterElements",
                       {zeros(n.result.type, n.result.extents), index(n, 0), operand(n, 1)},
                       {{"axis", n.at[0]}, {"reduction", "add"}});
    case detail::number_of<op::index_add>: return index_add(n);
    case detail::number_of<op::checked_index>: return checked_index(n);
    case detail::number_of<op::arg_extremum>: return extremum_position(n);
    case detail::number_of<op::argsort>:
    case detail::number_of<op::argtopk>: return ordered(n, 1);
    case detail::number_of<op::cumsum>:
      return to_.apply("CumSum", {operand_as(n, 0, n.result.type), scalar(n.at[0], dtype::i64)},
                       {{"reverse", n.at[1]}});
    case detail::number_of<op::cumprod>: return cumprod(n);
    case detail::number_of<op::tap>:
    case detail::number_of<op::sum_over_positions>: return operand(n, 0);
    case detail::number_of<op::uniform_like>: refuse_random(n);
    default: refuse_op(n, n.op->number < 0 ? "it is not an op of weft" : "it has no counterpart in ONNX");
  }
}

}  // namespace weft::onnx
