// SPDX-License-Identifier: MIT
// Modules are plain structs: this finds their tensors, names them, counts them, prints them.
//
// Names are paths of members joined by dots, PyTorch's state_dict keys: "hidden.weight",
// "h.3.attn.c_attn.bias". A module has no base class and knows nothing of devices or ranks.
// A member of type `parameter` is trained; any other tensor is a buffer: part of the state that is
// saved and moved, and that no optimiser changes.
//
//   for_each_parameter(model, [](const std::string& name, auto& parameter) { ... });
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <weft/base/reflect.hpp>
#include <weft/device/cpu/random.hpp>
#include <weft/tensor/create.hpp>

namespace weft {

/// A tensor that an optimiser changes.
template <class Extents, element T = float>
using parameter = variable<T, Extents>;

namespace detail {
/// Which tensors of a module are meant.
enum class tensors_of : std::uint8_t { parameters, buffers, both };

template <class T>
inline constexpr bool is_tensor = false;
template <class T, class Extents, bool Tracked>
inline constexpr bool is_tensor<tensor<T, Extents, Tracked>> = true;

template <class T>
inline constexpr bool is_list = false;
template <class T>
inline constexpr bool is_list<std::vector<T>> = true;
template <class T, std::size_t N>
inline constexpr bool is_list<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;

/// Where a walk stands: a path of names, or nothing where nobody asks for names.
struct named_path {
  std::string text;
  named_path member(std::string_view name) const {
    named_path to{text};
    if (!text.empty()) to.text += '.';
    to.text += name;
    return to;
  }
  named_path element(std::size_t i) const { return member(std::to_string(i)); }
};
struct no_path {
  no_path member(std::string_view) const { return {}; }
  no_path element(std::size_t) const { return {}; }
};

template <tensors_of Which, class M, class Path, class F>
void walk(M& m, const Path& path, F& f) {
  using T = std::remove_const_t<M>;
  if constexpr (is_tensor<T>) {
    if constexpr (Which == tensors_of::both || T::requires_grad == (Which == tensors_of::parameters))
      if (m.defined()) f(path, m);
  } else if constexpr (is_list<T>) {
    for (std::size_t i = 0; i < m.size(); ++i) walk<Which>(m[i], path.element(i), f);
  } else if constexpr (is_tuple<T>) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (walk<Which>(std::get<I>(m), path.element(I), f), ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (requires { m.children(); }) {
    walk<Which>(m.children(), path, f);  // the module stands for what it holds
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>) {
    for_each_member(m, [&](std::string_view name, auto& member) { walk<Which>(member, path.member(name), f); });
  }
}
/// Whether a T has tensors in it. Types that can be copied as bytes have none.
template <class T>
consteval bool holds_tensors() {
  if constexpr (is_tensor<T>) return true;
  else if constexpr (is_list<T>) return holds_tensors<typename T::value_type>();
  else if constexpr (is_tuple<T>) {
    return []<class... M>(std::type_identity<std::tuple<M...>>) {
      return (holds_tensors<M>() || ...);
    }(std::type_identity<T>{});
  } else if constexpr (requires(T& m) { m.children(); }) {
    return holds_tensors<std::remove_cvref_t<decltype(std::declval<T&>().children())>>();
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T> && !std::is_trivially_copyable_v<T>) {
    return []<class... M>(std::type_identity<std::tuple<M*...>>) {
      return (holds_tensors<M>() || ...);
    }(std::type_identity<decltype(member_pointers(std::declval<T&>()))>{});
  } else return false;
}
consteval index_t added(std::initializer_list<index_t> counts) {
  index_t sum = 0;
  for (index_t c : counts) sum = sum < 0 || c < 0 ? -1 : sum + c;
  return sum;
}
/// The elements of the parameters of a T, if its type says them all; -1 if not.
template <class T>
consteval index_t static_parameter_count() {
  if constexpr (is_tensor<T>) {
    index_t n = 1;
    for (int i = 0; i < T::static_shape.order; ++i) n = n < 0 || T::static_shape[i] == dyn ? -1 : n * T::static_shape[i];
    return T::requires_grad ? n : 0;
  } else if constexpr (!holds_tensors<T>()) {
    return 0;
  } else if constexpr (is_tuple<T>) {
    return []<class... M>(std::type_identity<std::tuple<M...>>) { return added({static_parameter_count<M>()...}); }(std::type_identity<T>{});
  } else if constexpr (!is_list<T> && std::is_aggregate_v<T> && !requires(T& m) { m.children(); }) {
    return []<class... M>(std::type_identity<std::tuple<M*...>>) {
      return added({static_parameter_count<M>()...});
    }(std::type_identity<decltype(member_pointers(std::declval<T&>()))>{});
  } else {
    return -1;
  }
}
}  // namespace detail

/// A plain struct that holds tensors, itself or in modules inside it.
template <class T>
concept module = !detail::is_tensor<T> && !detail::is_list<T> && !detail::is_tuple<T> &&
                 detail::holds_tensors<T>();

/// What optimisers and files work on: the shared state of each tensor by name.
using state_dict_t = std::vector<std::pair<std::string, std::shared_ptr<tensor_state>>>;

namespace detail {
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
  return all;
}
/// Without names, which costs a walk alone.
template <tensors_of Which, class M>
tensor_list states(const M& m) {
  tensor_list all;
  const auto append = [&](no_path, const auto& t) { all.push_back(t.state()); };
  walk<Which>(m, no_path{}, append);
  return all;
}
}  // namespace detail

/// Calls f(name, parameter) for every parameter of `m` and of the modules inside it.
template <class M, class F>
void for_each_parameter(M& m, F f) {
  detail::for_each_named<detail::tensors_of::parameters>(m, f);
}

/// The parameters and buffers of `m` in order of declaration, by PyTorch's names.
template <class M>
state_dict_t state_dict(const M& m) {
  return detail::named<detail::tensors_of::both>(m);
}
/// The parameters alone.
template <class M>
state_dict_t named_parameters(const M& m) {
  return detail::named<detail::tensors_of::parameters>(m);
}
/// The buffers alone.
template <class M>
state_dict_t named_buffers(const M& m) {
  return detail::named<detail::tensors_of::buffers>(m);
}

/// The parameters of `m`, without names.
template <class M>
tensor_list parameters_of(const M& m) {
  return detail::states<detail::tensors_of::parameters>(m);
}

/// How many elements the parameters of an M have; all extents must be in its type.
template <class M>
consteval index_t parameter_count() {
  constexpr index_t n = detail::static_parameter_count<M>();
  static_assert(n >= 0, "weft: parameter_count: an extent of a parameter, or the length of a list, is known at run time only");
  return n;
}

template <class M>
index_t parameter_count(const M& m) {
  index_t n = 0;
  for (const auto& p : parameters_of(m)) n += p->extents.size();
  return n;
}

template <class M>
void zero_grad(M& m) {
  for (const auto& p : parameters_of(m)) p->grad.reset();
}

/// Moves parameters and buffers to a device: before training, as optimisers keep their state beside them.
template <class M>
void to(M& m, const device& where) {
  for (const auto& t : detail::states<detail::tensors_of::both>(m)) move_to(*t, where);
}

/// Draws the elements of `p`, of type T, as its initializer says, from `key`.
template <element T>
void draw(tensor_state& p, random_key key) {
  using distribution = initializer::distribution;
  if (p.init.kind == distribution::none || !p.where->computes()) return;
  constexpr index_t piece = 1 << 14;
  std::vector<float> part(piece);
  std::vector<T> elements(piece);
  for (index_t first = 0, size = p.extents.size(); first < size; first += piece) {
    const index_t count = std::min(piece, size - first);
    switch (p.init.kind) {
      case distribution::uniform: cpu::fill_uniform(key.key(), first, count, part.data()); break;
      case distribution::normal: cpu::fill_normal(key.key(), first, count, part.data()); break;
      default: std::fill(part.begin(), part.end(), 1.0f);
    }
    const auto scale = static_cast<float>(p.init.scale);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      elements[i] = static_cast<T>(p.init.kind == distribution::uniform ? scale * (2.0f * part[i] - 1.0f) : scale * part[i]);
    p.where->upload(static_cast<T*>(p.memory.data()) + first, elements.data(), static_cast<std::size_t>(count) * sizeof(T));
  }
  ++p.version;
}

/// Draws all parameters anew. Each depends on the seed and its own name alone.
template <class M>
void initialize(M& m, std::uint64_t seed) {
  for_each_parameter(m, [&]<class P>(const std::string& name, const P& p) {
    std::uint64_t stream = 0;
    for (char c : name) stream = mix(stream, static_cast<unsigned char>(c));
    draw<typename P::value_type>(*p.state(), {seed, stream});
  });
}

/// A parameter with elements drawn at once; `initialize` draws them again by name.
template <element T = float, class Extents>
parameter<Extents, T> make_parameter(Extents e, initializer init, const device& where = default_device()) {
  static std::atomic<std::uint64_t> drawn{0};  // so that modules made by default differ
  parameter<Extents, T> p(static_cast<shape>(e), where);
  p.state()->init = init;
  draw<T>(*p.state(), {0, drawn++});
  return p;
}

/// Prints a table of the parameters of a module, and of its buffers if it has any: name, shape,
/// number of elements.
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
    for (const auto& [name, t] : some) row(name, to_string(t->extents), std::to_string(t->extents.size()));
  };
  row("parameter", "shape", "elements");
  rows(parameters);
  row("total", "", std::to_string(parameter_count(m)));
  if (!buffers.empty()) row("buffer", "shape", "elements");
  rows(buffers);
  return out;
}

}  // namespace weft
