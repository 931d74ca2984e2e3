// SPDX-License-Identifier: MIT
// Definitions of <weft/train/inspect.hpp>.
#pragma once

#include <cmath>

#include <weft/base/config.hpp>
#include <weft/train/inspect.hpp>

namespace weft {

WEFT_DEFINE std::string non_finite::text() const {
  using weft::detail::joined;
  std::string t = module.empty() ? "" : module + ": ";
  if (is_read) return t + joined({op, " over ", extents, " reads ", value, " in the data"});
  t += joined({op, " over ", extents, " gives ", value});
  return std::isnan(operand) ? t : t + joined({" from ", operand});
}

namespace detail {

WEFT_DEFINE inspecting_backend::inspecting_backend(const state_dict_t& names) {
  for (const auto& [name, p] : names) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p->memory.data());
    names_[begin] = {begin + p->bytes(), name};
  }
}

WEFT_DEFINE double inspecting_backend::first_odd(const strided& t) {
  double odd = 0;
  if (!is_floating(t.type)) return odd;
  visit_type(t.type, [&]<class T>(T) {
    for (index_t i = 0; i < t.size(); ++i) {
      const double x =
          static_cast<double>(t.data<const T>()[element_offset(t.extents, t.stride, 0, t.extents.order, i)]);
      if (!std::isfinite(x)) {
        odd = x;
        return;
      }
    }
  });
  return odd;
}

WEFT_DEFINE void inspecting_backend::launch(const kernel_call& call) {
  for (int i = 0; i < call.args.arguments; ++i) note_module(call.args.pointer[i]);
  reference_backend::launch(call);
}

WEFT_DEFINE void inspecting_backend::multiply(const native_code& code, const strided& a, const strided& b,
                                              const strided& c) {
  note_module(a.pointer);
  note_module(b.pointer);
  reference_backend::multiply(code, a, b, c);
  check("matmul", {{a, b}}, c);
}

WEFT_DEFINE void inspecting_backend::call_native(const char* op, const native_code& code,
                                                 const native_operands& operands) {
  for (const strided& t : operands.in) note_module(t.pointer);
  reference_backend::call_native(op, code, operands);
  for (const strided& t : operands.out) check(op, {operands.in.begin(), operands.in.end()}, t);
}

WEFT_DEFINE void inspecting_backend::computed(const kernel_call& call, const lower::instruction& w,
                                              dtype operand, const lower::detail::any_register* r, index_t) {
  if (found || !is_floating(w.type)) return;
  const double y = number(r[3], w.type);
  if (std::isfinite(y)) return;
  const int arity = arities[w.op];
  const int first = w.op == op::number_of_op<op::where> ? 1 : 0;
  shape space{call.args.order, {}};
  for (int d = 0; d < space.order; ++d) space[d] = call.args.extent[d];
  if (is_floating(operand) || first)
    for (int k = first; k < arity; ++k)
      if (const double x = number(r[k], first ? w.type : operand); !std::isfinite(x)) {
        if (!read && !first) read = non_finite{op_names[w.op], module_, space, x, NAN, true};
        return;
      }
  found = non_finite{op_names[w.op], module_, space, y, is_floating(operand) ? number(r[0], operand) : NAN};
}

WEFT_DEFINE void inspecting_backend::note_module(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  auto after = names_.upper_bound(address);
  if (after == names_.begin() || address >= (--after)->second.end) return;
  const std::string& name = after->second.name;
  module_ = name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'));
}

WEFT_DEFINE void inspecting_backend::check(const char* op, const std::vector<strided>& in,
                                           const strided& out) {
  if (found) return;
  const double y = first_odd(out);
  if (y == 0) return;
  for (const strided& t : in)
    if (const double x = first_odd(t); x != 0) {
      if (!read) read = non_finite{op, module_, t.extents, x, NAN, true};
      return;
    }
  found = non_finite{op, module_, out.extents, y, NAN};
}

}  // namespace detail
}  // namespace weft
