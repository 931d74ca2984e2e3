// SPDX-License-Identifier: MIT
// Definitions of <weft/onnx/translator.hpp>: ops that are several operators of ONNX.
#pragma once

#include <limits>
#include <memory>
#include <utility>

#include <weft/onnx/translator.hpp>

namespace weft::onnx {

/// Bounds given at run time are checked as in evaluation.
WEFT_DEFINE std::string translator::slice(const node& n) {
  const int dim = static_cast<int>(n.at[0]);
  const index_t start = number_of(n.at[1]), stop = number_of(n.at[2]),
                extent = number_of(spec(n, 0).extents[dim]);
  if (start > stop || stop > extent)
    refuse<shape_error>({"weft: slice: dim ", dim, " of extent ", extent, " does not have the elements from ",
                         start, " to ", stop});
  return sliced(operand(n, 0), dim, value_of(n.at[1]), value_of(n.at[2]), n.at[3]);
}

/// Zeros between elements are added in a new dim after the padded one, which is then merged into it; this
/// adds superfluous zeros after the last element, which a negative pad removes.
WEFT_DEFINE std::string translator::pad(const node& n) {
  const int dim = static_cast<int>(n.at[0]);
  const dtype t = n.result.type;
  std::string x = operand(n, 0);
  std::vector<extent> s = extents_of(spec(n, 0).extents);
  extent& e = s[static_cast<std::size_t>(dim)];
  if (const index_t step = n.at[3]; step > 1) {
    x = padded(to_.apply("Unsqueeze", {x, to_.constant({dim + 1})}), dim + 1, {0}, {step - 1}, t);
    e = combined(symbol_kind::multiply, e, {step});
    x = reshaped(x, s);
  }
  const extent before = extent_of(n.at[1]);
  return padded(
      x, dim, before,
      combined(symbol_kind::subtract, combined(symbol_kind::subtract, extent_of(n.at[2]), before), e), t);
}

/// Gathers the windows along one dim after the other, by the positions of their elements.
WEFT_DEFINE std::string translator::windows(const node& n) {
  const int order = spec(n, 0).extents.order;
  const auto size = height_width::of(n.at[0]), step = height_width::of(n.at[1]),
             inner = height_width::of(n.at[2]);
  const auto along = [&](const std::string& x, int dim, index_t count, index_t by, index_t places,
                         index_t between) {
    integers within;
    for (index_t i = 0; i < places; ++i) within.push_back(i * between);
    const std::string first = to_.apply("Unsqueeze", {range(count, by), to_.constant({1})});
    return to_.apply("Gather", {x, to_.apply("Add", {first, to_.constant(within)})},
                     {{"axis", std::int64_t{dim}}});
  };
  const shape& to = n.result.extents;
  const std::string rows =
      along(operand(n, 0), order - 2, to[order - 2], step.height, size.height, inner.height);
  const std::string both = along(rows, order, to[order - 1], step.width, size.width, inner.width);
  integers dims;
  for (int d = 0; d < order + 2; ++d) dims.push_back(d);
  std::swap(dims[static_cast<std::size_t>(order - 1)], dims[static_cast<std::size_t>(order)]);
  return permuted(both, dims);
}

WEFT_DEFINE std::string translator::sign(const node& n) {
  const dtype t = n.result.type;
  const std::string x = operand(n, 0), zero = scalar(0, t);
  return to_.apply(
      "Sub", {cast_in_file(to_.apply("Less", {zero, x}), t), cast_in_file(to_.apply("Less", {x, zero}), t)});
}

/// log(u) x / (u - 1) with u = 1 + x rounded, whose errors cancel (Kahan); where u is 1 it is x, and where x
/// is large, log(u).
WEFT_DEFINE std::string translator::log1p(const node& n) {
  const dtype t = n.result.type;
  const std::string x = operand(n, 0), one = scalar(1, t), u = to_.apply("Add", {x, one});
  const std::string above = to_.apply("Sub", {u, one}), log = to_.apply("Log", {u});
  const std::string corrected = to_.apply("Mul", {log, to_.apply("Div", {x, above})});
  const std::string small = to_.apply("Where", {to_.apply("Equal", {u, one}), x, corrected});
  return to_.apply("Where", {to_.apply("Less", {x, scalar(1e6, t)}), small, log});
}

/// (u - 1) x / log(u) with u = exp(x) rounded; where u is 1 it is x, and where x is not small, u - 1.
WEFT_DEFINE std::string translator::expm1(const node& n) {
  const dtype t = n.result.type;
  const std::string x = operand(n, 0), one = scalar(1, t), u = to_.apply("Exp", {x});
  const std::string above = to_.apply("Sub", {u, one});
  const std::string corrected = to_.apply("Mul", {above, to_.apply("Div", {x, to_.apply("Log", {u})})});
  const std::string small = to_.apply("Where", {to_.apply("Equal", {u, one}), x, corrected});
  return to_.apply("Where", {to_.apply("Less", {to_.apply("Abs", {x}), one}), small, above});
}

WEFT_DEFINE std::string translator::reduced(const std::string& x, const char* op, const integers& dims,
                                            bool keep) {
  if (dims.empty()) return x;  // without dims, operators reduce all
  return to_.apply(op, {x, to_.constant(dims)}, {{"keepdims", std::int64_t{keep}}});
}

WEFT_DEFINE std::string translator::reduction(const node& n, const char* op) {
  integers dims;
  for (index_t d = n.at[0]; d < n.at[1]; ++d) dims.push_back(d);
  return reduced(operand(n, 0), op, dims, true);
}

WEFT_DEFINE std::string translator::dims_reduction(const node& n, const char* op) {
  const op::reduced_dims set(n.at);
  integers dims;
  for (int d = 0; d < spec(n, 0).extents.order; ++d)
    if (set.contains(d)) dims.push_back(d);
  const dtype t = compute_type(n.result.type);
  return cast(reduced(operand_as(n, 0, t), op, dims, set.keep), t, n.result.type);
}

WEFT_DEFINE std::string translator::convolution(const node& n, const char* op) {
  const auto step = height_width::of(n.at[0]), padding = height_width::of(n.at[1]),
             dilation = height_width::of(n.at[2]);
  const shape& size = spec(n, 1).extents;
  attribute_list at{{"kernel_shape", integers{size[2], size[3]}},
                    {"strides", integers{step.height, step.width}},
                    {"pads", integers{padding.height, padding.width, padding.height, padding.width}},
                    {"dilations", integers{dilation.height, dilation.width}},
                    {"group", n.at[3]}};
  if (n.op == &graph::info_of<op::conv_transpose2d>) {
    const auto added = height_width::of(n.at[4]);
    at.push_back({"output_padding", integers{added.height, added.width}});
  }
  return rounded(to_.apply(op, operands(n), at), n.result.type);
}

/// Pooling operators take images of four dims, and MaxPool does not take 32-bit integers, which are computed
/// in f64.
WEFT_DEFINE std::string translator::pool2d(const node& n, const char* op) {
  const auto size = height_width::of(n.at[0]), step = height_width::of(n.at[1]),
             before = height_width::of(n.at[2]), after = height_width::of(n.at[3]);
  const dtype t = is_floating(n.result.type) ? compute_type(n.result.type) : dtype::f64;
  attribute_list at{{"kernel_shape", integers{size.height, size.width}},
                    {"strides", integers{step.height, step.width}},
                    {"pads", integers{before.height, before.width, after.height, after.width}}};
  if (n.op == &graph::info_of<op::avg_pool2d>)
    at.push_back({"count_include_pad", std::int64_t{n.at[4] != 0}});
  integers added;
  for (int d = n.result.extents.order; d < 4; ++d) added.push_back(4 - 1 - d);
  std::string x = operand_as(n, 0, t);
  if (!added.empty()) x = to_.apply("Unsqueeze", {x, to_.constant(added)});
  std::string y = to_.apply(op, {x}, at);
  if (!added.empty()) y = to_.apply("Squeeze", {y, to_.constant(added)});
  return cast(y, t, n.result.type);
}

WEFT_DEFINE std::string translator::batch_norm(const node& n) {
  const shape channels{1, {n.result.extents[1]}};
  const auto moment = [&](index_t k) {
    return reshaped(sliced(operand(n, 1), 0, to_.constant({k}), to_.constant({k + 1})), channels);
  };
  return to_.apply("BatchNormalization", {operand(n, 0), operand(n, 2), operand(n, 3), moment(0), moment(1)},
                   {{"epsilon", static_cast<float>(weft::number_of(n.at))}});
}

WEFT_DEFINE std::string translator::standardize(const node& n) {
  const shape features{1, {n.result.extents.last()}};
  return to_.apply("LayerNormalization", {operand(n, 0), expanded(scalar(1, dtype::f32), features)},
                   {{"epsilon", static_cast<float>(weft::number_of(n.at))}});
}

/// Heads with the same keys and values form a dim of their own, along which keys and values are broadcast.
WEFT_DEFINE std::string translator::attention(const node& n) {
  const shape &q = spec(n, 0).extents, &k = spec(n, 1).extents;
  std::string queries = permuted(operand(n, 0), {0, 2, 1, 3}), keys = permuted(operand(n, 1), {0, 2, 3, 1}),
              values = permuted(operand(n, 2), {0, 2, 1, 3});
  const bool in_groups = g_.dims.canonical(q[2]) != g_.dims.canonical(k[2]);
  if (in_groups) {
    const extent group = combined(symbol_kind::divide, extent_of(q[2]), extent_of(k[2]));
    const auto at = [&](index_t e) { return extent_of(e); };
    queries = reshaped(queries, {at(q[0]), at(k[2]), group, at(q[1]), at(q[3])});
    keys = to_.apply("Unsqueeze", {keys, to_.constant({2})});
    values = to_.apply("Unsqueeze", {values, to_.constant({2})});
  }
  const dtype t = compute_type(n.result.type);
  const std::string width = cast(scalar_of(q[3]), dtype::i64, t);
  std::string scores = to_.apply("Div", {to_.apply("MatMul", {queries, keys}), to_.apply("Sqrt", {width})});
  if (n.at[0]) {
    const std::string last =
        to_.apply("Unsqueeze", {to_.apply("Add", {range(q[1]), scalar_of(n.at[1])}), to_.constant({1})});
    scores = to_.apply("Where", {to_.apply("LessOrEqual", {range(k[1]), last}), scores,
                                 scalar(-std::numeric_limits<double>::infinity(), t)});
  }
  std::string y = to_.apply("MatMul", {to_.apply("Softmax", {scores}), values});
  if (in_groups) y = reshaped(y, shape{4, {q[0], q[2], q[1], q[3]}});
  return rounded(permuted(y, {0, 2, 1, 3}), n.result.type);
}

WEFT_DEFINE std::string translator::ordered(const node& n, const std::string& count, bool descending,
                                            int which) {
  const dtype t = compute_type(spec(n, 0).type);
  const names both = to_.apply_all(
      "TopK", {operand_as(n, 0, t), count},
      {{"axis", n.at[0]}, {"largest", std::int64_t{descending}}, {"sorted", std::int64_t{1}}}, 2);
  return which == 0 ? cast(both[0], t, spec(n, 0).type) : both[1];
}

WEFT_DEFINE std::string translator::ordered(const node& n, int which) {
  return ordered(n, value_of(n.result.extents[static_cast<int>(n.at[0])]), n.at[1] == 1, which);
}

/// ArgMax and ArgMin have no kernels for i64.
WEFT_DEFINE std::string translator::extremum_position(const node& n) {
  const dtype t = compute_type(spec(n, 0).type);
  if (t == dtype::i64)
    return to_.apply("Squeeze", {ordered(n, to_.constant({1}), n.at[1] == 0, 1), to_.constant({n.at[0]})});
  return to_.apply(n.at[1] == 0 ? "ArgMax" : "ArgMin", {operand_as(n, 0, t)},
                   {{"axis", n.at[0]}, {"keepdims", std::int64_t{0}}});
}

WEFT_DEFINE std::string translator::cumprod(const node& n) {
  const dtype t = type_in_file(n.result.type);
  const int dim = static_cast<int>(n.at[0]);
  shape rest;
  for (int d = 0; d < n.result.extents.order; ++d)
    if (d != dim) rest.append(n.result.extents[d]);
  const std::vector<dimension> unknown(static_cast<std::size_t>(rest.order), dimension(dyn));
  auto body = std::make_shared<operator_graph>(to_);
  const std::string before = body->new_name("state"), element = body->new_name("element");
  body->add_input(before, t, unknown);
  body->add_input(element, t, unknown);
  const std::string product = body->apply("Mul", {before, element});
  body->add_output(body->new_name("state_after"), product, t, unknown);
  body->add_output(body->new_name("state_of_sequence"), n.at[1] ? before : product, t, unknown);
  return to_.scan(std::move(body),
                  {expanded(scalar(1, n.result.type), rest), operand_as(n, 0, n.result.type)},
                  {{"num_scan_inputs", std::int64_t{1}},
                   {"scan_input_axes", integers{dim}},
                   {"scan_output_axes", integers{dim}}},
                  2)[1];
}

WEFT_DEFINE std::string translator::index_add(const node& n) {
  const std::string rows = to_.apply("Unsqueeze", {index(n, 0), to_.constant({-1})});
  return to_.apply("ScatterND", {zeros(n.result.type, n.result.extents), rows, operand(n, 1)},
                   {{"reduction", "add"}});
}

/// The op that reads the indices checks their range; an ignored index becomes -1.
WEFT_DEFINE std::string translator::checked_index(const node& n) {
  const std::string x = operand_as(n, 0, dtype::i32);
  if (n.at.count < 4 || n.at[3] != 1) return x;
  const std::string ignored = to_.apply("Equal", {operand_as(n, 0, dtype::i64), scalar(n.at[2], dtype::i64)});
  return to_.apply("Where", {ignored, scalar(-1, dtype::i32), x});
}

}  // namespace weft::onnx
