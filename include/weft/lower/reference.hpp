// SPDX-License-Identifier: MIT
// The reference backend: interprets canonical codes one element at a time.
//
// Slow and simple: no vectors, no threads, no template per code. It shares the scalar formulas of
// instructions, products, indexing ops and attention with the CPU backend, so it cannot verify those.
#pragma once

#include <vector>

#include <weft/device/cpu/backend.hpp>
#include <weft/lower/cpu_kernel.hpp>

namespace weft::lower {

namespace detail {

/// A register of any type.
struct any_register {
  double f64 = 0;
  float f32 = 0;
  std::int64_t i64 = 0;
  std::int32_t i32 = 0;  // also for masks

  template <class R>
  R& as() {
    if constexpr (std::is_same_v<R, double>) return f64;
    else if constexpr (std::is_same_v<R, float>) return f32;
    else if constexpr (std::is_same_v<R, std::int64_t>) return i64;
    else return i32;
  }
};

/// Calls f with a value of the register type of `t`.
template <class F>
void visit_register(dtype t, F f) {
  switch (register_type(t)) {
    case dtype::f64: f(double{}); break;
    case dtype::f32: f(float{}); break;
    case dtype::i64: f(std::int64_t{}); break;
    default: f(std::int32_t{});
  }
}

void set_number(any_register& r, dtype t, any_number n);

template <class Op>
void interpret_as(const instruction& w, dtype operand_type, any_register* r) {
  if constexpr (std::is_same_v<Op, op::cast>) {
    const bool mask = operand_type == dtype::boolean;
    visit_register(operand_type, [&]<class From>(From) {
      const From from = mask ? From(r[0].i32 ? 1 : 0) : r[0].as<From>();
      visit_type(w.type, [&]<class To>(To) {
        const To to = converted<To>(from);
        if constexpr (std::is_same_v<To, bool>) r[3].i32 = to ? -1 : 0;
        else visit_register(w.type, [&]<class R>(R) { r[3].as<R>() = static_cast<R>(to); });
      });
    });
  } else if constexpr (std::is_same_v<Op, op::where>) {
    visit_register(w.type, [&]<class R>(R) { r[3].as<R>() = r[0].i32 ? r[1].as<R>() : r[2].as<R>(); });
  } else {
    visit_register(operand_type, [&]<class R>(R) {
      if constexpr (requires { Op::lane(R{}, R{}); }) {
        const auto y = Op::lane(r[0].as<R>(), r[1].as<R>());
        r[3].as<std::remove_const_t<decltype(y)>>() = y;
      } else if constexpr (requires { Op::lane(R{}); }) {
        const auto y = Op::lane(r[0].as<R>());
        r[3].as<std::remove_const_t<decltype(y)>>() = y;
      }
    });
  }
}

using interpreter = void (*)(const instruction&, dtype, any_register*);
template <class List>
struct interpreters;
template <class... Ops>
struct interpreters<op::op_list<Ops...>> {
  template <class Op>
  static constexpr interpreter of() {
    if constexpr (
        requires { Op::lane(float{}); } || requires { Op::lane(float{}, float{}); } ||
        requires { Op::lane(std::int32_t{}, std::int32_t{}); } || requires { Op::lane(std::int32_t{}); } ||
        std::is_same_v<Op, op::cast> || std::is_same_v<Op, op::where>)
      return &interpret_as<Op>;
    else return nullptr;
  }
  static constexpr interpreter at[] = {of<Ops>()...};
};

}  // namespace detail

/// A backend for debugging and for tests of kernels; reads host memory.
class reference_backend : public cpu::cpu_backend {
 public:
  reference_backend() : cpu_backend(1) {}
  const char* name() const override { return "reference"; }

  void launch(const kernel_call& call) override;

 protected:
  /// Called after each instruction: r[0..2] are the operands, of type `operand`, r[3] is the result.
  virtual void computed(const kernel_call&, const instruction&, dtype, const detail::any_register*, index_t) {
  }

 private:
  static void add_offsets(const kernel_args& args, index_t row, int first, int last, index_t* offsets);
  static void load_element(const kernel_args& args, const instruction& w, index_t at,
                           detail::any_register& to);
  static void store_element(const kernel_args& args, const instruction& w, index_t at,
                            detail::any_register from);

  /// Runs the instructions of one row: those between sweeps once, those of a sweep for every element.
  void run_row(const kernel_call& call, const index_t* base, std::vector<detail::any_register>& registers);

  static void begin_fold(const instruction& w, detail::any_register& r) {
    if (is_row_fold(w)) r = neutral(w.type, w.op - fold_sum);
  }
  /// The initial value of a reduction of type `t`: sum (0), maximum (1) or minimum (2).
  static detail::any_register neutral(dtype t, int kind);
  static void fold_into(detail::any_register& sum, detail::any_register x, dtype t, int kind);

  /// Runs instruction `i` for element `c`; returns how many data words follow it.
  std::size_t run_word(const kernel_call& call, std::size_t i, const index_t* base, index_t c,
                       std::vector<detail::any_register>& registers);

  std::vector<detail::any_register> scratch_, sums_;  // scratch rows; folds of columns
};

}  // namespace weft::lower

#ifndef WEFT_COMPILED
#include <weft/lower/impl/reference.ipp>
#endif
