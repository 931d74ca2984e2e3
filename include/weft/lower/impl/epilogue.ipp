// SPDX-License-Identifier: MIT
// Definitions of <weft/lower/epilogue.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/lower/code.hpp>
#include <weft/lower/epilogue.hpp>
#include <weft/op/all.hpp>

namespace weft {
namespace lower {
namespace detail {

/// A register as a term: the arguments that it adds up, and whether one of them is the product; or else its
/// text, in which sums are named by their registers.
struct term {
  std::vector<int> added{};
  bool has_product = false, is_sum = false;
  std::string text{};
};

inline std::string text_of(const std::vector<term>& terms, int i) {
  const term& t = terms[static_cast<std::size_t>(i)];
  return t.is_sum ? "r" + std::to_string(i) : t.text;
}

/// The text of gelu_tanh of `v`, v / (1 + exp(v * (v * v * c - s))), with its constants in f32.
inline std::string gelu_text(const std::string& v) {
  const auto bits = [](double x) {
    return "c" + std::to_string(std::bit_cast<std::uint32_t>(static_cast<float>(x)));
  };
  constexpr double scale = op::gelu_tanh::scale;
  const std::string square = "multiply(" + v + "," + v + ")",
                    cubic = "multiply(" + square + "," + bits(-scale * 0.044715) + ")",
                    inner = "subtract(" + cubic + "," + bits(scale) + ")";
  return "divide(" + v + ",add(" + bits(1) + ",exp(multiply(" + v + "," + inner + "))))";
}

}  // namespace detail

WEFT_DEFINE epilogue epilogue_of(std::span<const std::uint64_t> instructions, int product) {
  std::vector<detail::term> terms(instructions.size());
  epilogue found{product};
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const instruction w = instruction::decoded(instructions[i]);
    detail::term& t = terms[i];
    if (w.op == sweep || w.op == lower::end) continue;
    if (w.op == load) {
      if (w.b || (w.type != dtype::f32 && w.a != product)) return {};
      t = {w.a == product ? std::vector<int>{} : std::vector{w.a}, w.a == product, true, ""};
    } else if (w.op == constant) {
      const any_number x{static_cast<std::int64_t>(instructions[++i])};
      t.text = "c" + std::to_string(std::bit_cast<std::uint32_t>(x.as<float>()));
    } else if (w.op == store) {
      std::size_t sum = static_cast<std::size_t>(w.b);
      found.gelu = !terms[sum].is_sum;
      if (found.gelu)
        for (sum = 0; sum < i; ++sum)
          if (terms[sum].has_product &&
              terms[static_cast<std::size_t>(w.b)].text == detail::gelu_text("r" + std::to_string(sum)))
            break;
      if (found.found() || sum == i || !terms[sum].has_product || terms[sum].added.size() > 2) return {};
      std::copy(terms[sum].added.begin(), terms[sum].added.end(), found.terms);
      found.result = w.a;
      found.type = w.type;
    } else if (w.op >= first_opcode || register_type(w.type) != dtype::f32) {
      return {};
    } else {
      const detail::term &a = terms[static_cast<std::size_t>(w.a)], &b = terms[static_cast<std::size_t>(w.b)];
      if (w.op == op::number_of_op<op::cast> && a.is_sum && a.has_product && w.type == dtype::f32) {
        t = a;
      } else if (w.op == op::number_of_op<op::add> && a.is_sum && b.is_sum) {
        t = {a.added, a.has_product || b.has_product, true, ""};
        t.added.insert(t.added.end(), b.added.begin(), b.added.end());
        if (a.has_product && b.has_product) return {};
      } else {
        const std::string name = op::op_names<op::all::list>::at[w.op];
        t.text = name + "(" + detail::text_of(terms, w.a);
        t.text += name == "exp" ? ")" : "," + detail::text_of(terms, w.b) + ")";
        if (t.text.size() > 400) return {};
      }
    }
  }
  return found.gelu || found.terms[0] >= 0 ? found : epilogue{};
}

WEFT_DEFINE int column_sums_of(std::span<const std::uint64_t> instructions) {
  constexpr int expected[] = {sweep, load, column_sum, lower::end};
  if (instructions.size() != std::size(expected)) return -1;
  for (std::size_t i = 0; i < instructions.size(); ++i)
    if (instruction::decoded(instructions[i]).op != expected[i]) return -1;
  const instruction loaded = instruction::decoded(instructions[1]),
                    sum = instruction::decoded(instructions[2]);
  return loaded.a == 0 && loaded.b == 0 && sum.b == 1 ? sum.a : -1;
}

}  // namespace lower
}  // namespace weft
