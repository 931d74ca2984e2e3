// SPDX-License-Identifier: MIT
// Evaluates a graph by definition, with plain loops in double over its list of nodes, for tests of passes.
//
// It shares no code with passes, layouts or kernels. Elements of all types are doubles; a cast to a
// floating type changes nothing, so a pass that only changes types must not change values.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <weft/graph/graph.hpp>

namespace weft::test {

struct array {
  std::vector<index_t> extents;
  std::vector<double> at;

  array() = default;
  explicit array(std::vector<index_t> e)
      : extents(std::move(e)), at(static_cast<std::size_t>(count(extents))) {}
  static index_t count(const std::vector<index_t>& e) {
    index_t n = 1;
    for (index_t x : e) n *= x;
    return n;
  }
  std::size_t order() const { return extents.size(); }
};

using position = std::vector<index_t>;

/// Calls f(position) for all positions in row-major order.
template <class F>
void for_each_position(const std::vector<index_t>& extents, F f) {
  position p(extents.size());
  for (index_t n = array::count(extents); n > 0; --n) {
    f(static_cast<const position&>(p));
    for (std::size_t d = p.size(); d-- > 0 && ++p[d] == extents[d];) p[d] = 0;
  }
}
inline std::size_t number_of_position(const array& a, const position& p) {
  index_t n = 0;
  for (std::size_t d = 0; d < p.size(); ++d) {
    if (p[d] < 0 || p[d] >= a.extents[d]) throw std::logic_error("interpret: a position outside of a value");
    n = n * a.extents[d] + p[d];
  }
  return static_cast<std::size_t>(n);
}
inline double element(const array& a, const position& p) { return a.at[number_of_position(a, p)]; }
/// The element that broadcasting aligns with `p` of a larger shape.
inline double element_met(const array& a, const position& p) {
  position own(a.order());
  for (std::size_t d = 0; d < own.size(); ++d) own[d] = a.extents[d] == 1 ? 0 : p[d + p.size() - own.size()];
  return element(a, own);
}

template <class F>
array filled(std::vector<index_t> extents, F f) {
  array out(std::move(extents));
  std::size_t k = 0;
  for_each_position(out.extents, [&](const position& p) { out.at[k++] = f(p); });
  return out;
}

/// The values of the leaves, numbers and sizes of a graph.
struct given_values {
  std::vector<array> leaves;
  std::vector<double> numbers;
  std::vector<index_t> sizes;
  index_t ranks = 1, rank = 0;  // the ranks that shard layers, and this rank
};

/// The number that an extent stands for.
/// A rank's share of `units` units, which are dealt to the ranks one by one; if there are more ranks than
/// units, ranks are dealt to units.
struct own_pieces {
  index_t first = 0, count = 0;
  own_pieces(index_t units, index_t pieces, index_t ranks, index_t rank) {
    const index_t of_unit = pieces == 0 ? 1 : pieces;
    const auto dealt = [](index_t n, index_t to, index_t r) { return (n - r + to - 1) / to; };
    if (units == 0 || units >= ranks || pieces == 1) {
      for (index_t r = 0; r < rank; ++r) first += dealt(units, ranks, r) * of_unit;
      count = dealt(units, ranks, rank) * of_unit;
      return;
    }
    index_t unit = 0, before = 0;  // the ranks of the units before
    while (rank - before >= dealt(ranks, units, unit)) before += dealt(ranks, units, unit++);
    first = unit * of_unit;
    count = 1;
    if (pieces == 0) return;
    for (index_t r = 0; r < rank - before; ++r) first += dealt(pieces, dealt(ranks, units, unit), r);
    count = dealt(pieces, dealt(ranks, units, unit), rank - before);
  }
};

inline index_t resolved(const symbol_table& dims, index_t e, const given_values& v) {
  if (e >= 0) return e;
  const symbol& s = dims.symbols[static_cast<int>(-2 - e)];
  const auto part = [&](index_t x) { return resolved(dims, x, v); };
  switch (s.kind) {
    case symbol_kind::leaf_extent:
      return v.leaves.at(static_cast<std::size_t>(s.a)).extents.at(static_cast<std::size_t>(s.b));
    case symbol_kind::given: return v.sizes.at(static_cast<std::size_t>(s.a));
    case symbol_kind::add: return part(s.a) + part(s.b);
    case symbol_kind::subtract: return part(s.a) - part(s.b);
    case symbol_kind::multiply: return part(s.a) * part(s.b);
    case symbol_kind::divide: return part(s.a) / part(s.b);
    case symbol_kind::part:
    case symbol_kind::part_first: {
      const own_pieces own(part(s.a), s.b, v.ranks, v.rank);
      return s.kind == symbol_kind::part ? own.count : own.first;
    }
    default: return (part(s.a) + part(s.b) - 1) / part(s.b);
  }
}

namespace detail {

using formula = std::function<double(const double*)>;

inline const std::map<std::string_view, formula>& formulas() {
  static const std::map<std::string_view, formula> all{
      {"add", [](const double* x) { return x[0] + x[1]; }},
      {"subtract", [](const double* x) { return x[0] - x[1]; }},
      {"multiply", [](const double* x) { return x[0] * x[1]; }},
      {"divide", [](const double* x) { return x[0] / x[1]; }},
      {"negate", [](const double* x) { return -x[0]; }},
      {"maximum", [](const double* x) { return std::max(x[0], x[1]); }},
      {"minimum", [](const double* x) { return std::min(x[0], x[1]); }},
      {"exp", [](const double* x) { return std::exp(x[0]); }},
      {"log", [](const double* x) { return std::log(x[0]); }},
      {"log1p", [](const double* x) { return std::log1p(x[0]); }},
      {"rsqrt", [](const double* x) { return 1 / std::sqrt(x[0]); }},
      {"expm1", [](const double* x) { return std::expm1(x[0]); }},
      {"sqrt", [](const double* x) { return std::sqrt(x[0]); }},
      {"pow", [](const double* x) { return std::pow(x[0], x[1]); }},
      {"erf", [](const double* x) { return std::erf(x[0]); }},
      {"atan", [](const double* x) { return std::atan(x[0]); }},
      {"floor", [](const double* x) { return std::floor(x[0]); }},
      {"round", [](const double* x) { return std::nearbyint(x[0]); }},
      {"tap", [](const double* x) { return x[0]; }},
      {"sum_over_positions", [](const double* x) { return x[0]; }},
      {"checked_probability", [](const double* x) { return x[0]; }},
      {"checked_weight", [](const double* x) { return x[0]; }},
      {"sin", [](const double* x) { return std::sin(x[0]); }},
      {"cos", [](const double* x) { return std::cos(x[0]); }},
      {"tanh", [](const double* x) { return std::tanh(x[0]); }},
      {"abs", [](const double* x) { return std::abs(x[0]); }},
      {"sign", [](const double* x) { return double((x[0] > 0) - (x[0] < 0)); }},
      {"equal", [](const double* x) { return double(x[0] == x[1]); }},
      {"less", [](const double* x) { return double(x[0] < x[1]); }},
      {"less_equal", [](const double* x) { return double(x[0] <= x[1]); }},
      {"logical_and", [](const double* x) { return double(x[0] != 0 && x[1] != 0); }},
      {"logical_or", [](const double* x) { return double(x[0] != 0 || x[1] != 0); }},
      {"logical_not", [](const double* x) { return double(x[0] == 0); }},
      {"clamp", [](const double* x) { return std::min(std::max(x[0], x[1]), x[2]); }},
      {"clamp_min", [](const double* x) { return std::max(x[0], x[1]); }},
      {"clamp_max", [](const double* x) { return std::min(x[0], x[1]); }},
      {"where", [](const double* x) { return x[0] != 0 ? x[1] : x[2]; }},
      {"contiguous", [](const double* x) { return x[0]; }},
      {"detach", [](const double* x) { return x[0]; }},
      {"relu", [](const double* x) { return std::max(x[0], 0.0); }},
      {"sigmoid", [](const double* x) { return 1 / (1 + std::exp(-x[0])); }},
      {"silu", [](const double* x) { return x[0] / (1 + std::exp(-x[0])); }},
      {"softplus",
       [](const double* x) { return std::max(x[0], 0.0) + std::log1p(std::exp(-std::abs(x[0]))); }},
  };
  return all;
}

inline array elementwise(const formula& f, const std::vector<const array*>& in,
                         const std::vector<index_t>& extents) {
  return filled(extents, [&](const position& p) {
    double x[3] = {};
    for (std::size_t o = 0; o < in.size(); ++o) x[o] = element_met(*in[o], p);
    return f(x);
  });
}

/// Reduces dims [first, last), which are kept with extent 1.
inline array folded(std::string_view op, const array& x, index_t first, index_t last) {
  std::vector<index_t> extents = x.extents;
  for (index_t d = first; d < last; ++d) extents[static_cast<std::size_t>(d)] = 1;
  array out(extents);
  std::vector<char> begun(out.at.size());
  std::size_t k = 0;
  for_each_position(x.extents, [&](position p) {
    for (index_t d = first; d < last; ++d) p[static_cast<std::size_t>(d)] = 0;
    const std::size_t to = number_of_position(out, p);
    const double e = x.at[k++];
    if (!begun[to]) out.at[to] = e;
    else if (op == "reduce_sum") out.at[to] += e;
    else out.at[to] = op == "reduce_max" ? std::max(out.at[to], e) : std::min(out.at[to], e);
    begun[to] = 1;
  });
  return out;
}

/// The extremum over a set of dims, at[0], which are kept if at[1] is set.
inline array extremum(std::string_view op, const array& x, const std::vector<index_t>& at,
                      const std::vector<index_t>& extents) {
  array out = x;
  for (index_t d = 0; d < static_cast<index_t>(x.order()); ++d)
    if (at[0] >> d & 1) out = folded(op == "amax" ? "reduce_max" : "reduce_min", out, d, d + 1);
  out.extents = extents;
  return out;
}

inline array product_of(const array& a, const array& b, const std::vector<index_t>& extents) {
  const std::size_t order = extents.size();
  return filled(extents, [&](const position& p) {
    position i(p.end() - static_cast<std::ptrdiff_t>(a.order()), p.end()),
        j(p.end() - static_cast<std::ptrdiff_t>(b.order()), p.end());
    for (std::size_t d = 0; d + 2 < i.size(); ++d)
      if (a.extents[d] == 1) i[d] = 0;
    for (std::size_t d = 0; d + 2 < j.size(); ++d)
      if (b.extents[d] == 1) j[d] = 0;
    double sum = 0;
    for (index_t k = 0; k < a.extents.back(); ++k) {
      i[i.size() - 2] = p[order - 2];
      i.back() = k;
      j[j.size() - 2] = k;
      j.back() = p[order - 1];
      sum += element(a, i) * element(b, j);
    }
    return sum;
  });
}

inline array softmax(const array& x, index_t dim, bool logarithm) {
  const auto along = static_cast<std::size_t>(dim);
  return filled(x.extents, [&](position p) {
    const double own = element(x, p);
    double sum = 0;
    for (index_t k = 0; k < x.extents[along]; ++k) {
      p[along] = k;
      sum += std::exp(element(x, p) - own);
    }
    return logarithm ? -std::log(sum) : 1 / sum;
  });
}

inline array moved(std::string_view op, const array& x, const std::vector<index_t>& at,
                   const std::vector<index_t>& extents) {
  if (op == "reshape") {
    array out = x;
    out.extents = extents;
    if (array::count(extents) != static_cast<index_t>(x.at.size()))
      throw std::logic_error("interpret: a reshape to another size");
    return out;
  }
  const auto dim = static_cast<std::size_t>(at.empty() ? 0 : at[0]);
  if (op == "pad") {
    array out(extents);
    std::size_t k = 0;
    for_each_position(x.extents, [&](position p) {
      p[dim] = at[1] + p[dim] * at[3];
      out.at[number_of_position(out, p)] = x.at[k++];
    });
    return out;
  }
  return filled(extents, [&](const position& p) {
    position from = p;
    if (op == "permute") {
      for (std::size_t d = 0; d < p.size(); ++d)
        from[static_cast<std::size_t>(at[d] < 0 ? at[d] + static_cast<index_t>(p.size()) : at[d])] = p[d];
    } else if (op == "expand") {
      return element_met(x, p);
    } else if (op == "slice") {
      from[dim] = at[1] + p[dim] * at[3];
      if (from[dim] >= at[2]) throw std::logic_error("interpret: a slice beyond its end");
    } else {
      from[dim] = x.extents[dim] - 1 - p[dim];  // flip
    }
    return element(x, from);
  });
}

inline array joined(const std::vector<const array*>& in, index_t along, const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::size_t>(along < 0 ? along + static_cast<index_t>(extents.size()) : along);
  return filled(extents, [&](position p) {
    std::size_t k = 0;
    while (p[dim] >= in[k]->extents[dim]) p[dim] -= in[k++]->extents[dim];
    return element(*in[k], p);
  });
}

/// The ops that read or write by index: index_select, index_add, gather, scatter_sum.
inline array looked_up(std::string_view op, const array& a, const array& b, const std::vector<index_t>& at,
                       const std::vector<index_t>& extents) {
  array out(extents);
  if (op == "index_select") {
    const std::size_t width = a.at.size() / static_cast<std::size_t>(std::max<index_t>(a.extents[0], 1));
    for (std::size_t k = 0; k < out.at.size(); ++k)
      out.at[k] = a.at.at(static_cast<std::size_t>(b.at[k / width]) * width + k % width);
  } else if (op == "index_add") {
    const std::size_t width = out.at.size() / static_cast<std::size_t>(std::max<index_t>(extents[0], 1));
    for (std::size_t k = 0; k < b.at.size(); ++k)
      out.at.at(static_cast<std::size_t>(a.at[k / width]) * width + k % width) += b.at[k];
  } else {
    const array& index = op == "gather" ? b : a;
    std::size_t k = 0;
    for_each_position(index.extents, [&](position p) {
      const std::size_t own = k++;
      p[static_cast<std::size_t>(at[0])] = static_cast<index_t>(index.at[own]);
      if (op == "gather") out.at[own] = element(a, p);
      else out.at[number_of_position(out, p)] += b.at[own];
    });
  }
  return out;
}

/// The indices along dim at[0] that sort the elements, with at[1] descending.
inline array order_of(const array& x, const std::vector<index_t>& at, const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::size_t>(at[0]);
  return filled(extents, [&](position p) {
    const index_t place = p[dim];
    const auto number = [&](index_t i) {
      p[dim] = i;
      return at[1] ? -element(x, p) : element(x, p);
    };
    for (index_t i = 0;; ++i) {  // the element that `place` elements precede
      index_t before = 0;
      for (index_t j = 0; j < x.extents[dim]; ++j)
        before += number(j) < number(i) || (number(j) == number(i) && j < i);
      if (before == place) return static_cast<double>(i);
    }
  });
}

/// The windows of an image, their sums scattered back, and the position of the largest element of each.
inline array windowed(std::string_view op, const array& x, const std::vector<index_t>& at,
                      const std::vector<index_t>& extents) {
  const auto high = [](index_t packed) { return packed >> 32; };
  const auto low = [](index_t packed) { return packed & 0xffffffff; };
  const std::size_t d = (op == "fold_windows" ? extents.size() : x.extents.size()) - 2;
  if (op == "windows")
    return filled(extents, [&](position p) {
      p[d] = p[d] * high(at[1]) + p[d + 2] * high(at[2]);
      p[d + 1] = p[d + 1] * low(at[1]) + p[d + 3] * low(at[2]);
      p.resize(d + 2);
      return element(x, p);
    });
  if (op == "fold_windows") {
    array out(extents);
    std::size_t k = 0;
    for_each_position(x.extents, [&](position p) {
      p[d] = p[d] * high(at[2]) + p[d + 2] * high(at[3]) - high(at[4]);
      p[d + 1] = p[d + 1] * low(at[2]) + p[d + 3] * low(at[3]) - low(at[4]);
      p.resize(d + 2);
      const double term = x.at[k++];  // windows on the padding count, too
      if (p[d] >= 0 && p[d] < extents[d] && p[d + 1] >= 0 && p[d + 1] < extents[d + 1])
        out.at[number_of_position(out, p)] += term;
    });
    return out;
  }
  return filled(extents, [&](position p) {
    const index_t top = p[d] * high(at[1]) - high(at[2]), left = p[d + 1] * low(at[1]) - low(at[2]);
    double best = -1, largest = 0;
    for (p[d] = top; p[d] < top + high(at[0]); ++p[d])
      for (p[d + 1] = left; p[d + 1] < left + low(at[0]); ++p[d + 1]) {
        if (p[d] < 0 || p[d] >= x.extents[d] || p[d + 1] < 0 || p[d + 1] >= x.extents[d + 1]) continue;
        if (best >= 0 && element(x, p) <= largest) continue;
        largest = element(x, p);
        best = static_cast<double>(p[d] * x.extents[d + 1] + p[d + 1]);
      }
    return best;
  });
}

/// Depthwise convolution, and the cotangent of its weights.
inline array depthwise(std::string_view op, const array& x, const array& other,
                       const std::vector<index_t>& at, const std::vector<index_t>& extents) {
  const auto high = [](index_t packed) { return packed >> 32; };
  const auto low = [](index_t packed) { return packed & 0xffffffff; };
  const bool is_gradient = op == "depthwise_weight_gradient";
  array out(extents);
  const array& made = is_gradient ? other : out;
  const array& matrices = is_gradient ? out : other;
  for_each_position(made.extents, [&](const position& p) {
    const std::size_t of_made = number_of_position(made, p);
    for (index_t k = 0; k < matrices.extents[1]; ++k)
      for (index_t l = 0; l < matrices.extents[2]; ++l) {
        const index_t i = p[2] * high(at[0]) + k * high(at[1]) - high(at[2]),
                      j = p[3] * low(at[0]) + l * low(at[1]) - low(at[2]);
        if (i < 0 || i >= x.extents[2] || j < 0 || j >= x.extents[3]) continue;
        const std::size_t of_matrix = number_of_position(matrices, {p[1], k, l});
        const double from = element(x, {p[0], p[1], i, j});
        if (is_gradient) out.at[of_matrix] += from * other.at[of_made];
        else out.at[of_made] += from * other.at[of_matrix];
      }
  });
  return out;
}

/// Sums along dim at[0] up to each position; with at[1], from it on.
inline array running_sum(const array& x, const std::vector<index_t>& at,
                         const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::size_t>(at[0]);
  return filled(extents, [&](position p) {
    const index_t own = p[dim], last = at[1] ? x.extents[dim] - 1 : own;
    double sum = 0;
    for (p[dim] = at[1] ? own : 0; p[dim] <= last; ++p[dim]) sum += element(x, p);
    return sum;
  });
}

/// Products of the elements up to each one, or before it (at[1]).
inline array running_product(const array& x, const std::vector<index_t>& at,
                             const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::size_t>(at[0]);
  return filled(extents, [&](position p) {
    const index_t end = p[dim] + !at[1];
    double product = 1;
    for (p[dim] = 0; p[dim] < end; ++p[dim]) product *= element(x, p);
    return product;
  });
}

/// y[i] = a[i] y[i - 1] + b[i] along dim at[0], or, with at[1], a[i + 1] y[i + 1] + b[i], from the end to i.
inline array recurrence(const array& a, const array& b, const std::vector<index_t>& at,
                        const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::size_t>(at[0]);
  return filled(extents, [&](position p) {
    const index_t own = p[dim], step = at[1] ? -1 : 1;
    double y = 0;
    for (p[dim] = at[1] ? extents[dim] - 1 : 0;; p[dim] += step) {
      y += element(b, p);
      if (p[dim] == own) return y;
      position factor = p;
      factor[dim] += at[1] ? 0 : 1;
      y *= element(a, factor);
    }
  });
}

/// The position of the largest (at[1] = 0) or smallest element along dim at[0], the first of equal ones.
inline array position_of(const array& x, const std::vector<index_t>& at,
                         const std::vector<index_t>& extents) {
  const auto dim = static_cast<std::ptrdiff_t>(at[0]);
  return filled(extents, [&](position p) {
    p.insert(p.begin() + dim, 0);
    double best = element(x, p);
    index_t found = 0;
    for (index_t i = 1; i < x.extents[static_cast<std::size_t>(dim)]; ++i) {
      p[static_cast<std::size_t>(dim)] = i;
      const double e = element(x, p);
      if (at[1] ? e >= best : e <= best) continue;
      best = e;
      found = i;
    }
    return static_cast<double>(found);
  });
}

/// Checks that indices are in [0, at[0]); if at[3] is 1, at[2] becomes -1.
inline array checked(const array& x, const std::vector<index_t>& at) {
  return filled(x.extents, [&](const position& p) {
    const double i = element(x, p);
    if (at.size() > 3 && at[3] && i == static_cast<double>(at[2])) return -1.0;
    if (i < 0 || i >= static_cast<double>(at[0])) throw std::logic_error("interpret: an index out of range");
    return i;
  });
}

/// Some numbers in [0, 1) that depend on the attribute and the position.
inline array uniform(index_t number, const std::vector<index_t>& extents) {
  array out(extents);
  for (std::size_t k = 0; k < out.at.size(); ++k) {
    const double x =
        std::sin(12.9898 * static_cast<double>(k + 1) + 78.233 * static_cast<double>(number + 1));
    out.at[k] = std::abs(x * 43758.5453) - std::floor(std::abs(x * 43758.5453));
  }
  return out;
}

/// The k-th result of attention (three operands) or of its derivative (six). Consecutive query heads may
/// share keys; at: whether causal, the position of the first query.
inline array attended(const std::vector<index_t>& at, const std::vector<const array*>& in, index_t k,
                      const std::vector<index_t>& extents) {
  const std::vector<index_t>&e = in[0]->extents, &f = in[1]->extents;  // batch, position, head, feature
  const double scale = 1 / std::sqrt(static_cast<double>(e[3]));
  array out(extents);
  for_each_position({e[0], e[1], e[2]}, [&](const position& p) {
    const index_t n = p[0], i = p[1], h = p[2], of = h / (e[2] / f[2]);
    const index_t keys = at[0] ? std::min(i + 1 + at[1], f[1]) : f[1];
    const auto dot = [&](const array& a, const array& b, index_t j, index_t head) {
      double sum = 0;
      for (index_t d = 0; d < e[3]; ++d) sum += element(a, {n, i, h, d}) * element(b, {n, j, head, d});
      return sum;
    };
    double sum = 0;
    for (index_t j = 0; j < keys; ++j) sum += std::exp(scale * dot(*in[0], *in[1], j, of));
    if (in.size() == 3 && k == 1) out.at[number_of_position(out, {n, h, i})] = std::log(sum);
    for (index_t j = 0; j < keys && (in.size() == 6 || k == 0); ++j) {
      const double weight = std::exp(scale * dot(*in[0], *in[1], j, of)) / sum;
      const auto add = [&](const position& to, double times, const array& x, const position& from) {
        for (index_t d = 0; d < e[3]; ++d)
          out.at[number_of_position(out, {to[0], to[1], to[2], d})] +=
              times * element(x, {from[0], from[1], from[2], d});
      };
      const position query{n, i, h}, key{n, j, of};
      if (in.size() == 3) {
        add(query, weight, *in[2], key);
        continue;
      }
      const double slope = scale * weight * (dot(*in[5], *in[2], j, of) - dot(*in[5], *in[3], i, h));
      if (k == 0) add(query, slope, *in[1], key);
      if (k == 1) add(key, slope, *in[0], query);
      if (k == 2) add(key, weight, *in[5], query);
    }
  });
  return out;
}

}  // namespace detail

/// An op on operands, with attributes and extents that are numbers.
inline array computed(std::string_view op, dtype type, const std::vector<index_t>& at,
                      const std::vector<const array*>& in, const std::vector<index_t>& extents) {
  if (const auto f = detail::formulas().find(op); f != detail::formulas().end())
    return detail::elementwise(f->second, in, extents);
  if (op == "cast") {
    const auto f = [&](const double* x) {
      return is_floating(type) ? x[0] : type == dtype::boolean ? double(x[0] != 0) : std::trunc(x[0]);
    };
    return detail::elementwise(f, in, extents);
  }
  if (op.starts_with("reduce_")) return detail::folded(op, *in[0], at[0], at[1]);
  if (op == "amax" || op == "amin") return detail::extremum(op, *in[0], at, extents);
  if (op == "contract" || op == "matmul") return detail::product_of(*in[0], *in[1], extents);
  if (op == "softmax" || op == "log_softmax") return detail::softmax(*in[0], at[0], op == "log_softmax");
  if (op == "arg_extremum") return detail::position_of(*in[0], at, extents);
  if (op == "argsort" || op == "argtopk") return detail::order_of(*in[0], at, extents);
  if (op == "cumsum") return detail::running_sum(*in[0], at, extents);
  if (op == "windows" || op == "fold_windows" || op == "arg_window_max")
    return detail::windowed(op, *in[0], at, extents);
  if (op.starts_with("depthwise")) return detail::depthwise(op, *in[0], *in[1], at, extents);
  if (op == "cumprod") return detail::running_product(*in[0], at, extents);
  if (op == "linear_recurrence") return detail::recurrence(*in[0], *in[1], at, extents);
  if (op == "checked_index") return detail::checked(*in[0], at);
  if (op == "uniform_like") return detail::uniform(at[0], extents);
  if (op.starts_with("attention")) return detail::attended(at, in, 0, extents);
  if (op == "concat") return detail::joined(in, at[0], extents);
  if (op == "index_select" || op == "index_add" || op == "gather" || op == "scatter_sum")
    return detail::looked_up(op, *in[0], *in[1], at, extents);
  for (std::string_view view : {"reshape", "permute", "expand", "slice", "flip", "pad"})
    if (op == view) return detail::moved(op, *in[0], at, extents);
  throw std::logic_error("interpret: no definition of " + std::string(op));
}

/// The value of node `n`, given those of the nodes before it, value_of(i).
template <class ValueOf>
array interpreted_node(const graph::compute_graph& g, const graph::node& n, ValueOf value_of,
                       const given_values& v) {
  const std::string_view op = n.op->name;
  std::vector<index_t> extents;
  for (int d = 0; d < n.result.extents.order; ++d)
    extents.push_back(resolved(g.dims, n.result.extents[d], v));
  const auto attributes_of = [&](const graph::node& of) {
    std::vector<index_t> all;
    for (int i = 0; i < of.at.count; ++i)
      all.push_back(of.op->extents >> i & 1 ? resolved(g.dims, of.at[i], v) : of.at[i]);
    return all;
  };
  const std::vector<index_t> at = attributes_of(n);
  const graph::node& computes = op == "result" ? g[n.operand[0]] : n;
  std::vector<const array*> in;
  for (int k = 0; k < computes.operands; ++k) in.push_back(&value_of(computes.operand[k]));
  array result(extents);
  if (op == "leaf") result = v.leaves.at(static_cast<std::size_t>(at[0]));
  else if (op == "argument") result.at[0] = v.numbers.at(static_cast<std::size_t>(at[0]));
  else if (op == "constant")
    result.at[0] = is_floating(n.result.type) ? number_of(n.at) : static_cast<double>(n.at[0]);
  else if (op == "extent_value") result.at[0] = static_cast<double>(at[0]);
  else if (op == "coordinate")
    result = filled(extents, [](const position& p) { return static_cast<double>(p[0]); });
  else if (op == "result") result = detail::attended(attributes_of(computes), in, at[0], extents);
  else result = computed(op, n.result.type, at, in, extents);
  if (result.extents != extents)
    throw std::logic_error("interpret: " + std::string(op) + " has other extents than its operands give");
  return result;
}

/// The values of all nodes of `g`.
inline std::vector<array> interpreted(const graph::compute_graph& g, const given_values& v) {
  std::vector<array> values;
  const auto value_of = [&](int i) -> const array& { return values[static_cast<std::size_t>(i)]; };
  for (const graph::node& n : g.nodes) values.push_back(interpreted_node(g, n, value_of, v));
  return values;
}

}  // namespace weft::test
