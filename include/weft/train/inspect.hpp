// SPDX-License-Identifier: MIT
// Location of the first non-finite value of a computation: the computation is run again on the reference
// backend, one instruction on one element at a time.
//
//   auto found = find_non_finite(state_dict(model), c, [&](context& debug) {
//     eval(loss(model(x), y), debug);
//   });
//   if (found) std::cerr << found->text();     // h.2.mlp: exp gives inf from 93.1, [12, 64, 512]
#pragma once

#include <map>
#include <optional>
#include <string>

#include <weft/lower/reference.hpp>
#include <weft/nn/module.hpp>
#include <weft/run/context.hpp>

namespace weft {

/// The first op whose value is not finite although its operands are, or that reads non-finite data.
struct non_finite {
  std::string op;
  std::string module;  // module of the parameter read last; empty if none has been read
  shape extents;       // extents over which the kernel or op ran
  double value = 0;
  double operand = 0;  // the first operand, if the op is an instruction
  bool is_read = false;  // `value` is an operand that no op has computed

  std::string text() const;
};

namespace detail {

/// The reference backend, which checks every value. `names` are the parameters by which modules are
/// identified.
class inspecting_backend : public lower::reference_backend {
 public:
  explicit inspecting_backend(const state_dict_t& names);
  std::optional<non_finite> found, read;  // `read`: the first non-finite value that is read and passed on

  /// The first element that is not finite; 0 if all are finite.
  static double first_odd(const strided& t);

  void launch(const kernel_call& call) override;
  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override;
  void call_native(const char* op, const native_code& code, const native_operands& operands) override;

 protected:
  void computed(const kernel_call& call, const lower::instruction& w, dtype operand,
                const lower::detail::any_register* r, index_t) override;

 private:
  struct named_range {
    std::uintptr_t end = 0;
    std::string name;
  };

  template <class List>
  struct op_facts;
  template <class... Ops>
  struct op_facts<op::op_list<Ops...>> {
    static constexpr int arity[] = {Ops::arity...};
  };
  static constexpr auto& arities = op_facts<op::all::list>::arity;
  static constexpr auto& op_names = op::op_names<op::all::list>::at;

  static double number(const lower::detail::any_register& r, dtype t) {
    return lower::register_type(t) == dtype::f64 ? r.f64 : static_cast<double>(r.f32);
  }

  /// Records the module of the parameter at `memory`; programs read parameters in the order of modules.
  void note_module(const void* memory);

  void check(const char* op, const std::vector<strided>& in, const strided& out);

  std::map<std::uintptr_t, named_range> names_;
  std::string module_;
};

}  // namespace detail

/// Runs f(debug_context) on the reference backend with the current random numbers of `c`, and returns the
/// first op whose value is not finite although its operands are; if there is none, the first op that reads a
/// non-finite value, which must be in the data, and passes it on; otherwise nullopt. A non-finite parameter
/// is reported first. Throws device_error unless the host can access the device's memory, value_error if a
/// parameter is sharded or has no memory yet. Slow: for debugging.
template <std::derived_from<context> Context, class F>
std::optional<non_finite> find_non_finite(const state_dict_t& names, const Context& c, F f) {
  if (!c.where()->host_accessible())
    throw device_error(std::string("weft: find_non_finite: the host cannot read the memory of ") +
                       c.where()->name());
  for (const auto& [name, p] : names) {
    detail::require_memory(*p);
    const strided all{p->memory.data(), p->type, shape{1, {p->extents.size()}}, {1}};
    if (const double odd = detail::inspecting_backend::first_odd(all); odd != 0)
      return non_finite{"parameter " + name, "", p->extents, odd, NAN};
  }
  detail::inspecting_backend inspector(names);
  context_for<typename Context::programs> debug(c.where());
  debug.set_randomness(c.randomness());
  debug.set_backend(&inspector);
  f(debug);
  return inspector.found ? inspector.found : inspector.read;
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/inspect.ipp>
#endif
