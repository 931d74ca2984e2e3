// SPDX-License-Identifier: MIT
// The definitions of the ops: each by its formula, a loop over the elements of the result.
#include "oracle.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <string>

namespace weft::test::oracle {

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
using position = std::array<index_t, max_order>;
using line = std::vector<double>;

[[noreturn]] void refuse(const call& c, const std::string& what) {
  throw undefined(std::string(c.op) + ": " + what);
}
void require(const call& c, bool holds, const char* what) {
  if (!holds) refuse(c, what);
}

index_t count(const shape& s) {
  index_t n = 1;
  for (int d = 0; d < s.order; ++d) n *= s[d];
  return n;
}

/// Calls f(position) for all positions, the last dim fastest.
template <class F>
void for_each(const shape& s, F f) {
  position p{};
  for (index_t left = count(s); left > 0; --left) {
    f(static_cast<const position&>(p));
    for (int d = s.order; d-- > 0;) {
      if (++p[static_cast<std::size_t>(d)] < s[d]) break;
      p[static_cast<std::size_t>(d)] = 0;
    }
  }
}

/// The index of the element at `p`.
index_t element_at(const shape& s, const position& p) {
  index_t k = 0;
  for (int d = 0; d < s.order; ++d) k = k * s[d] + p[static_cast<std::size_t>(d)];
  return k;
}
/// The index of the element that broadcasting aligns with `p` of `whole`: aligned right, extent 1 repeats.
index_t element_met(const shape& s, const shape& whole, const position& p) {
  index_t k = 0;
  for (int d = 0; d < s.order; ++d)
    k = k * s[d] + (s[d] == 1 ? 0 : p[static_cast<std::size_t>(d + whole.order - s.order)]);
  return k;
}

std::int64_t wrapped(std::int64_t x, dtype t) {
  switch (t) {
    case dtype::i32: return static_cast<std::int32_t>(static_cast<std::uint32_t>(x));
    case dtype::u8: return static_cast<std::uint8_t>(x);
    case dtype::boolean: return x != 0;
    default: return x;
  }
}

/// Digits of the significand including the leading one, the exponent of the smallest subnormal number, and
/// the largest number.
struct format {
  int digits, smallest;
  double largest;
};
format format_of(dtype t) {
  switch (t) {
    case dtype::f64: return {53, -1074, std::numeric_limits<double>::max()};
    case dtype::f32: return {24, -149, std::numeric_limits<float>::max()};
    case dtype::bf16: return {8, -133, 0x1.fep127};
    default: return {11, -24, 65504};
  }
}

void store(const call& c, array& to, index_t k, double x) {
  to.f[static_cast<std::size_t>(k)] = c.rounding ? rounded(x, to.type) : x;
}
void store(array& to, index_t k, std::int64_t x) { to.i[static_cast<std::size_t>(k)] = wrapped(x, to.type); }
void copy(array& to, index_t k, const array& from, index_t j) {
  if (to.floating()) to.f[static_cast<std::size_t>(k)] = from.f[static_cast<std::size_t>(j)];
  else to.i[static_cast<std::size_t>(k)] = from.i[static_cast<std::size_t>(j)];
}

/// Rounds towards zero; NaN becomes 0, and a value out of range the nearest number of the type.
std::int64_t truncated(double x, dtype t) {
  if (t == dtype::boolean) return x != 0;
  if (std::isnan(x)) return 0;
  const double low = t == dtype::u8 ? 0 : t == dtype::i32 ? -0x1p31 : -0x1p63;
  const double high = t == dtype::u8 ? 255 : t == dtype::i32 ? 0x1p31 - 1 : 0x1p63;
  if (x >= high)
    return t == dtype::i64 ? std::numeric_limits<std::int64_t>::max() : static_cast<std::int64_t>(high);
  return static_cast<std::int64_t>(std::max(std::trunc(x), low));
}

array converted(const call& c, const array& from, dtype to) {
  if (from.type == to) return from;
  array a = zeros(to, from.extents);
  for (index_t k = 0; k < from.size(); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (a.floating()) store(c, a, k, from.number(k));
    else store(a, k, from.floating() ? truncated(from.f[at], to) : from.i[at]);
  }
  return a;
}

/// PyTorch's type promotion: floating types over integers, wider over narrower, f32 for bf16 with f16.
dtype common_type(const std::vector<array>& operands) {
  const auto rank = [](dtype t) {
    constexpr dtype order[] = {dtype::boolean, dtype::u8,   dtype::i32, dtype::i64,
                               dtype::f16,     dtype::bf16, dtype::f32, dtype::f64};
    return std::find(std::begin(order), std::end(order), t) - std::begin(order);
  };
  dtype t = operands[0].type;
  for (const array& o : operands) {
    if (o.type == t) continue;
    const bool halves =
        (o.type == dtype::f16 && t == dtype::bf16) || (o.type == dtype::bf16 && t == dtype::f16);
    t = halves ? dtype::f32 : rank(o.type) > rank(t) ? o.type : t;
  }
  return t;
}
dtype floating(dtype t) { return is_floating(t) ? t : dtype::f32; }

shape broadcast(const call& c, const std::vector<array>& operands) {
  shape s;
  for (const array& o : operands) s.order = std::max(s.order, o.extents.order);
  for (int d = 0; d < s.order; ++d) s[d] = 1;
  for (const array& o : operands)
    for (int d = 0; d < o.extents.order; ++d) {
      index_t& e = s[d + s.order - o.extents.order];
      if (o.extents[d] == 1 || o.extents[d] == e) continue;
      require(c, e == 1, "operands do not broadcast");
      e = o.extents[d];
    }
  return s;
}

// Element-wise ops. Operands are converted to one type first, which rounds them if it is narrower.

using real_function = double (*)(const double*);
using integer_function = std::int64_t (*)(const std::int64_t*);

/// f of the operands as floating numbers of `type`, or g of the operands as integers.
array elementwise(const call& c, dtype type, dtype result, real_function f, integer_function g) {
  std::vector<array> in;
  for (const array& o : c.operands) in.push_back(converted(c, o, type));
  array out = zeros(result, broadcast(c, in));
  index_t k = 0;
  for_each(out.extents, [&](const position& p) {
    double x[3] = {};
    std::int64_t n[3] = {};
    for (std::size_t o = 0; o < in.size(); ++o) {
      const auto at = static_cast<std::size_t>(element_met(in[o].extents, out.extents, p));
      if (is_floating(type)) x[o] = in[o].f[at];
      else n[o] = in[o].i[at];
    }
    if (is_floating(result)) store(c, out, k++, f(x));
    else store(out, k++, is_floating(type) ? static_cast<std::int64_t>(f(x)) : g(n));
  });
  return out;
}
array real(const call& c, real_function f) {
  const dtype t = floating(common_type(c.operands));
  return elementwise(c, t, t, f, nullptr);
}
/// Arithmetic in the operands' own type. bool uses `logic`, and is refused if that is not given.
array arithmetic(const call& c, real_function f, integer_function g, integer_function logic) {
  const dtype t = common_type(c.operands);
  require(c, t != dtype::boolean || logic, "bool operands");
  return elementwise(c, t, t, f, t == dtype::boolean ? logic : g);
}
array comparison(const call& c, real_function f, integer_function g) {
  return elementwise(c, common_type(c.operands), dtype::boolean, f, g);
}
array logic(const call& c, integer_function g) {
  for (const array& o : c.operands) require(c, o.type == dtype::boolean, "operands that are not bool");
  return elementwise(c, dtype::boolean, dtype::boolean, nullptr, g);
}
/// Floored quotient and remainder, from the machine's division, which rounds towards 0; for divisor 0: 0 and
/// the dividend.
std::pair<std::int64_t, std::int64_t> floored(std::int64_t n, std::int64_t d) {
  if (d == 0) return {0, n};
  if (d == -1) return {static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(n)), 0};
  const bool rounds_up = n % d != 0 && (n < 0) != (d < 0);
  return {n / d - rounds_up, n % d + (rounds_up ? d : 0)};
}
std::int64_t wrapping(std::uint64_t x) { return static_cast<std::int64_t>(x); }
std::uint64_t bits(std::int64_t x) { return static_cast<std::uint64_t>(x); }

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::max(a, b); }
double smaller(double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::min(a, b); }
double softplus(double x) { return larger(x, 0) + std::log1p(std::exp(-std::abs(x))); }

array where(const call& c) {
  require(c, c.operands[0].type == dtype::boolean, "a condition that is not bool");
  const dtype t = common_type({c.operands[1], c.operands[2]});
  const array a = converted(c, c.operands[1], t), b = converted(c, c.operands[2], t);
  array out = zeros(t, broadcast(c, c.operands));
  index_t k = 0;
  for_each(out.extents, [&](const position& p) {
    const index_t condition = element_met(c.operands[0].extents, out.extents, p);
    const array& from = c.operands[0].i[static_cast<std::size_t>(condition)] ? a : b;
    copy(out, k++, from, element_met(from.extents, out.extents, p));
  });
  return out;
}

/// Leaves integers unchanged.
array to_integer(const call& c, double (*f)(double)) {
  const array& x = c.operands[0];
  if (!x.floating()) return converted(c, x, c.type);
  array out = zeros(x.type, x.extents);
  for (index_t k = 0; k < x.size(); ++k) store(c, out, k, f(x.number(k)));
  return out;
}

// Movement: the element of the result at p is the operand's element at from(p).

template <class F>
array moved(const array& x, const shape& to, F from) {
  array out = zeros(x.type, to);
  index_t k = 0;
  for_each(to, [&](const position& p) { copy(out, k++, x, element_at(x.extents, from(p))); });
  return out;
}

int dim(const call& c, index_t d, int order) {
  if (d < 0) d += order;
  require(c, d >= 0 && d < order, "a dim out of range");
  return static_cast<int>(d);
}

array reshaped(const call& c, const shape& to) {
  require(c, count(to) == c.operands[0].size(), "another number of elements");
  array out = c.operands[0];
  out.extents = to;
  return out;
}
array reshape(const call& c) {
  shape to = shape_of(c.at);
  int open = -1;
  index_t known = 1;
  for (int d = 0; d < to.order; ++d) {
    require(c, to[d] >= 0 || (to[d] == dyn && open < 0), "a negative extent");
    if (to[d] == dyn) open = d;
    else known *= to[d];
  }
  if (open >= 0) {
    const index_t size = c.operands[0].size();
    require(c, known > 0 ? size % known == 0 : size == 0, "an extent that does not divide");
    to[open] = known > 0 ? size / known : 0;
  }
  return reshaped(c, to);
}
array flatten(const call& c) {
  const shape& s = c.operands[0].extents;
  shape to;
  for (int d = 0; d < s.order; ++d)
    if (d <= c.at[0] || d > c.at[1]) to.append(s[d]);
    else to[to.order - 1] *= s[d];
  return reshaped(c, to);
}
array unflatten(const call& c) {
  const shape& s = c.operands[0].extents;
  const int split = dim(c, c.at[0], s.order);
  require(c, c.at[1] > 0 && s[split] % c.at[1] == 0, "an extent that does not divide");
  shape to;
  for (int d = 0; d < s.order; ++d) {
    if (d == split) to.append(c.at[1]);
    to.append(d == split ? s[d] / c.at[1] : s[d]);
  }
  return reshaped(c, to);
}
array unsqueeze(const call& c) {
  const shape& s = c.operands[0].extents;
  shape to;
  for (int d = 0; d <= s.order; ++d) {
    if (d == c.at[0]) to.append(1);
    if (d < s.order) to.append(s[d]);
  }
  return reshaped(c, to);
}
array permute(const call& c) {
  const array& x = c.operands[0];
  const int order = x.extents.order;
  require(c, c.at.count == order, "a permutation of another order");
  shape to = x.extents;
  for (int d = 0; d < order; ++d) to[d] = x.extents[dim(c, c.at[d], order)];
  return moved(x, to, [&](const position& p) {
    position from{};
    for (int d = 0; d < order; ++d)
      from[static_cast<std::size_t>(dim(c, c.at[d], order))] = p[static_cast<std::size_t>(d)];
    return from;
  });
}
array expand(const call& c) {
  const array& x = c.operands[0];
  shape to = shape_of(c.at);
  const int added = to.order - x.extents.order;
  require(c, added >= 0, "fewer dims than the operand");
  for (int d = 0; d < x.extents.order; ++d) {
    const index_t e = x.extents[d];
    if (to[d + added] == dyn) to[d + added] = e;
    require(c, e == 1 || to[d + added] == e, "an extent that is not 1");
  }
  return moved(x, to, [&](const position& p) {
    position from{};
    for (int d = 0; d < x.extents.order; ++d)
      from[static_cast<std::size_t>(d)] = x.extents[d] == 1 ? 0 : p[static_cast<std::size_t>(d + added)];
    return from;
  });
}
/// Elements start, start + step, ..., below stop.
array sliced(const call& c, int along, index_t start, index_t stop, index_t step) {
  const array& x = c.operands[0];
  require(c, step > 0 && 0 <= start && start <= stop && stop <= x.extents[along], "bounds out of range");
  shape to = x.extents;
  to[along] = 0;
  for (index_t i = start; i < stop; i += step) ++to[along];
  return moved(x, to, [&](position p) {
    index_t& i = p[static_cast<std::size_t>(along)];
    i = start + i * step;
    return p;
  });
}
array slice(const call& c) {
  return sliced(c, dim(c, c.at[0], c.operands[0].extents.order), c.at[1], c.at[2], c.at[3]);
}
/// Element v1 of dim v0, which is removed.
array select(const call& c) {
  const int along = dim(c, c.at[0], c.operands[0].extents.order);
  array out = sliced(c, along, c.at[1], c.at[1] + 1, 1);
  for (int d = along; d + 1 < out.extents.order; ++d) out.extents[d] = out.extents[d + 1];
  out.extents[--out.extents.order] = 0;
  return out;
}
array chunk(const call& c) {
  const int along = dim(c, c.at[0], c.operands[0].extents.order);
  const index_t extent = c.operands[0].extents[along], parts = c.at[1];
  require(c, parts > 0 && extent % parts == 0 && 0 <= c.at[2] && c.at[2] < parts,
          "an extent that does not divide");
  return sliced(c, along, extent / parts * c.at[2], extent / parts * (c.at[2] + 1), 1);
}
array flip(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  return moved(x, x.extents, [&](position p) {
    index_t& i = p[static_cast<std::size_t>(along)];
    i = x.extents[along] - 1 - i;
    return p;
  });
}
/// Pads dim v0 with zeros: v1 before the elements, v3 - 1 between them, to extent v2.
array pad(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  shape to = x.extents;
  to[along] = c.at[2];
  array out = zeros(x.type, to);
  index_t k = 0;
  for_each(x.extents, [&](position p) {
    index_t& i = p[static_cast<std::size_t>(along)];
    i = c.at[1] + i * c.at[3];
    require(c, i >= 0 && i < to[along], "negative padding");
    copy(out, element_at(to, p), x, k++);
  });
  return out;
}
array pad_ends(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  shape to = x.extents;
  to[along] += c.at[1] + c.at[2];
  array out = zeros(x.type, to);
  index_t k = 0;
  for_each(x.extents, [&](position p) {
    p[static_cast<std::size_t>(along)] += c.at[1];
    copy(out, element_at(to, p), x, k++);
  });
  return out;
}
array concat(const call& c) {
  const dtype t = common_type(c.operands);
  const array a = converted(c, c.operands[0], t), b = converted(c, c.operands[1], t);
  require(c, a.extents.order == b.extents.order, "operands of different order");
  const auto along = static_cast<std::size_t>(dim(c, c.at[0], a.extents.order));
  shape to = a.extents;
  for (int d = 0; d < to.order; ++d)
    if (d == static_cast<int>(along)) to[d] += b.extents[d];
    else require(c, to[d] == b.extents[d], "operands of different extents");
  const index_t middle = a.extents[static_cast<int>(along)];
  array out = zeros(t, to);
  index_t k = 0;
  for_each(to, [&](position p) {
    const bool first = p[along] < middle;
    if (!first) p[along] -= middle;
    const array& from = first ? a : b;
    copy(out, k++, from, element_at(from.extents, p));
  });
  return out;
}

// Reductions over a set of dims, v0, which are kept with extent 1 if v1 is set.

/// The indices of the operand's elements that are reduced to each element of the result.
std::vector<std::vector<index_t>> folded(const call& c, shape& result) {
  const shape& s = c.operands[0].extents;
  shape kept = s, without;
  for (int d = 0; d < s.order; ++d) {
    const bool goes = c.at[0] >> d & 1;
    if (goes) kept[d] = 1;
    if (!goes || c.at[1]) without.append(kept[d]);
  }
  std::vector<std::vector<index_t>> groups(static_cast<std::size_t>(count(kept)));
  index_t k = 0;
  for_each(s, [&](const position& p) {
    groups[static_cast<std::size_t>(element_met(kept, s, p))].push_back(k++);
  });
  result = without;
  return groups;
}
array reduced(const call& c, dtype type, double (*f)(const line&)) {
  const array& x = c.operands[0];
  shape to;
  const auto groups = folded(c, to);
  array out = zeros(type, to);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    line elements;
    for (index_t k : groups[g]) elements.push_back(x.number(k));
    store(c, out, static_cast<index_t>(g), f(elements));
  }
  return out;
}
double sum_of(const line& x) {
  double total = 0;
  for (double e : x) total += e;
  return total;
}
double largest(const line& x) {
  double top = -inf;
  for (double e : x) top = larger(top, e);
  return top;
}
double smallest(const line& x) {
  double least = inf;
  for (double e : x) least = smaller(least, e);
  return least;
}
array reduced_integers(const call& c, dtype type, std::int64_t (*f)(const std::vector<std::int64_t>&)) {
  shape to;
  const auto groups = folded(c, to);
  array out = zeros(type, to);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::int64_t> elements;
    for (index_t k : groups[g]) elements.push_back(c.operands[0].i[static_cast<std::size_t>(k)]);
    store(out, static_cast<index_t>(g), f(elements));
  }
  return out;
}
array sum(const call& c) {
  if (c.operands[0].floating()) return reduced(c, c.operands[0].type, sum_of);
  return reduced_integers(c, dtype::i64, [](const std::vector<std::int64_t>& x) {
    std::uint64_t total = 0;
    for (std::int64_t e : x) total += bits(e);
    return wrapping(total);
  });
}
array mean(const call& c) {
  return reduced(c, floating(c.operands[0].type),
                 [](const line& x) { return sum_of(x) / static_cast<double>(x.size()); });
}
array extremum(const call& c, bool least) {
  const array& x = c.operands[0];
  shape to;
  for (const auto& group : folded(c, to)) require(c, !group.empty(), "nothing to choose from");
  if (x.floating()) return reduced(c, x.type, least ? smallest : largest);
  return reduced_integers(
      c, x.type,
      least ? [](const std::vector<std::int64_t>& e) { return *std::min_element(e.begin(), e.end()); }
            : [](const std::vector<std::int64_t>& e) { return *std::max_element(e.begin(), e.end()); });
}
double log_of_sum(const line& x) {
  const double top = largest(x);
  if (x.empty() || std::isnan(top) || std::isinf(top)) return x.empty() ? -inf : top;
  double total = 0;
  for (double e : x) total += std::exp(e - top);
  return std::log(total) + top;
}

double norm_of(const line& x) {
  double total = 0;
  for (double e : x) total += e * e;
  return std::sqrt(total);
}
array variance(const call& c, double (*f)(double)) {
  const array& x = c.operands[0];
  shape to;
  const auto groups = folded(c, to);
  array out = zeros(floating(x.type), to);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double n = static_cast<double>(groups[g].size()), left = n - static_cast<double>(c.at[2]);
    double mean = 0, squares = 0;
    for (index_t k : groups[g]) mean += x.number(k) / n;
    for (index_t k : groups[g]) squares += (x.number(k) - mean) * (x.number(k) - mean);
    store(c, out, static_cast<index_t>(g), f(left > 0 ? squares / left : squares / 0.0));
  }
  return out;
}

// Along a dim.

array along(const call& c, index_t d, line (*f)(const call&, const line&)) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  const int which = dim(c, d, x.extents.order);
  array out = zeros(t, x.extents);
  index_t step = 1;
  for (int k = which + 1; k < x.extents.order; ++k) step *= x.extents[k];
  const index_t width = x.extents[which];
  for (index_t first = 0; width > 0 && first < x.size(); ++first) {
    if (first / step % width != 0) continue;
    line of_dim;
    for (index_t k = 0; k < width; ++k) of_dim.push_back(x.f[static_cast<std::size_t>(first + k * step)]);
    const line y = f(c, of_dim);
    for (index_t k = 0; k < width; ++k) store(c, out, first + k * step, y[static_cast<std::size_t>(k)]);
  }
  return out;
}
array rows(const call& c, line (*f)(const call&, const line&)) { return along(c, -1, f); }
line normalized(const call&, const line& x) {
  line y = x;
  const double norm = norm_of(x);
  for (double& e : y) e /= norm < 1e-12 ? 1e-12 : norm;
  return y;
}
line softmax(const call&, const line& x) {
  line y = x;
  const double top = largest(x);
  for (double& e : y) e = std::exp(e - top);
  const double total = sum_of(y);
  for (double& e : y) e /= total;
  return y;
}
line log_softmax(const call&, const line& x) {
  line y = x, powers;
  const double top = largest(x);
  for (double e : x) powers.push_back(std::exp(e - top));
  const double log_total = std::log(sum_of(powers));
  for (double& e : y) e = e - top - log_total;
  return y;
}
line standardized(const call& c, const line& x) {
  const double n = static_cast<double>(x.size()), epsilon = number_of(c.at);
  array means = numbers(c.type, {}, {sum_of(x) / n});
  if (c.disturb_operand) c.disturb_operand(c.op, means);
  const double mean = means.f[0];
  line y = x;
  double variance = 0;
  for (double e : x) variance += (e - mean) * (e - mean) / n;
  for (double& e : y) e = (e - mean) / std::sqrt(variance + epsilon);
  return y;
}
line rms_standardized(const call& c, const line& x) {
  const double epsilon = number_of(c.at);
  line y = x;
  double mean = 0;
  for (double e : x) mean += e * e / static_cast<double>(x.size());
  for (double& e : y) e /= std::sqrt(mean + epsilon);
  return y;
}
/// Standardizes the elements of each group of channels as one row.
array group_standardized(const call& c) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  const index_t groups = c.at[1];
  require(c, x.extents.order >= 2 && groups > 0 && x.extents[1] % groups == 0, "groups that do not divide");
  array out = zeros(t, x.extents);
  index_t width = x.extents[1] / groups;
  for (int d = 2; d < x.extents.order; ++d) width *= x.extents[d];
  for (index_t first = 0; width > 0 && first < x.size(); first += width) {
    const line y = standardized(c, line(x.f.begin() + first, x.f.begin() + first + width));
    for (index_t k = 0; k < width; ++k) store(c, out, first + k, y[static_cast<std::size_t>(k)]);
  }
  return out;
}

/// Calls f(element index, channel) for each element of x [batch, channels, ...].
template <class F>
void for_each_of_channel(const shape& x, F f) {
  for_each(x, [&](const position& p) { f(element_at(x, p), p[1]); });
}
array channel_moments(const call& c) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  require(c, x.extents.order >= 2, "no channels");
  const index_t channels = x.extents[1];
  std::vector<double> count(static_cast<std::size_t>(channels)), mean = count, variance = count;
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  for_each_of_channel(x.extents, [&](index_t, index_t k) { ++count[at(k)]; });
  for_each_of_channel(x.extents, [&](index_t i, index_t k) { mean[at(k)] += x.f[at(i)] / count[at(k)]; });
  for_each_of_channel(x.extents, [&](index_t i, index_t k) {
    variance[at(k)] += (x.f[at(i)] - mean[at(k)]) * (x.f[at(i)] - mean[at(k)]) / count[at(k)];
  });
  array out = zeros(t, {2, {2, channels}});
  for (index_t k = 0; k < channels; ++k) {
    store(c, out, k, count[at(k)] > 0 ? mean[at(k)] : std::nan(""));
    store(c, out, channels + k, count[at(k)] > 0 ? variance[at(k)] : std::nan(""));
  }
  return out;
}
array channels_normalized(const call& c) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  require(c, x.extents.order >= 2, "no channels");
  array out = zeros(t, x.extents);
  const index_t channels = x.extents[1];
  const auto number = [&](int operand, index_t i) {
    return c.operands[static_cast<std::size_t>(operand)].f[static_cast<std::size_t>(i)];
  };
  for_each_of_channel(x.extents, [&](index_t i, index_t k) {
    const double centred = x.f[static_cast<std::size_t>(i)] - number(1, k);
    const double scale = number(2, k) / std::sqrt(number(1, channels + k) + number_of(c.at));
    store(c, out, i, centred * scale + number(3, k));
  });
  return out;
}

// Matrix products, attention.

/// Multiplies each pair of features, as a complex number, by a number of modulus 1. `at` gives positions.
template <class F>
array turned(const call& c, F at) {
  const array& x = c.operands[0];
  require(c, x.extents.order == 4 && x.extents[3] % 2 == 0, "an odd number of features");
  array out = zeros(x.type, x.extents);
  const index_t width = x.extents[3];
  for_each(x.extents, [&](const position& p) {
    if (p[3] >= width / 2) return;
    const index_t real = element_at(x.extents, p), imaginary = real + width / 2;
    double per_position =
        std::exp(-std::log(number_of(c.at)) * static_cast<double>(p[3]) / (static_cast<double>(width) / 2));
    if (c.at[2] != 0) {  // Llama 3.1's scaling, as in transformers
      const double factor = number_of(c.at, 2), low = number_of(c.at, 3), high = number_of(c.at, 4);
      const double wavelength = 2 * 3.14159265358979323846 / per_position,
                   original = static_cast<double>(c.at[5]);
      if (wavelength > original / low) per_position /= factor;
      else if (wavelength >= original / high) {
        const double smooth = (original / wavelength - low) / (high - low);
        per_position = (1 - smooth) * per_position / factor + smooth * per_position;
      }
    }
    const double angle = static_cast<double>(at(p)) * per_position;
    const std::complex<double> y =
        std::complex<double>(x.f[static_cast<std::size_t>(real)], x.f[static_cast<std::size_t>(imaginary)]) *
        std::polar(1.0, angle);
    store(c, out, real, y.real());
    store(c, out, imaginary, y.imag());
  });
  return out;
}
array rotary(const call& c) {
  return turned(c, [&](const position& p) { return c.at[1] + p[1]; });
}
array rotary_at(const call& c) {
  const array &x = c.operands[0], &positions = c.operands[1];
  const shape& s = positions.extents;
  require(c, (s.order == 1 || (s.order == 2 && s[0] == x.extents[0])) && s.last() == x.extents[1],
          "positions of another shape");
  return turned(c, [&](const position& p) {
    return positions.i[static_cast<std::size_t>(s.order == 1 ? p[1] : p[0] * s[1] + p[1])];
  });
}
array matmul(const call& c) {
  const array &a = c.operands[0], &b = c.operands[1];
  const int m = a.extents.order, n = b.extents.order;
  require(c, m >= 2 && n >= 2 && a.type == b.type && a.floating(), "operands of no product");
  const index_t inner = a.extents.last();
  require(c, inner == b.extents[n - 2], "inner extents differ");
  const auto batch = [](array x) {  // the batch dims alone
    x.extents.order -= 2;
    return x;
  };
  shape left = a.extents, right = b.extents, to = broadcast(c, {batch(a), batch(b)});
  left.order -= 2;
  right.order -= 2;
  const shape batches = to;
  const index_t row_count = a.extents[m - 2], columns = b.extents.last();
  to.append(row_count);
  to.append(columns);
  array out = zeros(a.type, to);
  index_t k = 0;
  for_each(batches, [&](const position& p) {
    const double* x = a.f.data() + element_met(left, batches, p) * row_count * inner;
    const double* y = b.f.data() + element_met(right, batches, p) * inner * columns;
    for (index_t i = 0; i < row_count; ++i)
      for (index_t j = 0; j < columns; ++j) {
        double total = 0;
        for (index_t l = 0; l < inner; ++l) total += x[i * inner + l] * y[l * columns + j];
        store(c, out, k++, total);
      }
  });
  return out;
}
/// Sums of products over all letters; the digits of v0, v1 and v2 are the letters of the operands and result.
array einsum(const call& c) {
  const auto digit = [&](int tensor, int d, int order) {
    return static_cast<std::size_t>(c.at[tensor] >> 4 * (order - 1 - d) & 15);
  };
  constexpr int most = 15;
  std::array<index_t, most + 1> extent;
  extent.fill(-1);
  for (int k = 0; k < 2; ++k) {
    const shape& s = c.operands[static_cast<std::size_t>(k)].extents;
    for (int d = 0; d < s.order; ++d) {
      index_t& e = extent[digit(k, d, s.order)];
      require(c, e < 0 || e == s[d], "extents of a letter differ");
      e = s[d];
    }
  }
  shape to;
  while (c.at[2] >> 4 * to.order) to.append(1);
  std::vector<std::size_t> letters;  // the result's, then the others
  for (int d = 0; d < to.order; ++d) letters.push_back(digit(2, d, to.order));
  for (std::size_t l = 0; l < extent.size(); ++l)
    if (extent[l] >= 0 && std::count(letters.begin(), letters.end(), l) == 0) letters.push_back(l);
  for (int d = 0; d < to.order; ++d) to[d] = extent[letters[static_cast<std::size_t>(d)]];
  std::array<index_t, most + 1> at{};
  const auto factor = [&](int k) {
    const array& x = c.operands[static_cast<std::size_t>(k)];
    position p{};
    for (int d = 0; d < x.extents.order; ++d)
      p[static_cast<std::size_t>(d)] = at[digit(k, d, x.extents.order)];
    return x.number(element_at(x.extents, p));
  };
  const std::function<double(std::size_t)> sum = [&](std::size_t from) {
    if (from == letters.size()) return factor(0) * factor(1);
    double total = 0;
    for (index_t i = 0; i < extent[letters[from]]; ++i) {
      at[letters[from]] = i;
      total += sum(from + 1);
    }
    return total;
  };
  array out = zeros(c.operands[0].type, to);
  for_each(to, [&](const position& p) {
    for (int d = 0; d < to.order; ++d)
      at[letters[static_cast<std::size_t>(d)]] = p[static_cast<std::size_t>(d)];
    store(c, out, element_at(to, p), sum(static_cast<std::size_t>(to.order)));
  });
  return out;
}

// Windows over the last two dims; an attribute packs a number for the height and one for the width.

index_t down(index_t packed) { return packed >> 32; }
index_t across(index_t packed) { return packed & 0xffffffff; }

/// The number of windows of `span` elements that begin `step` apart within `extent`.
index_t windows_in(const call& c, index_t extent, index_t span, index_t step) {
  require(c, span > 0 && step > 0 && span <= extent, "a window does not fit");
  index_t n = 0;
  for (index_t at = 0; at + span <= extent; at += step) ++n;
  return n;
}
/// [..., windows, windows, height, width]; v0: sizes of a window, v1: strides, v2: dilation.
array windows(const call& c) {
  const array& x = c.operands[0];
  const int d = x.extents.order - 2;
  require(c, d >= 0 && d <= 2, "no image");
  shape to = x.extents;
  to[d] = windows_in(c, x.extents[d], down(c.at[2]) * (down(c.at[0]) - 1) + 1, down(c.at[1]));
  to[d + 1] = windows_in(c, x.extents[d + 1], across(c.at[2]) * (across(c.at[0]) - 1) + 1, across(c.at[1]));
  to.append(down(c.at[0]));
  to.append(across(c.at[0]));
  return moved(x, to, [&](position p) {
    index_t* const at = &p[static_cast<std::size_t>(d)];
    at[0] = at[0] * down(c.at[1]) + at[2] * down(c.at[2]);
    at[1] = at[1] * across(c.at[1]) + at[3] * across(c.at[2]);
    return p;
  });
}
/// Calls f(result, element) for every window of size v0 and stride v1 of an image padded by v2 before and v3
/// after it: element(k, l) is the index of the operand's element there, -1 within v4 of the image, -2 beyond.
template <class F>
array pooled(const call& c, dtype type, F f) {
  const array& x = c.operands[0];
  const int d = x.extents.order - 2;
  require(c, d >= 0 && d <= 2, "no image");
  const index_t height = x.extents[d], width = x.extents[d + 1];
  shape to = x.extents;
  to[d] = windows_in(c, height + down(c.at[2]) + down(c.at[3]), down(c.at[0]), down(c.at[1]));
  to[d + 1] = windows_in(c, width + across(c.at[2]) + across(c.at[3]), across(c.at[0]), across(c.at[1]));
  array out = zeros(type, to);
  index_t n = 0;
  for_each(to, [&](const position& p) {
    f(out, n++, [&](index_t k, index_t l) -> index_t {
      position from = p;
      index_t &i = from[static_cast<std::size_t>(d)], &j = from[static_cast<std::size_t>(d + 1)];
      i = i * down(c.at[1]) - down(c.at[2]) + k;
      j = j * across(c.at[1]) - across(c.at[2]) + l;
      if (i >= 0 && i < height && j >= 0 && j < width) return element_at(x.extents, from);
      const index_t down_by = down(c.at[4]), across_by = across(c.at[4]);
      return i >= -down_by && i < height + down_by && j >= -across_by && j < width + across_by ? -1 : -2;
    });
  });
  return out;
}
array max_pool2d(const call& c) {
  const array& x = c.operands[0];
  return pooled(c, x.type, [&](array& out, index_t n, auto element) {
    index_t best = -1;
    for (index_t k = 0; k < down(c.at[0]); ++k)
      for (index_t l = 0; l < across(c.at[0]); ++l) {
        const index_t e = element(k, l);
        if (e < 0) continue;
        const auto i = static_cast<std::size_t>(e), b = static_cast<std::size_t>(best);
        if (best < 0 || (x.floating() ? !(x.f[i] <= x.f[b]) && !std::isnan(x.f[b]) : x.i[i] > x.i[b]))
          best = e;
      }
    copy(out, n, x, best);
  });
}
array avg_pool2d(const call& c) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  return pooled(c, t, [&](array& out, index_t n, auto element) {
    double total = 0, count = 0;
    for (index_t k = 0; k < down(c.at[0]); ++k)
      for (index_t l = 0; l < across(c.at[0]); ++l) {
        const index_t e = element(k, l);
        if (e >= 0) total += x.f[static_cast<std::size_t>(e)];
        if (e >= -1) ++count;
      }
    store(c, out, n, total / count);
  });
}
/// x [B, C, H, W] with a weight [O, C / groups, height, width]; v0: stride, v1: padding, v2: dilation,
/// v3: groups.
array conv2d(const call& c) {
  const array &x = c.operands[0], &w = c.operands[1];
  require(c, x.extents.order == 4 && w.extents.order == 4 && x.type == w.type && x.floating(),
          "no convolution");
  const index_t groups = c.at[3], taken = w.extents[1], made = w.extents[0] / std::max<index_t>(groups, 1);
  require(c, groups > 0 && x.extents[1] == taken * groups && w.extents[0] == made * groups,
          "channels differ");
  const index_t height = x.extents[2], width = x.extents[3];
  shape to = x.extents;
  to[1] = w.extents[0];
  to[2] = windows_in(c, height + 2 * down(c.at[1]), down(c.at[2]) * (w.extents[2] - 1) + 1, down(c.at[0]));
  to[3] =
      windows_in(c, width + 2 * across(c.at[1]), across(c.at[2]) * (w.extents[3] - 1) + 1, across(c.at[0]));
  array out = zeros(x.type, to);
  index_t n = 0;
  for_each(to, [&](const position& p) {
    double total = 0;
    for (index_t ch = 0; ch < taken; ++ch)
      for (index_t k = 0; k < w.extents[2]; ++k)
        for (index_t l = 0; l < w.extents[3]; ++l) {
          const index_t i = p[2] * down(c.at[0]) - down(c.at[1]) + k * down(c.at[2]),
                        j = p[3] * across(c.at[0]) - across(c.at[1]) + l * across(c.at[2]);
          if (i < 0 || i >= height || j < 0 || j >= width) continue;
          const position from{p[0], p[1] / made * taken + ch, i, j}, by{p[1], ch, k, l};
          total += x.f[static_cast<std::size_t>(element_at(x.extents, from))] *
                   w.f[static_cast<std::size_t>(element_at(w.extents, by))];
        }
    store(c, out, n++, total);
  });
  return out;
}

/// Every element of x [B, C, H, W] adds its product with the weight [C, O / groups, height, width] to a
/// window of the result. v0: stride, v1: padding, which is cropped from the result, v2: dilation, v3: groups,
/// v4: output padding.
array conv_transpose2d(const call& c) {
  const array &x = c.operands[0], &w = c.operands[1];
  require(c, x.extents.order == 4 && w.extents.order == 4 && x.type == w.type && x.floating(),
          "no convolution");
  const index_t groups = c.at[3], made = w.extents[1], taken = x.extents[1] / std::max<index_t>(groups, 1);
  require(c, groups > 0 && x.extents[1] == w.extents[0] && taken * groups == x.extents[1], "channels differ");
  shape to = x.extents;
  to[1] = made * groups;
  to[2] = (x.extents[2] - 1) * down(c.at[0]) - 2 * down(c.at[1]) + down(c.at[2]) * (w.extents[2] - 1) + 1 +
          down(c.at[4]);
  to[3] = (x.extents[3] - 1) * across(c.at[0]) - 2 * across(c.at[1]) + across(c.at[2]) * (w.extents[3] - 1) +
          1 + across(c.at[4]);
  require(c, x.extents[2] > 0 && x.extents[3] > 0 && to[2] > 0 && to[3] > 0, "nothing is left");
  std::vector<double> total(static_cast<std::size_t>(to.size()), 0);
  for_each(x.extents, [&](const position& p) {
    for (index_t ch = 0; ch < made; ++ch)
      for (index_t k = 0; k < w.extents[2]; ++k)
        for (index_t l = 0; l < w.extents[3]; ++l) {
          const index_t i = p[2] * down(c.at[0]) - down(c.at[1]) + k * down(c.at[2]),
                        j = p[3] * across(c.at[0]) - across(c.at[1]) + l * across(c.at[2]);
          if (i < 0 || i >= to[2] || j < 0 || j >= to[3]) continue;
          const position by{p[1], ch, k, l}, at{p[0], p[1] / taken * made + ch, i, j};
          total[static_cast<std::size_t>(element_at(to, at))] +=
              x.f[static_cast<std::size_t>(element_at(x.extents, p))] *
              w.f[static_cast<std::size_t>(element_at(w.extents, by))];
        }
  });
  array out = zeros(x.type, to);
  for (index_t n = 0; n < to.size(); ++n) store(c, out, n, total[static_cast<std::size_t>(n)]);
  return out;
}
/// The shape with the last two dims multiplied by the factors v0.
shape upsampled(const call& c) {
  shape to = c.operands[0].extents;
  require(c, to.order >= 2 && to.order <= 4 && down(c.at[0]) > 0 && across(c.at[0]) > 0, "no image");
  to[to.order - 2] *= down(c.at[0]);
  to[to.order - 1] *= across(c.at[0]);
  return to;
}
array upsample_nearest(const call& c) {
  const array& x = c.operands[0];
  const shape to = upsampled(c);
  array out = zeros(x.type, to);
  index_t n = 0;
  for_each(to, [&](position p) {
    p[static_cast<std::size_t>(to.order - 2)] /= down(c.at[0]);
    p[static_cast<std::size_t>(to.order - 1)] /= across(c.at[0]);
    copy(out, n++, x, element_at(x.extents, p));
  });
  return out;
}
/// Interpolates between the elements of x on both sides of each result element's position.
array upsample_bilinear(const call& c) {
  const dtype t = floating(c.operands[0].type);
  const array x = converted(c, c.operands[0], t);
  const shape to = upsampled(c);
  const int last = to.order - 1;
  require(c, x.extents[last - 1] > 0 && x.extents[last] > 0, "no image");
  array out = zeros(t, to);
  index_t n = 0;
  for_each(to, [&](const position& p) {
    const auto around = [&](int dim, index_t by) {
      const double at = std::max(
          (static_cast<double>(p[static_cast<std::size_t>(dim)]) + 0.5) / static_cast<double>(by) - 0.5, 0.0);
      const auto first = static_cast<index_t>(at);
      return std::tuple(first, std::min(first + 1, x.extents[dim] - 1), at - static_cast<double>(first));
    };
    const auto [i0, i1, down_part] = around(last - 1, down(c.at[0]));
    const auto [j0, j1, across_part] = around(last, across(c.at[0]));
    const auto element = [&](index_t i, index_t j) {
      position from = p;
      from[static_cast<std::size_t>(last - 1)] = i;
      from[static_cast<std::size_t>(last)] = j;
      return x.f[static_cast<std::size_t>(element_at(x.extents, from))];
    };
    const double upper = element(i0, j0) * (1 - across_part) + element(i0, j1) * across_part,
                 lower = element(i1, j0) * (1 - across_part) + element(i1, j1) * across_part;
    store(c, out, n++, upper * (1 - down_part) + lower * down_part);
  });
  return out;
}

/// softmax(q k^T / sqrt(features)) v for each batch element and head; consecutive heads may share keys and
/// values. For [batch, head, query, key], is_seen(position) tells whether the score takes part, and
/// added(position) what is added to it.
template <class Seen, class Added>
array attended(const call& c, Seen is_seen, Added added) {
  const array &q = c.operands[0], &k = c.operands[1], &v = c.operands[2];
  for (const array* o : {&q, &k, &v})
    require(c, o->extents.order == 4 && o->type == q.type, "operands differ");
  const index_t batches = q.extents[0], queries = q.extents[1], heads = q.extents[2], features = q.extents[3];
  const index_t keys = k.extents[1], key_heads = k.extents[2];
  require(c, k.extents == v.extents && k.extents[0] == batches && k.extents[3] == features,
          "operands differ");
  require(c, key_heads > 0 ? heads % key_heads == 0 : heads == 0, "key heads do not divide heads");
  array out = zeros(q.type, q.extents);
  for (index_t b = 0; b < batches; ++b)
    for (index_t h = 0; h < heads; ++h) {
      const auto at = [&](index_t t, index_t d) {
        return static_cast<std::size_t>(((b * queries + t) * heads + h) * features + d);
      };
      const auto of_key = [&](index_t s, index_t d) {
        return static_cast<std::size_t>(((b * keys + s) * key_heads + h * key_heads / heads) * features + d);
      };
      for (index_t t = 0; t < queries; ++t) {
        line scores;
        std::vector<index_t> seen;
        for (index_t s = 0; s < keys; ++s) {
          const position p{b, h, t, s};
          if (!is_seen(p)) continue;
          double score = 0;
          for (index_t d = 0; d < features; ++d) score += q.f[at(t, d)] * k.f[of_key(s, d)];
          scores.push_back(score / std::sqrt(static_cast<double>(features)) + added(p));
          seen.push_back(s);
        }
        const line weight = softmax(c, scores);
        for (index_t d = 0; d < features; ++d) {
          double total = 0;
          for (std::size_t s = 0; s < weight.size(); ++s) total += weight[s] * v.f[of_key(seen[s], d)];
          store(c, out, static_cast<index_t>(at(t, d)), total);
        }
      }
    }
  return out;
}
/// v0: queries see no later keys, v1: the position of the first query.
array attention(const call& c) {
  return attended(
      c, [&](const position& p) { return !c.at[0] || p[3] <= c.at[1] + p[2]; },
      [](const position&) { return 0.0; });
}
/// Operand 3 broadcasts to [batch, head, query, key]: bool masks scores, numbers are added to them; v0:
/// queries see no later keys.
array masked_attention(const call& c) {
  const array& mask = c.operands[3];
  const auto number_of = [&](const position& p) {
    position own{};
    const int order = mask.extents.order;
    for (int d = 0; d < order; ++d)
      own[static_cast<std::size_t>(d)] =
          mask.extents[d] == 1 ? 0 : p[static_cast<std::size_t>(4 - order + d)];
    return mask.number(element_at(mask.extents, own));
  };
  const bool is_bool = mask.type == dtype::boolean;
  const auto is_seen = [&](const position& p) {
    return (is_bool ? number_of(p) != 0 : number_of(p) > -INFINITY) && (!c.at[0] || p[3] <= p[2]);
  };
  return attended(c, is_seen, [&](const position& p) { return is_bool ? 0.0 : number_of(p); });
}

// Look-ups.

const array& indices(const call& c, std::size_t operand) {
  const array& index = c.operands[operand];
  require(c, !index.floating() && index.type != dtype::boolean, "indices that are no integers");
  return index;
}
index_t checked(const call& c, std::int64_t index, index_t extent) {
  if (index < 0 || index >= extent)
    refuse(c, "index " + std::to_string(index) + " is outside of [0, " + std::to_string(extent) + ")");
  return index;
}

array index_select(const call& c) {
  const array &table = c.operands[0], &index = indices(c, 1);
  require(c, table.extents.order > 0, "a table without rows");
  shape to = index.extents;
  index_t width = 1;
  for (int d = 1; d < table.extents.order; ++d) {
    to.append(table.extents[d]);
    width *= table.extents[d];
  }
  array out = zeros(table.type, to);
  for (index_t k = 0; k < index.size(); ++k) {
    const index_t row = checked(c, index.i[static_cast<std::size_t>(k)], table.extents[0]);
    for (index_t j = 0; j < width; ++j) copy(out, k * width + j, table, row * width + j);
  }
  return out;
}
array gather(const call& c) {
  const array &x = c.operands[0], &index = indices(c, 1);
  const int along = dim(c, c.at[0], x.extents.order);
  require(c, index.extents.order == x.extents.order, "operands of different order");
  for (int d = 0; d < x.extents.order; ++d)
    require(c, d == along || index.extents[d] == x.extents[d], "operands of different extents");
  index_t k = 0;
  return moved(x, index.extents, [&](position p) {
    p[static_cast<std::size_t>(along)] = checked(c, index.i[static_cast<std::size_t>(k++)], x.extents[along]);
    return p;
  });
}
/// Zeros with extent v1 in dim v0, to which operand 1's elements are added at the indices of operand 0.
array scatter_sum(const call& c) {
  const array &index = indices(c, 0), &source = c.operands[1];
  const int along = dim(c, c.at[0], source.extents.order);
  require(c, index.extents == source.extents && source.type != dtype::boolean, "indices and elements differ");
  shape to = source.extents;
  to[along] = c.at[1];
  array out = zeros(source.type, to);
  index_t k = 0;
  for_each(source.extents, [&](position p) {
    p[static_cast<std::size_t>(along)] = checked(c, index.i[static_cast<std::size_t>(k)], to[along]);
    const auto at = static_cast<std::size_t>(element_at(to, p));
    if (out.floating()) out.f[at] += source.f[static_cast<std::size_t>(k)];
    else out.i[at] = wrapping(bits(out.i[at]) + bits(source.i[static_cast<std::size_t>(k)]));
    ++k;
  });
  for (index_t j = 0; j < out.size(); ++j)
    if (out.floating()) store(c, out, j, out.number(j));
    else store(out, j, out.i[static_cast<std::size_t>(j)]);
  return out;
}
/// Operand 0, plus the elements of operand 2 at the indices along dim v0.
array scatter_add(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  call added{c.op, {{along, x.extents[along]}, 2}, c.type, false, {c.operands[1], c.operands[2]}};
  array out = scatter_sum(added);
  require(c, out.extents == x.extents && out.type == x.type, "operand and sums differ");
  for (index_t j = 0; j < out.size(); ++j) {
    const auto at = static_cast<std::size_t>(j);
    if (out.floating()) store(c, out, j, out.f[at] + x.f[at]);
    else store(out, j, wrapping(bits(out.i[at]) + bits(x.i[at])));
  }
  return out;
}
/// The index of the first largest (v1: smallest) element along dim v0; NaN counts as the extremum.
array arg_extremum(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  require(c, x.extents[along] > 0, "nothing to choose from");
  shape to;
  for (int d = 0; d < x.extents.order; ++d)
    if (d != along) to.append(x.extents[d]);
  array out = zeros(dtype::i64, to);
  index_t k = 0;
  for_each(to, [&](const position& p) {
    const auto element = [&](index_t i) {
      position from{};
      for (int d = 0, next = 0; d < x.extents.order; ++d)
        from[static_cast<std::size_t>(d)] = d == along ? i : p[static_cast<std::size_t>(next++)];
      return element_at(x.extents, from);
    };
    const auto before = [&](index_t a, index_t b) {
      if (!x.floating()) {
        const std::int64_t m = x.i[static_cast<std::size_t>(a)], n = x.i[static_cast<std::size_t>(b)];
        return c.at[1] ? m < n : m > n;
      }
      const double m = x.number(a), n = x.number(b);
      return !std::isnan(n) && (std::isnan(m) || (c.at[1] ? m < n : m > n));
    };
    index_t best = 0;
    for (index_t i = 1; i < x.extents[along]; ++i)
      if (before(element(i), element(best))) best = i;
    store(out, k++, best);
  });
  return out;
}
/// The indices along dim v0 that sort the elements in ascending order (v1: descending), stably, NaN as the
/// largest. v2, if present: how many.
array argsort(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  const index_t size = x.extents[along];
  shape to = x.extents, lines = x.extents;
  if (c.at.count > 2) to[along] = c.at[2];
  require(c, to[along] >= 0 && to[along] <= size, "fewer elements");
  lines[along] = size > 0;
  array out = zeros(dtype::i64, to);
  for_each(lines, [&](position p) {
    const auto at = [&](index_t i) {
      p[static_cast<std::size_t>(along)] = i;
      return element_at(x.extents, p);
    };
    const auto below = [&](index_t a, index_t b) {
      if (!x.floating()) return x.i[static_cast<std::size_t>(a)] < x.i[static_cast<std::size_t>(b)];
      const double m = x.number(a), n = x.number(b);
      return std::isnan(n) ? !std::isnan(m) : m < n;
    };
    std::vector<index_t> order(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), index_t{0});
    const auto before = [&](index_t i, index_t j) {
      return c.at[1] ? below(at(j), at(i)) : below(at(i), at(j));
    };
    std::sort(order.begin(), order.end(),
              [&](index_t i, index_t j) { return before(i, j) || (!before(j, i) && i < j); });
    for (index_t i = 0; i < to[along]; ++i) {
      p[static_cast<std::size_t>(along)] = i;
      store(out, element_at(to, p), order[static_cast<std::size_t>(i)]);
    }
  });
  return out;
}
/// The elements in the order of argsort.
array sort(const call& c) {
  return gather({c.op, c.at, c.operands[0].type, false, {c.operands[0], argsort(c)}});
}
/// Sums of the elements up to and including each position along dim v0, or from it on (v1).
array cumsum(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  array out = zeros(x.floating() ? x.type : dtype::i64, x.extents);
  for_each(x.extents, [&](const position& p) {
    double total = 0;
    std::uint64_t whole = 0;
    const index_t own = p[static_cast<std::size_t>(along)], last = c.at[1] ? x.extents[along] - 1 : own;
    for (index_t i = c.at[1] ? own : 0; i <= last; ++i) {
      position from = p;
      from[static_cast<std::size_t>(along)] = i;
      const index_t at = element_at(x.extents, from);
      if (x.floating()) total += x.number(at);
      else whole += bits(x.i[static_cast<std::size_t>(at)]);
    }
    if (x.floating()) store(c, out, element_at(x.extents, p), total);
    else store(out, element_at(x.extents, p), wrapping(whole));
  });
  return out;
}
/// Products of the elements up to each position along dim v0, or before it (v1).
array cumprod(const call& c) {
  const array& x = c.operands[0];
  const int along = dim(c, c.at[0], x.extents.order);
  array out = zeros(x.floating() ? x.type : dtype::i64, x.extents);
  for_each(x.extents, [&](const position& p) {
    double total = 1;
    std::uint64_t whole = 1;
    const index_t end = p[static_cast<std::size_t>(along)] + (c.at[1] ? 0 : 1);
    for (index_t i = 0; i < end; ++i) {
      position from = p;
      from[static_cast<std::size_t>(along)] = i;
      const index_t at = element_at(x.extents, from);
      if (x.floating()) total *= x.number(at);
      else whole *= bits(x.i[static_cast<std::size_t>(at)]);
    }
    if (x.floating()) store(c, out, element_at(x.extents, p), total);
    else store(out, element_at(x.extents, p), wrapping(whole));
  });
  return out;
}
/// At position i along dim v0: the sum over all j <= i of b[j] a[j + 1] ... a[i]; with v1, the sum over all
/// j >= i of b[j] a[i + 1] ... a[j].
array linear_recurrence(const call& c) {
  const array &a = c.operands[0], &b = c.operands[1];
  const int along = dim(c, c.at[0], a.extents.order);
  array out = zeros(a.type, a.extents);
  for_each(a.extents, [&](const position& p) {
    const index_t own = p[static_cast<std::size_t>(along)];
    const auto element = [&](const array& of, index_t i) {
      position from = p;
      from[static_cast<std::size_t>(along)] = i;
      return of.number(element_at(of.extents, from));
    };
    double total = 0;
    for (index_t j = c.at[1] ? own : 0; j < (c.at[1] ? a.extents[along] : own + 1); ++j) {
      double product = element(b, j);
      for (index_t i = std::min(own, j) + 1; i <= std::max(own, j); ++i) product *= element(a, i);
      total += product;
    }
    store(c, out, element_at(a.extents, p), total);
  });
  return out;
}
array one_hot(const call& c) {
  const array& index = indices(c, 0);
  shape to = index.extents;
  to.append(c.at[0]);
  array out = zeros(dtype::f32, to);
  for (index_t k = 0; k < index.size(); ++k)
    out.f[static_cast<std::size_t>(k * c.at[0] + checked(c, index.i[static_cast<std::size_t>(k)], c.at[0]))] =
        1;
  return out;
}

// Losses.

/// v0: the ignored label; v1: the bits of the label smoothing.
array cross_entropy(const call& c) {
  const array &logits = c.operands[0], &labels = indices(c, 1);
  shape expected = labels.extents;
  expected.append(logits.extents.last());
  require(c, logits.floating() && logits.extents.order > 0 && logits.extents == expected,
          "labels of other extents");
  const index_t classes = logits.extents.last();
  const double smoothing = std::bit_cast<double>(c.at[1]);
  array out = zeros(logits.type, labels.extents);
  for (index_t k = 0; k < labels.size(); ++k) {
    const std::int64_t label = labels.i[static_cast<std::size_t>(k)];
    if (label == c.at[0]) continue;
    const line x(logits.f.begin() + k * classes, logits.f.begin() + (k + 1) * classes);
    const double whole = log_of_sum(x);
    double loss = (1 - smoothing) * (whole - x[static_cast<std::size_t>(checked(c, label, classes))]);
    for (double e : x)
      if (smoothing > 0) loss += smoothing / static_cast<double>(classes) * (whole - e);
    store(c, out, k, loss);
  }
  return out;
}
array nll_loss(const call& c) {
  const array &x = c.operands[0], &labels = indices(c, 1);
  shape expected = labels.extents;
  expected.append(x.extents.last());
  require(c, x.floating() && x.extents.order > 0 && x.extents == expected, "labels of other extents");
  array out = zeros(x.type, labels.extents);
  for (index_t k = 0; k < labels.size(); ++k) {
    const std::int64_t label = labels.i[static_cast<std::size_t>(k)];
    if (label == c.at[0]) continue;
    const index_t at = k * x.extents.last() + checked(c, label, x.extents.last());
    store(c, out, k, -x.f[static_cast<std::size_t>(at)]);
  }
  return out;
}
/// The number of labels that are not v0, in type v1.
array count_labels(const call& c) {
  array out = zeros(static_cast<dtype>(c.at[1]), {});
  const auto& labels = c.operands[0].i;
  store(c, out, 0, static_cast<double>(std::count_if(labels.begin(), labels.end(), [&](std::int64_t l) {
          return l != c.at[0];
        })));
  return out;
}

// Formulas by op. f(const double*) and g(const int64*) take the operands of one element.

array plus_channel_bias(const call& c) {
  const array x = converted(c, c.operands[0], c.type), bias = converted(c, c.operands[1], c.type);
  require(c, x.extents.order >= 2 && bias.extents == shape{1, {x.extents[1]}}, "a bias for each channel");
  array out = zeros(c.type, x.extents);
  for_each(x.extents, [&](const position& p) {
    const index_t i = element_at(x.extents, p);
    store(c, out, i, x.f[static_cast<std::size_t>(i)] + bias.f[static_cast<std::size_t>(p[1])]);
  });
  return out;
}

/// Of a distance d.
double huber(double d, double delta) { return d <= delta ? d * d / 2 : delta * (d - delta / 2); }

#define REAL(formula) [](const double* x) -> double { return formula; }
#define INTEGER(formula) [](const std::int64_t* n) -> std::int64_t { return formula; }

struct definition {
  std::string_view op;
  array (*compute)(const call&);
};

array rows_standardized(const call& c) { return rows(c, standardized); }
array rows_rms_standardized(const call& c) { return rows(c, rms_standardized); }
/// The result of `standardize`, of operand 0, times a weight plus a bias along `dim`.
array weighted(const call& c, array (*standardize)(const call&), int dim) {
  const dtype t = c.type;
  call exact = c;
  exact.rounding = false;  // rounded once, at the end
  array x = standardize(exact);
  const auto disturbed = [&](array& a) {
    if (c.disturb_operand) c.disturb_operand(c.op, a);
  };
  disturbed(x);
  const array weight = converted(c, c.operands[1], t);
  const array bias = converted(c, c.operands.back(), t);
  require(c, weight.extents == shape{1, {x.extents[dim]}} && bias.extents == weight.extents, "weights");
  array out = zeros(t, x.extents);
  const auto of_channel = [&](const array& a, index_t k) { return a.f[static_cast<std::size_t>(k)]; };
  for_each(x.extents, [&](const position& p) {
    x.f[static_cast<std::size_t>(element_at(x.extents, p))] *= of_channel(weight, p[dim]);
  });
  if (c.operands.size() == 3) disturbed(x);
  for_each(x.extents, [&](const position& p) {
    const index_t i = element_at(x.extents, p);
    store(c, out, i, of_channel(x, i) + (c.operands.size() == 3 ? of_channel(bias, p[dim]) : 0));
  });
  return out;
}

constexpr definition definitions[] = {
    {"add",
     [](const call& c) {
       return arithmetic(c, REAL(x[0] + x[1]), INTEGER(wrapping(bits(n[0]) + bits(n[1]))),
                         INTEGER(n[0] || n[1]));
     }},
    {"subtract",
     [](const call& c) {
       return arithmetic(c, REAL(x[0] - x[1]), INTEGER(wrapping(bits(n[0]) - bits(n[1]))), nullptr);
     }},
    {"multiply",
     [](const call& c) {
       return arithmetic(c, REAL(x[0] * x[1]), INTEGER(wrapping(bits(n[0]) * bits(n[1]))),
                         INTEGER(n[0] && n[1]));
     }},
    {"divide", [](const call& c) { return real(c, REAL(x[0] / x[1])); }},
    {"negate",
     [](const call& c) { return arithmetic(c, REAL(-x[0]), INTEGER(wrapping(0 - bits(n[0]))), nullptr); }},
    {"maximum",
     [](const call& c) {
       return arithmetic(c, REAL(larger(x[0], x[1])), INTEGER(std::max(n[0], n[1])), INTEGER(n[0] || n[1]));
     }},
    {"minimum",
     [](const call& c) {
       return arithmetic(c, REAL(smaller(x[0], x[1])), INTEGER(std::min(n[0], n[1])), INTEGER(n[0] && n[1]));
     }},
    {"clamp",
     [](const call& c) {
       return arithmetic(c, REAL(smaller(larger(x[0], x[1]), x[2])),
                         INTEGER(std::min(std::max(n[0], n[1]), n[2])), nullptr);
     }},
    {"clamp_min",
     [](const call& c) {
       return arithmetic(c, REAL(larger(x[0], x[1])), INTEGER(std::max(n[0], n[1])), nullptr);
     }},
    {"clamp_max",
     [](const call& c) {
       return arithmetic(c, REAL(smaller(x[0], x[1])), INTEGER(std::min(n[0], n[1])), nullptr);
     }},
    {"pow", [](const call& c) { return real(c, REAL(std::pow(x[0], x[1]))); }},
    {"exp", [](const call& c) { return real(c, REAL(std::exp(x[0]))); }},
    {"log", [](const call& c) { return real(c, REAL(std::log(x[0]))); }},
    {"log1p", [](const call& c) { return real(c, REAL(std::log1p(x[0]))); }},
    {"expm1", [](const call& c) { return real(c, REAL(std::expm1(x[0]))); }},
    {"sqrt", [](const call& c) { return real(c, REAL(std::sqrt(x[0]))); }},
    {"rsqrt", [](const call& c) { return real(c, REAL(1 / std::sqrt(x[0]))); }},
    {"sin", [](const call& c) { return real(c, REAL(std::sin(x[0]))); }},
    {"cos", [](const call& c) { return real(c, REAL(std::cos(x[0]))); }},
    {"tanh", [](const call& c) { return real(c, REAL(std::tanh(x[0]))); }},
    {"atan", [](const call& c) { return real(c, REAL(std::atan(x[0]))); }},
    {"asin", [](const call& c) { return real(c, REAL(std::asin(x[0]))); }},
    {"acos", [](const call& c) { return real(c, REAL(std::acos(x[0]))); }},
    {"atan2", [](const call& c) { return real(c, REAL(std::atan2(x[0], x[1]))); }},
    {"floor_divide",
     [](const call& c) {
       return arithmetic(c, REAL(std::floor(x[0] / x[1])), INTEGER(floored(n[0], n[1]).first), nullptr);
     }},
    {"remainder",
     [](const call& c) {
       return arithmetic(c, REAL(x[0] - std::floor(x[0] / x[1]) * x[1]), INTEGER(floored(n[0], n[1]).second),
                         nullptr);
     }},
    {"erf", [](const call& c) { return real(c, REAL(std::erf(x[0]))); }},
    {"abs",
     [](const call& c) {
       return arithmetic(c, REAL(std::abs(x[0])), INTEGER(n[0] < 0 ? wrapping(0 - bits(n[0])) : n[0]),
                         INTEGER(n[0]));
     }},
    {"sign",
     [](const call& c) {
       return arithmetic(c, REAL((x[0] > 0) - (x[0] < 0)), INTEGER((n[0] > 0) - (n[0] < 0)), INTEGER(n[0]));
     }},
    {"floor", [](const call& c) { return to_integer(c, [](double x) { return std::floor(x); }); }},
    {"round", [](const call& c) { return to_integer(c, [](double x) { return std::nearbyint(x); }); }},
    {"cast", [](const call& c) { return converted(c, c.operands[0], static_cast<dtype>(c.at[0])); }},
    {"equal", [](const call& c) { return comparison(c, REAL(x[0] == x[1]), INTEGER(n[0] == n[1])); }},
    {"less", [](const call& c) { return comparison(c, REAL(x[0] < x[1]), INTEGER(n[0] < n[1])); }},
    {"less_equal", [](const call& c) { return comparison(c, REAL(x[0] <= x[1]), INTEGER(n[0] <= n[1])); }},
    {"logical_and", [](const call& c) { return logic(c, INTEGER(n[0] && n[1])); }},
    {"logical_or", [](const call& c) { return logic(c, INTEGER(n[0] || n[1])); }},
    {"logical_not", [](const call& c) { return logic(c, INTEGER(!n[0])); }},
    {"where", where},
    {"relu", [](const call& c) { return real(c, REAL(larger(x[0], 0))); }},
    {"sigmoid", [](const call& c) { return real(c, REAL(1 / (1 + std::exp(-x[0])))); }},
    {"silu", [](const call& c) { return real(c, REAL(x[0] / (1 + std::exp(-x[0])))); }},
    {"gelu", [](const call& c) { return real(c, REAL(0.5 * x[0] * std::erfc(-x[0] / std::sqrt(2.0)))); }},
    {"gelu_tanh",
     [](const call& c) {
       return real(
           c, REAL(0.5 * x[0] *
                   (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x[0] + 0.044715 * x[0] * x[0] * x[0])))));
     }},
    {"softplus", [](const call& c) { return real(c, REAL(softplus(x[0]))); }},
    {"square", [](const call& c) { return real(c, REAL(x[0] * x[0])); }},
    {"bce_with_logits",
     [](const call& c) {
       if (c.operands.size() > 2)
         return real(c, REAL(x[2] * x[1] * softplus(-x[0]) + (1 - x[1]) * softplus(x[0])));
       return real(c, REAL(larger(x[0], 0) - x[0] * x[1] + std::log1p(std::exp(-std::abs(x[0])))));
     }},
    {"mse_loss", [](const call& c) { return real(c, REAL((x[0] - x[1]) * (x[0] - x[1]))); }},
    {"l1_loss", [](const call& c) { return real(c, REAL(std::abs(x[0] - x[1]))); }},
    {"huber_loss", [](const call& c) { return real(c, REAL(huber(std::abs(x[0] - x[1]), x[2]))); }},
    {"smooth_l1_loss",
     [](const call& c) { return real(c, REAL(huber(std::abs(x[0] - x[1]), x[2]) / x[2])); }},
    {"binary_cross_entropy",
     [](const call& c) {
       return real(c,
                   REAL(-x[1] * larger(std::log(x[0]), -100) - (1 - x[1]) * larger(std::log1p(-x[0]), -100)));
     }},
    {"hinge_embedding_loss",
     [](const call& c) {
       return real(c, REAL((x[1] == 1 ? 0 : larger(x[2] - x[0], 0)) + (x[1] == -1 ? 0 : x[0])));
     }},
    {"margin_ranking_loss", [](const call& c) { return real(c, REAL(larger(x[2] - x[1] * x[0], 0))); }},
    {"cosine_similarity", [](const call& c) { return real(c, REAL(x[0] * x[1])); }},
    {"cosine_embedding_loss",
     [](const call& c) {
       return real(c, REAL(x[1] == 1 ? 1 - x[0] : x[1] == -1 ? larger(x[0] - x[2], 0) : 0));
     }},
    {"leaky_relu", [](const call& c) { return real(c, REAL(x[0] > 0 ? x[0] : x[0] * x[1])); }},
    {"elu", [](const call& c) { return real(c, REAL(x[0] > 0 ? x[0] : x[1] * std::expm1(x[0]))); }},
    {"contiguous", [](const call& c) { return c.operands[0]; }},
    {"detach", [](const call& c) { return c.operands[0]; }},
    {"tap", [](const call& c) { return c.operands[0]; }},
    {"sum_over_positions", [](const call& c) { return c.operands[0]; }},
    {"reshape", reshape},
    {"unsqueeze", unsqueeze},
    {"select", select},
    {"permute", permute},
    {"expand", expand},
    {"slice", slice},
    {"flip", flip},
    {"pad", pad},
    {"pad_ends", pad_ends},
    {"concat", concat},
    {"unflatten", unflatten},
    {"flatten", flatten},
    {"chunk", chunk},
    {"matmul", matmul},
    {"einsum", einsum},
    {"sum", sum},
    {"mean", mean},
    {"amax", [](const call& c) { return extremum(c, false); }},
    {"amin", [](const call& c) { return extremum(c, true); }},
    {"logsumexp", [](const call& c) { return reduced(c, floating(c.operands[0].type), log_of_sum); }},
    {"variance", [](const call& c) { return variance(c, [](double v) { return v; }); }},
    {"stddev", [](const call& c) { return variance(c, [](double v) { return std::sqrt(v); }); }},
    {"vector_norm", [](const call& c) { return reduced(c, floating(c.operands[0].type), norm_of); }},
    {"normalize", [](const call& c) { return along(c, c.at[0], normalized); }},
    {"softmax", [](const call& c) { return along(c, c.at[0], softmax); }},
    {"log_softmax", [](const call& c) { return along(c, c.at[0], log_softmax); }},
    {"standardize", rows_standardized},
    {"rms_standardize", rows_rms_standardized},
    {"group_standardize", group_standardized},
    {"channel_moments", channel_moments},
    {"batch_norm", channels_normalized},
    {"layer_norm",
     [](const call& c) { return weighted(c, rows_standardized, c.operands[0].extents.order - 1); }},
    {"rms_norm",
     [](const call& c) { return weighted(c, rows_rms_standardized, c.operands[0].extents.order - 1); }},
    {"group_norm", [](const call& c) { return weighted(c, group_standardized, 1); }},
    {"cross_entropy", cross_entropy},
    {"nll_loss", nll_loss},
    {"count_labels", count_labels},
    {"index_select", index_select},
    {"gather", gather},
    {"scatter_sum", scatter_sum},
    {"scatter_add", scatter_add},
    {"arg_extremum", arg_extremum},
    {"argsort", argsort},
    {"argtopk", argsort},
    {"sort", sort},
    {"topk", sort},
    {"cumsum", cumsum},
    {"cumprod", cumprod},
    {"linear_recurrence", linear_recurrence},
    {"one_hot", one_hot},
    {"attention", attention},
    {"masked_attention", masked_attention},
    {"windows", windows},
    {"max_pool2d", max_pool2d},
    {"avg_pool2d", avg_pool2d},
    {"conv2d", conv2d},
    {"plus_channel_bias", plus_channel_bias},
    {"conv_transpose2d", conv_transpose2d},
    {"upsample_nearest", upsample_nearest},
    {"upsample_bilinear", upsample_bilinear},
    {"rotary", rotary},
    {"rotary_at", rotary_at},
};

const definition* definition_of(std::string_view op) {
  for (const definition& d : definitions)
    if (d.op == op) return &d;
  return nullptr;
}

}  // namespace

array zeros(dtype type, const shape& extents) {
  array a{type, extents, {}, {}};
  const auto n = static_cast<std::size_t>(count(extents));
  if (a.floating()) a.f.assign(n, 0);
  else a.i.assign(n, 0);
  return a;
}
array numbers(dtype type, const shape& extents, std::vector<double> elements) {
  if (static_cast<index_t>(elements.size()) != count(extents))
    throw undefined("numbers: not as many as the extents say");
  return {type, extents, std::move(elements), {}};
}
array integers(dtype type, const shape& extents, std::vector<std::int64_t> elements) {
  if (static_cast<index_t>(elements.size()) != count(extents))
    throw undefined("integers: not as many as the extents say");
  return {type, extents, {}, std::move(elements)};
}

double rounded(double x, dtype type) {
  if (type == dtype::f64 || x == 0 || !std::isfinite(x)) return x;
  if (type != dtype::f32) x = rounded(x, dtype::f32);  // the computation of a narrow result is in f32
  if (x == 0 || !std::isfinite(x)) return x;
  const format f = format_of(type);
  const int unit = std::max(std::ilogb(x) - f.digits + 1, f.smallest);
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::abs(y) > f.largest ? std::copysign(inf, x) : y;
}
double epsilon(dtype type) { return std::ldexp(1.0, 1 - format_of(type).digits); }

namespace {
template <class T>
T element_of(const void* bytes, std::size_t k) {
  T x;
  std::memcpy(&x, static_cast<const char*>(bytes) + k * sizeof(T), sizeof(T));
  return x;
}
double from_half(std::uint16_t u) {
  const int exponent = u >> 10 & 31, fraction = u & 1023;
  const double sign = u >> 15 ? -1 : 1;
  if (exponent == 31) return fraction ? nan : sign * inf;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}
}  // namespace

array decoded(dtype type, const shape& extents, const void* bytes) {
  array a = zeros(type, extents);
  for (std::size_t k = 0; k < static_cast<std::size_t>(a.size()); ++k) switch (type) {
      case dtype::f64: a.f[k] = element_of<double>(bytes, k); break;
      case dtype::f32: a.f[k] = static_cast<double>(element_of<float>(bytes, k)); break;
      case dtype::bf16:
        a.f[k] = static_cast<double>(
            std::bit_cast<float>(static_cast<std::uint32_t>(element_of<std::uint16_t>(bytes, k)) << 16));
        break;
      case dtype::f16: a.f[k] = from_half(element_of<std::uint16_t>(bytes, k)); break;
      case dtype::i64: a.i[k] = element_of<std::int64_t>(bytes, k); break;
      case dtype::i32: a.i[k] = element_of<std::int32_t>(bytes, k); break;
      default: a.i[k] = element_of<std::uint8_t>(bytes, k);
    }
  return a;
}

bool is_defined(std::string_view op) { return definition_of(op) != nullptr; }

array compute(const call& c) {
  const definition* d = definition_of(c.op);
  if (!d) throw undefined(std::string(c.op) + ": the oracle has no definition of this op");
  array result = d->compute(c);
  if (result.type != c.type)
    throw undefined(std::string(c.op) + ": the expression says " + name_of(c.type) + ", the definition " +
                    name_of(result.type));
  return result;
}

bool converged(const derivative& d) {
  double largest = 1e-6;
  for (double x : d.value.f) largest = larger(largest, std::abs(x));
  return std::all_of(d.error.f.begin(), d.error.f.end(), [&](double e) { return e <= 1e-4 * largest; }) &&
         std::isfinite(largest);
}

namespace detail {

attributes with_sizes(attributes at, const index_t* sizes, int count) {
  for (int k = 0; k < at.count && count > 0; ++k)
    if (at[k] == dyn) {
      at[k] = *sizes++;
      --count;
      if (at[k] < 0) throw undefined("a negative size");
    }
  return at;
}

array leaf(const tensor_state& t, const environment& e) {
  const auto found = e.given->leaves.find(&t);
  array elements = found != e.given->leaves.end() && !e.detached ? found->second : read(t);
  if (e.given->disturb) e.given->disturb("leaf", elements);
  return elements;
}

array variable(const char* identity, const environment& e) {
  for (std::size_t k = e.variables.size(); k-- > 0;)
    if (e.variables[k].identity == identity)
      return e.detached && !e.given->leaves.empty() ? e.variables[k].still : e.variables[k].value;
  throw undefined("let: a variable outside of its let");
}

double weighed(const array& a, const array& weights) {
  if (weights.size() > 0 && weights.size() != a.size()) throw undefined("weights of another shape");
  double total = 0;
  for (index_t k = 0; k < a.size(); ++k) total += a.number(k) * (weights.size() > 0 ? weights.number(k) : 1);
  return total;
}

namespace {

/// Ridders' method: extrapolates quotients at steps h, h / 2, ..., whose error is even in h, to step 0.
std::pair<double, double> extrapolated(const std::function<double(double)>& quotient, double h) {
  line last, row;
  double best = nan, error = inf;
  for (int level = 0; level < 12; ++level, h /= 2) {
    row.assign(1, quotient(h));
    double factor = 4;
    for (std::size_t j = 1; j <= last.size(); ++j, factor *= 4) {
      row.push_back((factor * row[j - 1] - last[j - 1]) / (factor - 1));
      const double apart = std::max(std::abs(row[j] - row[j - 1]), std::abs(row[j] - last[j - 1]));
      if (apart < error) best = row[j], error = apart;
    }
    if (error <= 1e-11 * std::abs(best)) break;
    if (!std::isfinite(row[0])) row.clear();  // outside of the function's domain
    last = row;
  }
  return {best, error};
}

/// The first step for an element: small compared to it, so that it does not cross the domain's border.
double step_at(double x) { return 0.05 * std::max(std::abs(x), 0.1); }

double step_along(const array& from, const array& direction) {
  if (direction.size() != from.size()) throw undefined("a direction of another shape");
  double step = 1;
  for (std::size_t k = 0; k < from.f.size(); ++k)
    if (direction.f[k] != 0) step = std::min(step, step_at(from.f[k]) / std::abs(direction.f[k]));
  return step;
}

array floating_elements(const tensor_state& t) {
  array a = read(t);
  if (!a.floating()) throw undefined("a derivative with respect to integers");
  return a;
}

}  // namespace

derivative slopes(const function& f, const tensor_state& leaf) {
  const array at = floating_elements(leaf);
  derivative d{at, at};
  replacements moved{{&leaf, at}};
  for (std::size_t k = 0; k < at.f.size(); ++k) {
    double& x = moved.at(&leaf).f[k];
    const auto quotient = [&](double h) {
      x = at.f[k] + h;
      const double above = f(moved), up = x;
      x = at.f[k] - h;
      return (above - f(moved)) / (up - x);
    };
    std::tie(d.value.f[k], d.error.f[k]) = extrapolated(quotient, step_at(at.f[k]));
    x = at.f[k];
  }
  return d;
}

derivative slope(const function& f, const tensor_state& leaf, const array& direction) {
  const array from = floating_elements(leaf);
  const auto value_at = [&](double t) {
    replacements moved{{&leaf, from}};
    for (std::size_t j = 0; j < from.f.size(); ++j) moved.at(&leaf).f[j] += t * direction.f[j];
    return f(moved);
  };
  const auto quotient = [&](double t) { return (value_at(t) - value_at(-t)) / (2 * t); };
  const auto [value, error] = extrapolated(quotient, step_along(from, direction));
  return {numbers(dtype::f64, {}, {value}), numbers(dtype::f64, {}, {error})};
}

derivative slopes_along(const function& f, const tensor_state& along, const array& direction,
                        const tensor_state& leaf) {
  const array at = floating_elements(leaf), from = floating_elements(along);
  const double step = step_along(from, direction);
  derivative d{at, at};
  for (std::size_t k = 0; k < at.f.size(); ++k) {
    const double ratio = step_at(at.f[k]) / step;
    const auto value_at = [&](double h, double t) {
      replacements moved{{&leaf, at}, {&along, from}};
      auto& line_of = moved.at(&along).f;
      for (std::size_t j = 0; j < line_of.size(); ++j) line_of[j] += t * direction.f[j];
      moved.at(&leaf).f[k] += h;
      return f(moved);
    };
    const auto quotient = [&](double t) {
      const double h = t * ratio;
      return (value_at(h, t) - value_at(h, -t) - value_at(-h, t) + value_at(-h, -t)) / (4 * h * t);
    };
    std::tie(d.value.f[k], d.error.f[k]) = extrapolated(quotient, step);
  }
  return d;
}

}  // namespace detail

}  // namespace weft::test::oracle
