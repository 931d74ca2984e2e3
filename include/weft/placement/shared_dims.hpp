// SPDX-License-Identifier: MIT
// Which dims of a node's operands and results are the same index of its formula. If ranks divide such an
// index, each rank computes the op on its parts; an index that no result has is summed, so that each rank has
// a summand.
//
// For native ops and products, `divides` states the indices as in einsum: a letter is an index, '.' a dim
// that must be whole, a capital any number of dims. "A!" stands for dims of which dim number v0 must be
// whole, "A-" for the dims without dim number v0. Operands and results are separated by blanks:
//
//   "Bmk Bkn -> Bmn"      // matmul: k is summed
//   "vR I -> IR"          // rows of a table by index
#pragma once

#include <weft/graph/rewrite.hpp>

namespace weft::graph {

/// An index of the formula of a node: the dim of each operand and result that has it, -1 for none.
struct shared_dim {
  int operand[max_operands];
  int result[max_results];

  constexpr shared_dim() {
    for (int& d : operand) d = -1;
    for (int& d : result) d = -1;
  }
};

namespace detail {

/// Reads `divides` for operands with these numbers of dims and for the attributes `at`.
class divides_reader {
 public:
  constexpr divides_reader(const char* divides, const attributes& at, const sequence<int>& orders)
      : divides_(divides), at_(at), orders_(orders) {}

  constexpr sequence<shared_dim> read() {
    int tensor = 0;
    bool results = false;
    for (const char* text = divides_; *text;) {
      const char* end = text;
      while (*end && *end != ' ') ++end;
      if (*text == '-') {
        results = true;
        tensor = 0;
      } else {
        read_tensor(text, end, tensor++, results);
      }
      text = *end ? end + 1 : end;
    }
    return found_;
  }

 private:
  struct letter {
    char name;
    int first, count;  // in found_
  };

  static constexpr bool is_group(char c) { return c >= 'A' && c <= 'Z'; }
  constexpr int known(char name) const {
    for (int i = 0; i < letters_.size(); ++i)
      if (letters_[i].name == name) return i;
    return -1;
  }
  /// The number of dims of a group at its first use: the dims that the rest of the tensor leaves.
  constexpr int rest_of(const char* text, const char* end, int tensor) const {
    int others = 0;
    for (const char* c = text; c < end; ++c)
      if (!is_group(*c)) others += *c != '!' && *c != '-';
      else if (const int l = known(*c); l >= 0) others += letters_[l].count - (c + 1 < end && c[1] == '-');
    return orders_[tensor] - others;
  }
  constexpr int letter_of(char name, int count) {
    if (const int l = known(name); l >= 0) return l;
    letters_.push_back({name, found_.size(), count});
    for (int k = 0; k < count; ++k) found_.push_back(shared_dim());
    return letters_.size() - 1;
  }
  constexpr void read_tensor(const char* text, const char* end, int tensor, bool results) {
    int dim = 0;
    for (const char* c = text; c < end; ++c) {
      if (*c == '.') ++dim;
      if (*c == '.' || *c == '!' || *c == '-') continue;
      const bool group = is_group(*c);
      const letter l = letters_[letter_of(*c, group && known(*c) < 0 ? rest_of(text, end, tensor) : 1)];
      const char mark = c + 1 < end ? c[1] : ' ';
      for (int k = 0; k < l.count; ++k) {
        const bool marked = group && (mark == '!' || mark == '-') && at_[0] == k;
        if (!marked) (results ? found_[l.first + k].result : found_[l.first + k].operand)[tensor] = dim;
        dim += !(marked && mark == '-');
      }
    }
  }

  const char* divides_;
  const attributes& at_;
  const sequence<int>& orders_;
  sequence<letter> letters_;
  sequence<shared_dim> found_;
};

/// The dims of operand and result that are aligned at the right, as broadcasting does; extents of 1 have
/// none.
constexpr sequence<shared_dim> aligned_dims(const compute_graph& g, const node& n) {
  const int order = n.result.extents.order;
  sequence<shared_dim> found(order, shared_dim());
  for (int d = 0; d < order; ++d) {
    found[d].result[0] = d;
    for (int k = 0; k < n.operands; ++k) {
      const shape& s = g[n.operand[k]].result.extents;
      const int own = d - (order - s.order);
      if (own >= 0 && s[own] != 1) found[d].operand[k] = own;
    }
  }
  return found;
}

}  // namespace detail

/// Whether an op takes, adds or reverses elements along a single dim, its attribute v0.
constexpr bool moves_along_one(const op_info& o) {
  return &o == &info_of<op::slice> || &o == &info_of<op::flip> || &o == &info_of<op::pad> ||
         &o == &info_of<op::concat>;
}

/// The indices of the formula of node `i`. Dims that are missing here and are not dims of the result need a
/// rule of their own: the merged dims of a reshape, the dim of a slice, pad or concat.
constexpr sequence<shared_dim> shared_dims(const compute_graph& g, int i) {
  const node& n = g[i];
  if (n.op->divides) {
    sequence<int> orders;
    for (int k = 0; k < n.operands; ++k) orders.push_back(g[n.operand[k]].result.extents.order);
    return detail::divides_reader(n.op->divides, n.at, orders).read();
  }
  if (n.op->kind == op::op_kind::native || n.op == &info_of<op::reshape>) return {};
  if (n.op == &info_of<op::permute>) {
    sequence<shared_dim> found(n.at.count, shared_dim());
    for (int d = 0; d < n.at.count; ++d) {
      found[d].result[0] = d;
      found[d].operand[0] = normalized_dim(n.at[d], n.at.count);
    }
    return found;
  }
  sequence<shared_dim> found = detail::aligned_dims(g, n);
  if (moves_along_one(*n.op)) found[normalized_dim(n.at[0], n.result.extents.order)] = shared_dim();
  if (n.op->kind == op::op_kind::reduce)
    for (index_t d = n.at[0]; d < n.at[1]; ++d) found[static_cast<int>(d)].result[0] = -1;
  return found;
}

}  // namespace weft::graph
