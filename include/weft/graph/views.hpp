// SPDX-License-Identifier: MIT
// Views that readers can access by strides, and copies where that is not possible.
//
// A reshape is a view if the dims it merges are contiguous in memory, as shape/layout.hpp decides.
#pragma once

#include <weft/graph/rewrite.hpp>
#include <weft/shape/layout.hpp>

namespace weft::graph {

/// The kind of view that `n` is; none if it is not a view.
constexpr view_kind view_kind_of(const node& n) {
  if (n.op == &info_of<op::reshape>) return view_kind::reshape;
  if (n.op == &info_of<op::permute>) return view_kind::permute;
  if (n.op == &info_of<op::expand>) return view_kind::expand;
  if (n.op == &info_of<op::slice>) return view_kind::slice;
  if (n.op == &info_of<op::windows>) return view_kind::windows;
  return n.op == &info_of<op::flip> ? view_kind::flip : view_kind::none;
}

/// The layouts of the views of a graph. All other values are contiguous, and so are reshapes of them.
class view_layouts {
 public:
  /// Copies the symbols: those used for strides are not part of the program.
  constexpr explicit view_layouts(const symbol_table& dims) : dims_(dims) {}

  /// A view of a value of `g` that is not yet a node.
  struct description {
    bool legal = true, is_contiguous = true;
    layout at{};
  };
  constexpr description describe(const compute_graph& g, const node& n) {
    description d;
    const view_kind kind = view_kind_of(n);
    if (kind == view_kind::reshape && is_noted_contiguous(n.operand[0])) return d;
    d.at = layout_of(g, n.operand[0]);
    d.legal = make_view(dims_, kind, n.at, dims_.canonical(n.result.extents), d.at);
    d.is_contiguous = is_contiguous(dims_, d.at);
    return d;
  }
  constexpr void note(int id, const description& d) {
    while (number_.size() <= id) number_.push_back(contiguous);
    if (d.is_contiguous || number_[id] != contiguous) return;
    number_[id] = layouts_.size();
    layouts_.push_back(d.at);
  }

  /// Whether a row of the value `id` can be read as contiguous memory.
  constexpr bool has_unit_inner_stride(int id) const {
    return is_noted_contiguous(id) || weft::has_unit_inner_stride(layouts_[number_[id]]);
  }

 private:
  static constexpr int contiguous = -1;

  constexpr bool is_noted_contiguous(int id) const {
    return id >= number_.size() || number_[id] == contiguous;
  }

  constexpr layout layout_of(const compute_graph& g, int id) {
    if (!is_noted_contiguous(id)) return layouts_[number_[id]];
    return contiguous_layout(dims_, dims_.canonical(g[id].result.extents));
  }

  symbol_table dims_;
  sequence<int> number_;  // by node: number of its layout
  sequence<layout> layouts_;
};

/// The layouts of all views of `g`, all of which must be legal.
constexpr view_layouts layouts_of(const compute_graph& g) {
  view_layouts layouts(g.dims);
  for (int i = 0; i < g.size(); ++i)
    if (g[i].op->kind == op::op_kind::view) layouts.note(i, layouts.describe(g, g[i]));
  return layouts;
}

/// The node of which `id` is a reshape, directly or through other reshapes; `id` if it is not a reshape.
constexpr int reshaped_from(const compute_graph& g, int id) {
  while (g[id].op == &info_of<op::reshape>) id = g[id].operand[0];
  return id;
}

namespace detail {

/// `g` with copies inserted so that every view has an operand in memory, and strides can express every
/// reshape.
constexpr compute_graph with_legal_reshapes(const compute_graph& g) {
  view_layouts layouts(g.dims);
  return rewritten(g, [&](compute_graph& to, node n) {
    if (n.op->kind != op::op_kind::view) return to.intern(n).id;
    const auto copy_operand = [&] {
      n.operand[0] = to.apply<op::contiguous>({}, value{&to, n.operand[0]}).id;
    };
    const node& from = to[n.operand[0]];
    if (from.op == &info_of<op::coordinate> || from.op->kind == op::op_kind::constant) copy_operand();
    view_layouts::description d = layouts.describe(to, n);
    if (!d.legal) {
      copy_operand();
      d = layouts.describe(to, n);
    }
    const int id = to.intern(n).id;
    layouts.note(id, d);
    return id;
  });
}

}  // namespace detail

/// `g` in which every reshape can be read in place and every output has its own contiguous memory, possibly
/// reshaped.
constexpr compute_graph with_legal_views(const compute_graph& g) {
  compute_graph result = detail::with_legal_reshapes(g);
  sequence<bool> taken(result.size(), false);
  for (int& o : result.outputs) {
    if (o < 0) continue;
    const int base = reshaped_from(result, o);
    const node& n = result[base];
    const bool has_memory = n.op->kind != op::op_kind::view && n.op->kind != op::op_kind::leaf &&
                            n.op->kind != op::op_kind::constant && n.op != &info_of<op::coordinate>;
    if (has_memory && !taken[base]) {
      taken[base] = true;
      continue;
    }
    node copy;  // appended, not interned, so that each output owns its elements
    copy.op = &info_of<op::contiguous>;
    copy.result = result[o].result;
    copy.operand[0] = o;
    copy.operands = 1;
    o = result.append(copy).id;
  }
  return result;
}

}  // namespace weft::graph
