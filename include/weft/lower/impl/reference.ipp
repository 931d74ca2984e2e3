// SPDX-License-Identifier: MIT
// Definitions of <weft/lower/reference.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/lower/reference.hpp>

namespace weft {
namespace lower {
namespace detail {

WEFT_DEFINE void set_number(any_register& r, dtype t, any_number n) {
  if (t == dtype::boolean) r.i32 = n.bits ? -1 : 0;
  else visit_register(t, [&]<class R>(R) { r.as<R>() = n.as<R>(); });
}

}  // namespace detail

WEFT_DEFINE void reference_backend::launch(const kernel_call& call) {
  const kernel_args& args = call.args;
  const index_t columns = args.row_size();
  const int kept = args.order - 1 - args.folded;
  std::vector<detail::any_register> registers(call.instructions.size());
  scratch_.assign(static_cast<std::size_t>(call.scratch_rows * columns), {});
  const auto for_each_column_fold = [&](auto f) {
    for_each_instruction(call.instructions, [&](const instruction& w) {
      for (index_t c = 0; c < columns && is_column_fold(w); ++c)
        f(w, c, sums_[static_cast<std::size_t>(w.c * columns + c)]);
    });
  };
  sums_.resize(static_cast<std::size_t>(call.column_folds * columns));
  for (index_t r = 0; r < args.rows(); ++r) {
    index_t base[max_arguments]{};
    add_offsets(args, r, 0, kept, base);
    for_each_column_fold([](const instruction& w, index_t, detail::any_register& sum) {
      sum = neutral(w.type, w.op - column_sum);
    });
    for (index_t f = 0; f < args.folded_rows(); ++f) {
      index_t offsets[max_arguments];
      std::copy(base, base + max_arguments, offsets);
      add_offsets(args, f, kept, args.order - 1, offsets);
      run_row(call, offsets, registers);
    }
    for_each_column_fold([&](const instruction& w, index_t c, detail::any_register& sum) {
      store_element(args, w, base[w.a] + c, sum);
    });
  }
}

WEFT_DEFINE void reference_backend::add_offsets(const kernel_args& args, index_t row, int first, int last,
                                                index_t* offsets) {
  for (int d = last; d-- > first;) {
    for (int a = 0; a < args.arguments; ++a) offsets[a] += row % args.extent[d] * args.stride[a][d];
    row /= args.extent[d];
  }
}

WEFT_DEFINE void reference_backend::load_element(const kernel_args& args, const instruction& w, index_t at,
                                                 detail::any_register& to) {
  visit_type(w.type, [&]<class T>(T) {
    const T x = static_cast<const T*>(args.pointer[w.a])[at];
    if constexpr (std::is_same_v<T, bool>) to.i32 = x ? -1 : 0;
    else detail::visit_register(w.type, [&]<class R>(R) { to.as<R>() = static_cast<R>(x); });
  });
}

WEFT_DEFINE void reference_backend::store_element(const kernel_args& args, const instruction& w, index_t at,
                                                  detail::any_register from) {
  visit_type(w.type, [&]<class T>(T) {
    T& to = static_cast<T*>(args.pointer[w.a])[at];
    if constexpr (std::is_same_v<T, bool>) to = from.i32 != 0;
    else if constexpr (is_storage_type<T>) to = static_cast<T>(from.f32);
    else detail::visit_register(w.type, [&]<class R>(R) { to = static_cast<T>(from.as<R>()); });
  });
}

WEFT_DEFINE void reference_backend::run_row(const kernel_call& call, const index_t* base,
                                            std::vector<detail::any_register>& registers) {
  const std::size_t count = call.instructions.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (instruction::decoded(call.instructions[i]).op != sweep) {
      i += run_word(call, i, base, 0, registers);
      continue;
    }
    std::size_t last = i;
    while (instruction::decoded(call.instructions[last]).op != lower::end) ++last;
    for (std::size_t k = i + 1; k < last; ++k)
      begin_fold(instruction::decoded(call.instructions[k]), registers[k]);
    for (index_t c = 0; c < call.args.row_size(); ++c)
      for (std::size_t k = i + 1; k < last; ++k) run_word(call, k, base, c, registers);
    i = last;
  }
}

WEFT_DEFINE detail::any_register reference_backend::neutral(dtype t, int kind) {
  detail::any_register n;
  detail::visit_register(t, [&]<class R>(R) {
    n.as<R>() = kind == 0   ? R{}
                : kind == 1 ? vector_code::fold_neutral<1, R>()
                            : vector_code::fold_neutral<2, R>();
  });
  return n;
}

WEFT_DEFINE void reference_backend::fold_into(detail::any_register& sum, detail::any_register x, dtype t,
                                              int kind) {
  detail::visit_register(t, [&]<class R>(R) {
    R& s = sum.as<R>();
    s = kind == 0   ? simd::sum(s, x.as<R>())
        : kind == 1 ? simd::maximum(s, x.as<R>())
                    : simd::minimum(s, x.as<R>());
  });
}

WEFT_DEFINE std::size_t reference_backend::run_word(const kernel_call& call, std::size_t i,
                                                    const index_t* base, index_t c,
                                                    std::vector<detail::any_register>& registers) {
  const kernel_args& args = call.args;
  const instruction w = instruction::decoded(call.instructions[i]);
  detail::any_register& out = registers[i];
  const auto reg = [&](int k) -> detail::any_register& { return registers[static_cast<std::size_t>(k)]; };
  const auto scratch = [&](int row) -> detail::any_register& {
    return scratch_[static_cast<std::size_t>(row * args.row_size() + c)];
  };
  switch (w.op) {
    case load:
      load_element(args, w, base[w.a] + c * (w.b ? args.stride[w.a][args.order - 1] : 1), out);
      return 0;
    case load_row: load_element(args, w, base[w.a], out); return 0;
    case store: store_element(args, w, base[w.a] + c, reg(w.b)); return 0;
    case store_row: store_element(args, w, base[w.a], reg(w.b)); return 0;
    case spill: scratch(w.a) = reg(w.b); return 0;
    case reload: out = scratch(w.a); return 0;
    case coordinate:
      detail::visit_register(w.type, [&]<class R>(R) { out.as<R>() = static_cast<R>(c); });
      return 0;
    case scalar_argument: detail::set_number(out, w.type, args.number[w.a]); return 0;
    case constant:
      detail::set_number(out, w.type, {static_cast<std::int64_t>(call.instructions[i + 1])});
      return 1;
    case fold_sum:
    case fold_max:
    case fold_min: fold_into(out, reg(w.a), w.type, w.op - fold_sum); return 0;
    case column_sum:
    case column_max:
    case column_min:
      fold_into(sums_[static_cast<std::size_t>(w.c * args.row_size() + c)], reg(w.b), w.type,
                w.op - column_sum);
      return 0;
    default: {
      detail::any_register r[4] = {reg(w.a), reg(w.b), reg(w.c), {}};
      const dtype operand = instruction::decoded(call.instructions[static_cast<std::size_t>(w.a)]).type;
      detail::interpreters<op::all::list>::at[w.op](w, operand, r);
      out = r[3];
      computed(call, w, operand, r, c);
      return 0;
    }
  }
}

}  // namespace lower
}  // namespace weft
