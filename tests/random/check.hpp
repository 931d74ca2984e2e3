// SPDX-License-Identifier: MIT
// Checks random programs: the library's values and derivatives against those of tests/oracle.hpp.
//
// A program is a function of leaves. It is evaluated on the CPU, on the reference back end and, if
// WEFT_TEST_DEVICE names one, on a device. The tolerance follows from the program: the oracle
// evaluates it several times with small random errors in every step, and a multiple of the spread of
// the results is the tolerance.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/gpu/open.hpp>
#include <weft/lower/reference.hpp>
#include <weft/weft.hpp>

#include "../oracle.hpp"

namespace weft::random_programs {

/// The errors of one program; none if it is right.
struct verdict {
  std::vector<std::string> complaints;
  void say(std::string text) { complaints.push_back(std::move(text)); }
};

/// A device on which programs are evaluated.
struct place {
  const char* name;
  device where;
};
inline const std::vector<place>& places() {
  static const std::vector<place>* all = [] {
    auto* p = new std::vector<place>{{"cpu", default_device()},
                                     {"reference", device(std::make_shared<lower::reference_backend>())}};
    if (const char* name = std::getenv("WEFT_TEST_DEVICE"))
      if (*name) p->push_back({name, open_device(name)});
    return p;
  }();
  return *all;
}

// ------------------------------------------------------------------------------------------- leaves

enum class fill { real, integer, special, label };

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}
/// A number in [0, 1) that depends on the seed, the leaf and the element.
inline double uniform(std::uint64_t seed, std::uint64_t leaf, std::uint64_t i) {
  return static_cast<double>(mixed(mixed(mixed(seed + 1) + leaf + 1) + i) >> 11) * 0x1p-53;
}

/// The elements of a leaf in double, as specified by the generator.
inline double element_of(fill how, double low, double high, dtype type, double u) {
  if (how == fill::real) return low + (high - low) * u;
  if (how == fill::label && u < 0.2) return -100;
  if (how == fill::special && u < 0.5) {
    const double infinity = std::numeric_limits<double>::infinity();
    const double smallest = type == dtype::f64 ? 0x1p-1060 : type == dtype::f16 ? 0x1p-20 : 0x1p-140;
    const double values[] = {std::numeric_limits<double>::quiet_NaN(),
                             infinity,
                             -infinity,
                             0.0,
                             -0.0,
                             smallest,
                             -3 * smallest,
                             1.0,
                             -1.0};
    return values[static_cast<int>(u * 2 * 9)];
  }
  if (how == fill::special) return low + (high - low) * (2 * u - 1);
  const double n = how == fill::label ? (u - 0.2) / 0.8 : u;
  return low + std::min(std::floor(n * (high - low + 1)), high - low);
}

template <element T, class Extents, bool Tracked = false>
struct leaf {
  using tensor_type = tensor<T, Extents, Tracked>;
  static constexpr bool tracked = Tracked;
  shape extents;
  fill how;
  double low, high;

  tensor_type make(const device& where, std::uint64_t seed, std::uint64_t number) const {
    const auto state = weft::detail::generated<T>(extents, [&](index_t i) {
      return element_of(how, low, high, dtype_of<T>, uniform(seed, number, static_cast<std::uint64_t>(i)));
    }, where);
    return tensor_type(state);
  }
};

/// The leaves of a program on a device.
template <class... Leaf>
auto make_leaves(const device& where, std::uint64_t seed, const Leaf&... l) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple{l.make(where, seed, I)...};
  }(std::index_sequence_for<Leaf...>{});
}

// ------------------------------------------------------------------------------------------- forms

/// The type and extents of a result that the generator predicts.
template <element T, class Extents>
struct form_is {
  template <class E>
  static void look_at(verdict& v) {
    if (!std::is_same_v<typename E::value_type, T>)
      v.say(std::string("type: the expression has elements of type ") +
            name_of(dtype_of<typename E::value_type>) + ", expected " + name_of(dtype_of<T>));
    if (!(E::static_shape == Extents::static_shape))
      v.say("extents: the expression's type says " + to_string(E::static_shape) + ", expected " +
            to_string(Extents::static_shape));
  }
};
struct any_form {
  template <class E>
  static void look_at(verdict&) {}
};

// ------------------------------------------------------------------------------------------- values

/// Elements in double, integers too, which are small or are compared exactly.
struct numbers {
  dtype type;
  shape extents;
  std::vector<double> at;
};

template <class T, class Extents, bool G>
numbers downloaded(const tensor<T, Extents, G>& t, verdict& v) {
  numbers n{t.state()->type, t.extents(), {}};
  const auto count = static_cast<std::size_t>(t.size());
  std::vector<unsigned char> bytes(count * sizeof(T));
  weft::detail::download_to(*t.state(), bytes.data());
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bool>) {
      if (bytes[i] > 1) v.say("a bool is stored as " + std::to_string(bytes[i]));
      n.at.push_back(bytes[i] != 0);
    } else {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
      n.at.push_back(static_cast<double>(x));
    }
  }
  return n;
}

inline numbers from_oracle(const test::oracle::array& a) {
  numbers n{a.type, a.extents, {}};
  if (is_floating(a.type)) n.at = a.f;
  else n.at.assign(a.i.begin(), a.i.end());
  return n;
}

constexpr double epsilon_of(dtype t) {
  return t == dtype::f64    ? 0x1p-53
         : t == dtype::f32  ? 0x1p-24
         : t == dtype::bf16 ? 0x1p-9
         : t == dtype::f16  ? 0x1p-12
                            : 0;
}
constexpr double smallest_of(dtype t) {
  return t == dtype::f64 ? 0x1p-1022 : t == dtype::f16 ? 0x1p-23 : 0x1p-125;
}

/// The expected value, and its tolerance.
struct expectation {
  numbers value;
  std::vector<double> tolerance;
  dtype coarsest = dtype::f64;  // of the floating types of all intermediate results
  double largest = 0;           // of all intermediate results
};

inline constexpr int spread_runs = 6;
inline constexpr double slack = 8;

/// Ops whose result is exact, or exact up to one rounding to its type: the same on every device.
inline bool is_exact(std::string_view op) {
  constexpr std::string_view ops[] = {
      "add",     "subtract", "multiply",     "negate",     "abs",          "sign",       "floor",
      "round",   "maximum",  "minimum",      "clamp",      "relu",         "square",     "where",
      "cast",    "equal",    "less",         "less_equal", "logical_and",  "logical_or", "logical_not",
      "amax",    "amin",     "detach",       "contiguous", "reshape",      "permute",    "expand",
      "slice",   "flip",     "pad",          "concat",     "unsqueeze",    "select",     "unflatten",
      "flatten", "chunk",    "index_select", "gather",     "arg_extremum", "one_hot",    "count_labels",
      "argsort", "argtopk",  "sort",         "topk",       "clamp_min",    "clamp_max"};
  return std::find(std::begin(ops), std::end(ops), op) != std::end(ops);
}

/// Adds small random errors to results that depend on how they are computed, and to leaves, whose sums do.
/// Small integers are exact. Each op also runs on operands with a small error in each element, because a mean
/// of equal numbers need not equal them. Without a seed it only observes.
struct disturbance {
  std::uint64_t state = 0;
  double largest = 0;                               // of all intermediate results
  double most_elements = 0, fewest_elements = 1e9;  // of any array; of a computed array
  bool computes = false;                            // whether an op was not exact
  bool computes_in_f32 = false;                     // whether such an op had an f32 result
  dtype coarsest = dtype::f64;
  double operands = 0;  // the largest element of the operands of the op whose result comes next

  void operator()(std::string_view op, test::oracle::array& a) {
    const bool leaf = op == "leaf", narrow = a.type == dtype::bf16 || a.type == dtype::f16;
    most_elements = std::max(most_elements, static_cast<double>(a.f.size()));
    if (!leaf) fewest_elements = std::min(fewest_elements, static_cast<double>(a.f.size()));
    for (double x : a.f)
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    if (is_floating(a.type) && epsilon_of(a.type) > epsilon_of(coarsest)) coarsest = a.type;
    const double of_operands = std::exchange(operands, 0.0);
    if (leaf ? narrow : is_exact(op)) return;
    computes = computes || !leaf;
    computes_in_f32 = computes_in_f32 || (!leaf && a.type == dtype::f32);
    shake(a, epsilon_of(a.type));
    // A logit minus the log of a sum is 0 for one class, but has rounding errors of the logits' size.
    if (state && op == "cross_entropy")
      for (double& x : a.f) x += 2 * epsilon_of(a.type) * of_operands * random();
  }
  void operand(std::string_view op, test::oracle::array& a) {
    for (double x : a.f)
      if (std::isfinite(x)) operands = std::max(operands, std::abs(x));
    if (!is_exact(op)) shake(a, a.type == dtype::f64 ? epsilon_of(dtype::f64) : epsilon_of(dtype::f32));
  }

 private:
  void shake(test::oracle::array& a, double eps) {
    if (!state) return;
    for (double& x : a.f)
      if (x != std::rint(x) || std::abs(x) > 256)
        x *= 1 + eps * random();
  }
  /// A random number from -1 to 1.
  double random() { return static_cast<double>(mixed(++state) >> 11) * 0x1p-52 - 1; }
};

/// The oracle's value of `e`, with the spread of its values under small errors.
template <class E>
expectation expected_of(const E& e, std::uint64_t seed) {
  const auto value_with = [&](disturbance& d) {
    return from_oracle(test::oracle::value(
        e, {.leaves = {},
            .disturb = [&](std::string_view op, test::oracle::array& a) { d(op, a); },
            .disturb_operand = [&](std::string_view op, test::oracle::array& a) { d.operand(op, a); }}));
  };
  disturbance none;
  expectation right{value_with(none), {}};
  right.coarsest = none.coarsest;
  right.largest = none.largest;
  const dtype type = right.value.type;
  if (!is_floating(type)) return right;
  const bool wide = type == dtype::f64 || type == dtype::f32;
  // Formulas add and subtract values of this size several times, and sums add many of them for each result;
  // in f32 if the type is narrow.
  const double terms = std::max(1.0, none.most_elements / std::max(1.0, none.fewest_elements));
  const double inside = 8 * terms * none.largest * epsilon_of(wide ? type : dtype::f32) + smallest_of(type);
  // An f32 value cast to f64 is no more accurate, and the errors added to it may all be rounded away.
  const double relative =
      std::max(4 * epsilon_of(type), none.computes_in_f32 ? 2 * epsilon_of(dtype::f32) : 0);
  for (double x : right.value.at)
    right.tolerance.push_back(wide || none.computes ? relative * std::abs(x) + inside : 0);
  for (std::uint64_t run = 1; run <= spread_runs; ++run) {
    disturbance errors{mixed(seed + run) >> 1 | 1};
    const numbers other = value_with(errors);
    for (std::size_t i = 0; i < right.tolerance.size(); ++i) {
      const double apart = std::abs(other.at[i] - right.value.at[i]);
      if (apart == apart) right.tolerance[i] = std::max(right.tolerance[i], slack * apart);
    }
  }
  return right;
}

inline std::string text_of(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

/// Reports the first element that differs. NaN and infinities must be in the same places.
inline void compare(verdict& v, const std::string& where, const numbers& got, const expectation& e) {
  if (got.type != e.value.type)
    return v.say(where + ": a value of type " + name_of(got.type) + ", expected " + name_of(e.value.type));
  if (!(got.extents == e.value.extents))
    return v.say(where + ": extents " + to_string(got.extents) + ", expected " + to_string(e.value.extents));
  for (std::size_t i = 0; i < got.at.size(); ++i) {
    const double a = got.at[i], b = e.value.at[i];
    if (a == b || (a != a && b != b)) continue;
    const double tolerance = e.tolerance.empty() ? 0 : e.tolerance[i];
    if (std::isfinite(a) && std::isfinite(b) && std::abs(a - b) <= tolerance) continue;
    return v.say(where + ": element " + std::to_string(i) + " of " + to_string(got.extents) + " is " +
                 text_of(a) + ", expected " + text_of(b) + " within " + text_of(tolerance));
  }
}

// ------------------------------------------------------------------------------------------- checks

inline constexpr auto no_cut = [](auto e) { return e; };

/// Calls f(place, context, leaves...) in each place; reports exceptions.
template <class F, class... Leaf>
void everywhere(verdict& v, std::uint64_t seed, const F& f, const Leaf&... l) {
  for (const place& p : places()) {
    try {
      context c(p.where);
      auto leaves = make_leaves(p.where, seed, l...);
      std::apply([&](auto&... x) { f(p, c, x...); }, leaves);
    } catch (const std::exception& e) {
      v.say(std::string(p.name) + ": threw: " + e.what());
    }
  }
}

template <class P, class... Leaf>
auto expression_of(const P& program, std::uint64_t seed, const Leaf&... l) {
  auto leaves = make_leaves(default_device(), seed, l...);
  return std::apply([&](auto&... x) { return program(no_cut, x...); }, leaves);
}

template <class Form, class P, class... Leaf>
void check_value(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  const auto e = expression_of(program, seed, l...);
  Form::template look_at<std::remove_const_t<decltype(e)>>(v);
  const expectation right = expected_of(e, seed);
  everywhere(v, seed, [&](const place& p, context& c, auto&... x) {
    compare(v, p.name, downloaded(eval(program(no_cut, x...), c), v), right);
  }, l...);
}

/// The same with a part of the program evaluated separately.
template <class Form, class P, class... Leaf>
void check_value_cut(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  const auto e = expression_of(program, seed, l...);
  Form::template look_at<std::remove_const_t<decltype(e)>>(v);
  const expectation right = expected_of(e, seed);
  everywhere(v, seed, [&](const place& p, context& c, auto&... x) {
    const auto cut = [&](auto part) { return eval(part, c); };
    compare(v, std::string(p.name) + ", whole", downloaded(eval(program(no_cut, x...), c), v), right);
    compare(v, std::string(p.name) + ", in two", downloaded(eval(program(cut, x...), c), v), right);
  }, l...);
}

/// An in-place update of the first leaf, which the program may read.
template <class Form, class P, class... Leaf>
void check_update(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  const auto e = expression_of(program, seed, l...);
  Form::template look_at<std::remove_const_t<decltype(e)>>(v);
  const expectation right = expected_of(e, seed);
  everywhere(v, seed, [&](const place& p, context& c, auto& target, auto&... x) {
    update(c, {target.state()}, program(no_cut, target, x...));
    compare(v, p.name, downloaded(target, v), right);
  }, l...);
}

/// A program with a mistake that only run time can detect: it must throw a weft error.
template <class Form, class P, class... Leaf>
void check_refused(verdict& v, std::uint64_t seed, const P& program, const Leaf&... l) {
  for (const place& p : places()) {
    context c(p.where);
    auto leaves = make_leaves(p.where, seed, l...);
    try {
      std::apply([&](auto&... x) { eval(program(no_cut, x...), c); }, leaves);
      p.where->synchronize();
      v.say(std::string(p.name) + ": no error");
    } catch (const error&) {
    } catch (const std::exception& e) {
      v.say(std::string(p.name) + ": an error that is not weft's: " + e.what());
    }
  }
}

}  // namespace weft::random_programs

#include "derivatives.hpp"

namespace weft::random_programs {

struct named_program {
  const char* name;
  void (*check)(verdict&);
};

/// Runs the programs named in the arguments, or all; prints a line for each. The exit code is 1 if one fails.
inline int judge(int argc, char** argv, std::initializer_list<named_program> programs) {
  int wrong = 0;
  for (const named_program& p : programs) {
    bool named = argc < 2;
    for (int i = 1; i < argc; ++i) named = named || std::strcmp(argv[i], p.name) == 0;
    if (!named) continue;
    verdict v;
    std::printf("%s ", p.name);
    std::fflush(stdout);
    try {
      p.check(v);
    } catch (const std::exception& e) {
      v.say(std::string("threw: ") + e.what());
    }
    std::printf(v.complaints.empty() ? "right\n" : "WRONG\n");
    for (const std::string& text : v.complaints) std::printf("  %s\n", text.c_str());
    wrong += !v.complaints.empty();
  }
  return wrong ? 1 : 0;
}

}  // namespace weft::random_programs
