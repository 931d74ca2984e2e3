// SPDX-License-Identifier: MIT
// Tensors: leaves of expressions that own memory.
//
// A tensor is a handle; copies name the same elements. Its type holds element type and extents,
// nothing about devices. A `variable` is a tensor for which tapes compute gradients, a `parameter` one that
// belongs to a model.
//
//   auto x = randn<float>(extents<dyn, 784>{32, 784});
//   float first = x.to_vector()[0];
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/device/device.hpp>
#include <weft/expr/apply.hpp>

namespace weft {

/// How the elements of a parameter are drawn.
struct initializer {
  enum class distribution : std::uint8_t { none, constant, uniform, normal };
  distribution kind = distribution::none;
  double scale = 0;  // the constant, half the width, or the standard deviation
};

/// Whether a value came from a statement of a tape, and whether backward may begin at it.
enum class tape_status : std::uint8_t { never, not_recording, recorded, consumed };

/// What the handles of one tensor share.
struct tensor_state {
  device where;
  buffer memory;
  shape extents;
  dtype type;
  tape_status on_tape = tape_status::never;
  std::uint64_t version = 0;           // counts changes in place
  initializer init;                    // how a parameter is drawn anew
  std::shared_ptr<tensor_state> grad;  // sum of the cotangents that tapes have delivered
  std::vector<std::function<void(const std::shared_ptr<tensor_state>&)>> gradient_hooks;
  std::function<void()> arrive;        // waits for elements that are on their way from other ranks

  tensor_state(const device& d, const shape& s, dtype t)
      : where(d), memory(d.allocate(bytes_of(s, t))),
        extents(s), type(t) {}
  std::size_t bytes() const { return bytes_of(extents, type); }
};

/// A tensor with elements that are not set yet.
inline std::shared_ptr<tensor_state> make_state(const device& where, const shape& extents, dtype type) {
  return make_recycled<tensor_state>(where, extents, type);
}
/// Another handle of the same elements, with a shape, a gradient and a place of its own.
inline std::shared_ptr<tensor_state> alias_of(const tensor_state& t) {
  return make_recycled<tensor_state>(t);
}

/// The elements of `t` from `first` on, as many as `extents` say, in its memory; a tensor of its own.
inline std::shared_ptr<tensor_state> part_of(const tensor_state& t, index_t first, const shape& extents) {
  auto part = alias_of(t);
  part->extents = extents;
  part->memory = t.memory.part(static_cast<std::size_t>(first * size_of(t.type)));
  part->grad.reset();
  part->gradient_hooks.clear();
  return part;
}

using tensor_list = recycled_vector<std::shared_ptr<tensor_state>>;

/// Moves the elements to another device; all handles follow.
inline void move_to(tensor_state& t, const device& where) {
  if (t.where == where) return;
  const std::unique_ptr<std::byte[]> host(new std::byte[t.bytes()]);
  t.where->download(host.get(), t.memory.data(), t.bytes());
  t.memory = where.allocate(t.bytes());
  where->upload(t.memory.data(), host.get(), t.bytes());
  t.where = where;
  t.grad.reset();
}

namespace detail {
// Not templates, so that each tensor type does not bring its own text.

/// `s`, if a tensor whose type says `fixed` may have it.
inline const shape& checked_extents(const shape& fixed, const shape& s) {
  bool fits = s.order == fixed.order;
  for (int i = 0; fits && i < s.order; ++i) fits = fixed[i] == dyn ? s[i] >= 0 : s[i] == fixed[i];
  if (!fits)
    throw shape_error("weft: a tensor of type " + to_string(fixed) + " cannot have the extents " +
                      to_string(s));
  return s;
}
/// Throws value_error if the elements are not here.
inline void require_memory(const tensor_state& t) {
  if (const auto arrive = t.arrive) arrive();  // a copy: arriving clears it
  if (!t.memory && t.extents.size() > 0)
    throw value_error("weft: a parameter of shape " + to_string(t.extents) +
                      " is divided among ranks: gather it with the run that bind returned");
}
inline void download_to(const tensor_state& t, void* host) {
  require_memory(t);
  t.where->synchronize();
  t.where->download(host, t.memory.data(), t.bytes());
}
inline void require_elements(const tensor_state& t, const char* what, index_t count) {
  if (t.extents.size() != count)
    throw shape_error(std::string("weft: ") + what + ": " + std::to_string(count) +
                      " elements for a tensor of shape " + to_string(t.extents));
}
inline void* host_memory(const tensor_state& t) {
  if (!t.where->host_accessible())
    throw device_error(std::string("weft: data of a tensor on ") + t.where->name());
  require_memory(t);
  return t.memory.data();
}
[[noreturn, gnu::cold]] inline void refuse_undefined(dtype type, const shape& extents) {
  throw value_error(std::string("weft: a tensor of type ") + name_of(type) + " " + to_string(extents) +
                    " is used before it has elements");
}
/// `dim` counted from the left, if a tensor of shape `s` has it.
inline int checked_dim(const shape& s, int dim) {
  if (normalized_dim(dim, s.order) == s.order)
    throw value_error("weft: dim " + std::to_string(dim) + " of a tensor of shape " + to_string(s));
  return normalized_dim(dim, s.order);
}
/// `i` along the first dim, counted from the left; negative ones count from the right.
inline index_t checked_position(const shape& s, index_t i) {
  if (i < -s[0] || i >= s[0])
    throw value_error("weft: x[i]: index " + std::to_string(i) + " is outside of [" + std::to_string(-s[0]) +
                      ", " + std::to_string(s[0]) + ") for a tensor of shape " + to_string(s));
  return i < 0 ? i + s[0] : i;
}
/// `t`, if a tensor with elements of `type` may be a handle of it; its type says the extents `fixed`.
inline const std::shared_ptr<tensor_state>& typed_state(dtype type, const shape& fixed,
                                                        const std::shared_ptr<tensor_state>& t) {
  if (!t) refuse_undefined(type, fixed);
  if (t->type != type)
    throw value_error(std::string("weft: a tensor of ") + name_of(type) +
                      " cannot have the elements of a tensor of " + name_of(t->type));
  return t;
}
}  // namespace detail

template <element T, class Extents, bool Tracked = false>
class tensor : public expression_base {
 public:
  using value_type = T;
  using extents_type = Extents;
  static constexpr shape static_shape = Extents::static_shape;
  static constexpr bool is_leaf = true;
  static constexpr bool requires_grad = Tracked;
  static constexpr leaf_role role = Tracked ? leaf_role::variable : leaf_role::untracked;
  static constexpr long node_count = 1;

  tensor() = default;
  /// A tensor with elements that are not set yet.
  explicit tensor(const shape& s, const device& where = default_device())
      : state_(make_state(where, checked(s), dtype_of<T>)) {}
  /// A handle of elements that exist. Throws value_error if there are none or they are not of type T, and
  /// shape_error if the type says other extents.
  explicit tensor(std::shared_ptr<tensor_state> state) : state_(std::move(state)) {
    checked(detail::typed_state(dtype_of<T>, static_shape, state_)->extents);
  }
  /// The same elements, tracked or not, with extents known more or less exactly.
  template <class E, bool G>
  explicit tensor(const tensor<T, E, G>& other) : tensor(other.state()) {}

  bool defined() const { return state_ != nullptr; }
  const std::shared_ptr<tensor_state>& state() const {
    if (!state_) detail::refuse_undefined(dtype_of<T>, static_shape);
    return state_;
  }
  const shape& extents() const { return state()->extents; }
  index_t extent(int dim) const { return extents()[detail::checked_dim(extents(), dim)]; }
  index_t size() const { return extents().size(); }

  /// The expression select<0>(*this, i): x[i] without the first dim. Negative indices count from the right.
  /// Throws value_error if there is no such index. Nothing is computed or copied before it is evaluated.
  auto operator[](index_t i) const {
    static_assert(static_shape.order > 0, "weft: x[i]: a scalar has no dims");
    return select<0>(*this, detail::checked_position(extents(), i));
  }

  /// The elements in row-major order, copied to the host.
  std::vector<T> to_vector() const {
    static_assert(!std::is_same_v<T, bool>, "weft: to_vector of bool: use copy_to");
    std::vector<T> host(static_cast<std::size_t>(size()));
    copy_to(host.data());
    return host;
  }
  void copy_to(T* host) const {
    detail::download_to(*state(), host);
  }
  /// Sets all elements; expressions written before refuse to be evaluated.
  void copy_from(const T* host) {
    detail::require_memory(*state());
    state()->where->upload(state()->memory.data(), host, state()->bytes());
    ++state()->version;
  }
  void copy_from(const std::vector<T>& host) {
    detail::require_elements(*state(), "copy_from", static_cast<index_t>(host.size()));
    copy_from(host.data());
  }

  /// The element of a tensor that has one.
  T item() const {
    detail::require_elements(*state(), "item", 1);
    T value;
    copy_to(&value);
    return value;
  }

  /// A copy of the elements on another device; this tensor itself if it is there.
  tensor to(const device& where) const {
    if (state()->where == where) return *this;
    tensor copy(alias_of(*state()));
    move_to(*copy.state(), where);
    return copy;
  }

  /// Host memory of the elements, to read; only on devices that share it.
  const T* data() const { return static_cast<const T*>(detail::host_memory(*state())); }
  /// The same, to write, as a change in place: expressions written before this call refuse to be evaluated,
  /// and backward refuses to read the elements. Write before the next expression is written, not later.
  T* mutable_data() {
    T* const elements = static_cast<T*>(detail::host_memory(*state()));
    ++state()->version;
    return elements;
  }

  /// The gradient that tapes have added up; not defined before the first.
  tensor<T, Extents> grad() const {
    return state()->grad ? tensor<T, Extents>(state()->grad) : tensor<T, Extents>();
  }
  void zero_grad() { state()->grad.reset(); }

  /// Calls f(gradient) in every backward pass: for a value computed on the tape when its gradient is
  /// complete and before it flows on, for a parameter when the pass has added all of it. `f` may
  /// change the gradient in place.
  template <class F>
  void on_gradient(F f) {
    state()->gradient_hooks.push_back(
        [f](const std::shared_ptr<tensor_state>& g) { f(tensor<T, Extents>(g)); });
  }

  /// The handle as an expression keeps it: with the version it was written for.
  tensor snapshot() const { return snapshot_of(*this); }
  /// False if the elements have changed since the expression that holds this handle was written.
  bool is_current() const { return written_for_ == any_version || written_for_ == state()->version; }

 protected:
  template <class Handle>
  static Handle snapshot_of(Handle t) {
    static_cast<tensor&>(t).written_for_ = t.state()->version;
    return t;
  }

 private:
  static const shape& checked(const shape& s) { return detail::checked_extents(static_shape, s); }

  std::shared_ptr<tensor_state> state_;
  static constexpr std::uint64_t any_version = ~std::uint64_t{0};
  std::uint64_t written_for_ = any_version;
};

/// A tensor that tapes compute a gradient for.
template <element T, class Extents>
using variable = tensor<T, Extents, true>;

/// A tensor that an optimiser changes: a variable that graphs know to be part of a model. Converts to the
/// variable of the same element type and extents, and back.
template <class Extents, element T = float>
class parameter : public variable<T, Extents> {
  using base = variable<T, Extents>;

 public:
  static constexpr leaf_role role = leaf_role::parameter;

  parameter() = default;
  using base::base;
  parameter(const base& handle) : base(handle) {}

  // As those of a variable, which would make variables.
  parameter snapshot() const { return base::snapshot_of(*this); }
  auto operator[](index_t i) const {
    static_assert(base::static_shape.order > 0, "weft: x[i]: a scalar has no dims");
    return select<0>(*this, detail::checked_position(base::extents(), i));
  }
  parameter to(const device& where) const { return base::to(where); }
};

}  // namespace weft
