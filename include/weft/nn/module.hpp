// SPDX-License-Identifier: MIT
// Modules are plain structs: finding, naming, counting and printing their tensors.
//
// Names are member paths joined by dots, PyTorch's state_dict keys: "hidden.weight", "h.3.attn.c_attn.bias".
// A module has no base class and does not depend on devices or ranks. Members of type `parameter` are
// trained; any other tensor is a buffer: saved and moved with the module, but not changed by optimizers.
//
//   for_each_parameter(model, [](const std::string& name, auto& parameter) { ... });
#pragma once

#include <concepts>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/device/random.hpp>
#include <weft/tensor/walk.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

namespace detail {
consteval index_t added(std::initializer_list<index_t> counts) {
  index_t sum = 0;
  for (index_t c : counts) sum = sum < 0 || c < 0 ? -1 : sum + c;
  return sum;
}
template <class T>
consteval index_t static_parameter_count();
template <class... T>
consteval index_t static_count_of_all() {
  return added({0, static_parameter_count<std::remove_cvref_t<T>>()...});
}
/// Number of elements of the parameters of a T if the type determines it, otherwise -1.
template <class T>
consteval index_t static_parameter_count() {
  if constexpr (is_tensor<T>) {
    index_t n = 1;
    for (int i = 0; i < T::static_shape.order; ++i)
      n = n < 0 || T::static_shape[i] == dyn ? -1 : n * T::static_shape[i];
    return T::requires_grad ? n : 0;
  } else if constexpr (content_of<T> == content::none) {
    return 0;
  } else if constexpr (is_tuple<T>) {
    return []<template <class...> class List, class... M>(std::type_identity<List<M...>>) {
      return static_count_of_all<M...>();
    }(std::type_identity<T>{});
  } else if constexpr (is_container<T> || is_pointer_to_one<T> || has_children<T>) {
    return -1;
  } else {
    (void)sizeof(reachable_tensors_law<is_reachable<T>, T>);
    return []<class... M>(std::type_identity<std::tuple<M*...>>) {
      return static_count_of_all<M...>();
    }(std::type_identity<decltype(member_pointers(std::declval<T&>()))>{});
  }
}
}  // namespace detail

/// A plain struct that holds tensors, directly or in modules inside it.
template <class T>
concept module = !detail::is_tensor<T> && !detail::is_container<T> && !detail::is_tuple<T> &&
                 !detail::is_pointer_to_one<T> && detail::content_of<T> == detail::content::tensors;

/// Names and tensors, in order of declaration: what optimizers and files work on. The tensors are shared with
/// the module.
using state_dict_t = std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>>;

namespace detail {
/// Names the memory of tensors, for reports of memory use; a tied tensor's memory has its first name.
void name_memory(const state_dict_t& all);
template <tensors_of Which, class M, class F>
void for_each_named(M& m, F& f) {
  const auto with_name = [&](const named_path& path, auto& t) { f(path.text, t); };
  walk<Which>(m, named_path{}, with_name);
}
template <tensors_of Which, class M>
state_dict_t named(const M& m) {
  state_dict_t all;
  const auto append = [&](const std::string& name, const auto& t) { all.emplace_back(name, t.state()); };
  for_each_named<Which>(m, append);
  name_memory(all);
  return all;
}
/// The tensors without names, which avoids building strings.
template <tensors_of Which, class M>
tensor_list states(const M& m) {
  tensor_list all;
  const auto append = [&](no_path, const auto& t) { all.push_back(t.state()); };
  walk<Which>(m, no_path{}, append);
  return all;
}
}  // namespace detail

/// Calls f(name, parameter) for every parameter of `m` and of the modules inside it, in order of declaration.
template <class M, class F>
void for_each_parameter(M& m, F f) {
  detail::for_each_named<detail::tensors_of::parameters>(m, f);
}

/// The parameters and buffers of `m` in order of declaration, under PyTorch's names. The tensors are shared,
/// not copied. Throws value_error for a parameter without elements.
template <class M>
state_dict_t state_dict(const M& m) {
  return detail::named<detail::tensors_of::both>(m);
}
/// The parameters of `m` with their names; as state_dict.
template <class M>
state_dict_t named_parameters(const M& m) {
  return detail::named<detail::tensors_of::parameters>(m);
}
/// The buffers of `m` with their names; as state_dict.
template <class M>
state_dict_t named_buffers(const M& m) {
  return detail::named<detail::tensors_of::buffers>(m);
}

/// The parameters of `m`, without names.
template <class M>
tensor_list parameters_of(const M& m) {
  return detail::states<detail::tensors_of::parameters>(m);
}

/// Number of elements of the parameters of an M, as a constant; all extents must be static.
template <class M>
consteval index_t parameter_count() {
  constexpr index_t n = detail::static_parameter_count<M>();
  static_assert(
      n >= 0,
      "weft: parameter_count: an extent of a parameter, or the length of a list, is known only at run time");
  return n;
}

/// Number of elements of the parameters of `m`; a tied parameter is counted once per occurrence.
template <class M>
index_t parameter_count(const M& m) {
  index_t n = 0;
  for (const auto& p : parameters_of(m)) n += p->whole().size();
  return n;
}

/// Drops the gradients of all parameters; the next backward pass starts from none. Throws usage_error while a
/// run on several ranks holds them: see distributed_context::zero_grad.
template <class M>
void zero_grad(M& m) {
  const tensor_list all = parameters_of(m);
  for (const auto& p : all) detail::require_own_gradient(*p, "zero_grad");
  for (const auto& p : all) p->grad.reset();
}

/// Moves parameters, their gradients and buffers to a device; the state of an optimizer follows when it next
/// updates them. If the device runs out of memory, the tensors moved so far are there, and the rest stay
/// where they were.
template <class M>
void to(M& m, const device& where) {
  for (const auto& t : detail::states<detail::tensors_of::both>(m)) move_to(*t, where);
}

namespace detail {
/// Writes elements [first, first + count) of what `init` describes to memory of `where`.
template <element T>
void draw_elements(const initializer& init, const device& where, void* to, index_t first, index_t count) {
  using distribution = initializer::distribution;
  if (init.kind == distribution::none || !where->computes()) return;
  const philox_key key = random_key{init.seed, init.stream}.key();
  constexpr index_t most = 1 << 14;
  const index_t piece = std::min(most, count);
  std::vector<float> part(static_cast<std::size_t>(piece));
  std::vector<T> elements(static_cast<std::size_t>(piece));
  for (index_t at = 0; at < count; at += piece) {
    const index_t n = std::min(piece, count - at);
    switch (init.kind) {
      case distribution::uniform: cpu::fill_uniform(key, first + at, n, part.data()); break;
      case distribution::normal: cpu::fill_normal(key, first + at, n, part.data()); break;
      default: std::fill(part.begin(), part.end(), 1.0f);
    }
    const auto scale = static_cast<float>(init.scale);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
      elements[i] = static_cast<T>(init.kind == distribution::uniform ? scale * (2.0f * part[i] - 1.0f)
                                                                      : scale * part[i]);
    const index_t zeros = std::clamp<index_t>(init.zeros_begin - first - at, 0, n),
                  rest = std::clamp<index_t>(init.zeros_end - first - at, zeros, n);
    std::fill(elements.begin() + zeros, elements.begin() + rest, static_cast<T>(0.0f));
    where->upload(static_cast<T*>(to) + at, elements.data(), static_cast<std::size_t>(n) * sizeof(T));
  }
}
#ifdef WEFT_COMPILED
extern template void draw_elements<float>(const initializer&, const device&, void*, index_t, index_t);
extern template void draw_elements<double>(const initializer&, const device&, void*, index_t, index_t);
extern template void draw_elements<bfloat16>(const initializer&, const device&, void*, index_t, index_t);
extern template void draw_elements<float16>(const initializer&, const device&, void*, index_t, index_t);
#endif
/// Writes elements [first, first + count) of the deferred parameter `p` to memory of `where`; if ranks divide
/// the layer, elements of this rank's part.
template <element T>
void draw_own(const tensor_state& p, const device& where, void* to, index_t first, index_t count) {
  if (!p.is_part_of_layer()) return draw_elements<T>(p.init, where, to, first, count);
  const part_layout part = layout_of_part(p.whole(), p.divided->where, p.divided->ranks, p.divided->rank);
  for (index_t at = first; at < first + count;) {
    const index_t row = at / part.count, column = at % part.count;
    const index_t n = std::min(part.count - column, first + count - at);
    draw_elements<T>(p.init, where, static_cast<T*>(to) + (at - first),
                     row * part.stride + part.first + column, n);
    at += n;
  }
}
/// Called when a deferred parameter has elements.
inline void no_longer_deferred(tensor_state& p) {
  if (!p.divided || !p.divided->is_deferred) return;
  division known = *p.divided;
  known.is_deferred = false;
  p.divided = make_recycled<division>(std::move(known));
}
/// Gives a deferred parameter of type T its memory and elements; does nothing for other parameters.
template <element T>
void materialize_state(tensor_state& p) {
  if (!p.is_deferred()) return;
  p.memory = p.where.allocate(p.bytes(), "parameter");
  if (p.divided) p.memory.set_name(p.divided->name);
  draw_own<T>(p, p.where, p.memory.data(), 0, p.extents.size());
  no_longer_deferred(p);
}
}  // namespace detail

/// Draws the elements of `p`, of type T, by its initializer with the random key `key`; those of a deferred
/// parameter are drawn when it gets memory.
template <element T>
void draw(tensor_state& p, random_key key) {
  p.init.seed = key.seed;
  p.init.stream = key.stream;
  if (p.is_deferred() || p.init.kind == initializer::distribution::none) return;
  detail::require_memory(p);
  detail::draw_elements<T>(p.init, p.where, p.memory.data(), 0, p.extents.size());
  ++p.version();
}

/// Gives the parameters of `m` that were created on a deferred device their memory and elements: the same
/// elements as if they had not been deferred.
template <class M>
void materialize(M& m) {
  for_each_parameter(m, []<class P>(const std::string& name, const P& p) {
    detail::materialize_state<typename P::value_type>(*p.state());
    p.state()->memory.set_name(name);
  });
}

/// Draws all parameters anew. The elements of each depend on the seed and its name alone.
template <class M>
void initialize(M& m, std::uint64_t seed) {
  for_each_parameter(m, [&]<class P>(const std::string& name, const P& p) {
    std::uint64_t stream = 0;
    for (char c : name) stream = mix(stream, static_cast<unsigned char>(c));
    draw<typename P::value_type>(*p.state(), {seed, stream});
  });
}

namespace detail {
/// The key for the next parameter made on this thread, a new one at each call. Every thread counts from 0, so
/// that ranks that are threads make the same model, as processes do. The seed is one that users are unlikely
/// to choose, so that parameters do not share random numbers with users' tensors.
inline random_key next_parameter_key() {
  constexpr std::uint64_t seed = 0x7765'6967'6874'7300;
  thread_local std::uint64_t made = 0;
  return {seed, made++};
}
/// The device passed to the `create` in progress on this thread; null outside of one. Thread-local, because
/// default member initializers have no arguments.
inline const device*& created_on() {
  thread_local const device* where = nullptr;
  return where;
}
/// A new parameter, without elements if `where` defers them.
std::shared_ptr<tensor_state> parameter_state(const shape& extents, dtype type, const initializer& init,
                                              const device& where);
}  // namespace detail

/// Where parameters are made if no device is given: the device of the `create` that is in progress on this
/// thread, otherwise default_device().
inline const device& parameter_device() {
  const device* const where = detail::created_on();
  return where ? *where : default_device();
}

/// A parameter with elements drawn at once, unless `where` defers them; `initialize` draws them again by
/// name.
template <element T = float, class Extents>
parameter<Extents, T> make_parameter(Extents e, initializer init, const device& where = parameter_device()) {
  parameter<Extents, T> p(detail::parameter_state(static_cast<shape>(e), dtype_of<T>, init, where));
  draw<T>(*p.state(), detail::next_parameter_key());
  return p;
}

/// A Model as its default constructor makes it, on `where`: its parameters are created there, or without
/// memory if `where` is deferred; its buffers are moved there. Its extents must be static, or given where its
/// members are declared: linear<> in = linear<>::create(3, 5). Models with other extents need functions of
/// their own that take a device.
///   auto model = create<mlp>(where.deferred());
template <class Model>
  requires std::default_initializable<Model>
Model create(const device& where) {
  struct scope {
    explicit scope(const device& d) : before(std::exchange(detail::created_on(), &d)) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { detail::created_on() = before; }
    const device* before;
  };
  Model m = [&] {
    const scope here(where);
    return Model{};
  }();
  const auto move = [&](detail::no_path, const auto& t) { move_to(*t.state(), where); };
  detail::walk<detail::tensors_of::buffers>(m, detail::no_path{}, move);
  return m;
}

/// Prints a table of the parameters of a module and, if it has any, of its buffers: name, shape, number of
/// elements.
template <module M>
std::ostream& operator<<(std::ostream& out, const M& m) {
  const state_dict_t parameters = named_parameters(m), buffers = named_buffers(m);
  std::size_t width = 9;
  for (const state_dict_t& some : {parameters, buffers})
    for (const auto& [name, t] : some) width = std::max(width, name.size());
  const auto row = [&](const std::string& a, const std::string& b, const std::string& c) {
    out << a << std::string(width + 2 - a.size(), ' ') << b
        << std::string(b.size() < 20 ? 20 - b.size() : 1, ' ') << c << '\n';
  };
  const auto rows = [&](const state_dict_t& some) {
    for (const auto& [name, t] : some) row(name, to_string(t->whole()), std::to_string(t->whole().size()));
  };
  row("parameter", "shape", "elements");
  rows(parameters);
  row("total", "", std::to_string(parameter_count(m)));
  if (!buffers.empty()) row("buffer", "shape", "elements");
  rows(buffers);
  return out;
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/nn/impl/module.ipp>
#endif
