// SPDX-License-Identifier: MIT
// Tensors: leaves of expressions that own memory.
//
// A tensor is a handle, and copies of it refer to the same elements. Its type contains the element type and
// extents but not the device. A `variable` is a tensor for which tapes compute gradients; a `parameter` is a
// variable that belongs to a model.
//
//   auto x = randn<float>(extents<dyn, 784>{32, 784});
//   float first = x.to_vector()[0];
#pragma once

#include <memory>
#include <vector>

#include <weft/expr/apply.hpp>
#include <weft/shape/placement.hpp>
#include <weft/tensor/state.hpp>

namespace weft {

namespace detail {
/// The compile-time error for a conversion between tensors of different extents.
template <bool Holds, class From, class To>
struct conversion_law {
  static_assert(Holds,
                "weft: a tensor of the first extents cannot be converted to the second: a conversion keeps "
                "the number of dims and static extents; reshape changes them");
};
template <class Extents>
inline constexpr bool is_extents = false;
template <index_t... E>
inline constexpr bool is_extents<extents<E...>> = true;
}  // namespace detail

/// Handle of a tensor in memory. Copies of a handle share the elements. If `Tracked`, tapes compute gradients
/// with respect to it; see `variable`.
template <element T, class Extents, bool Tracked = false>
class tensor : public expression_base {
  static_assert(detail::is_extents<Extents>,
                "weft: a tensor's type states its number of dims and any extents known at compile time: "
                "zeros<float>(extents<dyn, 3>{n}); zeros_like(x) has the type of x");

 public:
  using value_type = T;
  using extents_type = Extents;
  static constexpr shape static_shape = Extents::static_shape;
  static constexpr bool is_leaf = true;
  static constexpr bool requires_grad = Tracked;
  static constexpr leaf_role role = Tracked ? leaf_role::variable : leaf_role::untracked;
  static constexpr long node_count = 1;

  tensor() = default;
  /// A tensor with uninitialized elements.
  explicit tensor(const shape& s, const device& where = default_device())
      : state_(make_state(where, checked(s), dtype_of<T>)) {}
  /// A handle of an existing tensor. Throws value_error if `state` is null or its elements are not of type T,
  /// and shape_error if its shape does not match `Extents`.
  explicit tensor(std::shared_ptr<tensor_state> state) : state_(std::move(state)) {
    checked(detail::typed_state(dtype_of<T>, static_shape, state_)->whole());
  }
  /// A handle to the same elements with other static extents, or with gradients enabled or disabled. Implicit
  /// if it only forgets extents, as from extents<2, 3> to extents<dyn, 3>. Throws shape_error if the extents
  /// do not match `Extents`.
  template <class E, bool G>
  explicit(G != Tracked || !detail::includes(Extents::static_shape, E::static_shape))
      tensor(const tensor<T, E, G>& other)
      : tensor(other.state()) {
    (void)sizeof(detail::conversion_law<detail::can_be_equal(static_shape, E::static_shape), E, Extents>);
  }
  /// Compile-time error: an expression has no elements.
  template <expression E>
    requires(!detail::is_leaf<E>)
  tensor(const E&) {
    static_assert(detail::unsupported<E>, "weft: nothing is computed yet: auto h = e keeps the expression; "
                                          "steps.eval(e) on a tape, or eval(e), makes a tensor of it");
  }

  /// Compile-time error: the value is tracked, and its gradient would be lost.
  template <class E>
    requires(!Tracked)
  void operator=(const tensor<T, E, true>&) {
    static_assert(detail::unsupported<E>,
                  "weft: a tensor that is not tracked cannot be assigned a value that is, whose gradient "
                  "would be lost: begin with auto h = steps.eval(h0)");
  }

  /// False for a handle that refers to no tensor; every other member then throws value_error, except
  /// is_current(), which is true.
  bool defined() const { return state_ != nullptr; }
  /// The state that all handles of the same elements share.
  const std::shared_ptr<tensor_state>& state() const {
    if (!state_) detail::refuse_undefined(dtype_of<T>, static_shape);
    return state_;
  }
  const shape& extents() const { return state()->whole(); }
  /// The extent of a dim; -1 is the last one. Throws value_error for a dim that does not exist.
  index_t extent(int dim) const { return extents()[detail::checked_dim(extents(), dim)]; }
  /// The number of elements.
  index_t size() const { return extents().size(); }

  /// The expression select<0>(*this, i): x[i] without the first dim. Negative indices count from the right.
  /// Throws value_error if the index is out of range. Nothing is computed or copied before evaluation.
  auto operator[](index_t i) const {
    static_assert(static_shape.order > 0, "weft: x[i]: a scalar has no dims");
    return select<0>(*this, i);
  }
  /// Compile-time error: indexing by a tensor of indices or a mask.
  template <expression I>
  void operator[](I) const {
    static_assert(detail::unsupported<I>,
                  "weft: x[i]: i must be a number: for the rows at indices, write index_select<0>(x, "
                  "indices); for the elements where a mask holds, where(mask, x, 0)");
  }

  /// The element at the indices i, one for each dim: t(i, j). Negative indices count from the right. Throws
  /// value_error if one is out of range, and device_error on devices whose memory the host cannot access.
  template <std::convertible_to<index_t>... I>
  T operator()(I... i) const {
    static_assert(sizeof...(I) == std::size_t{static_shape.order},
                  "weft: t(i, j): give one index for each dim");
    const index_t at[] = {static_cast<index_t>(i)..., 0};
    return data()[detail::checked_position(extents(), at)];
  }

  /// Copies the elements to the host, in row-major order. Waits for the device. Throws value_error if the
  /// kernels that computed them found an invalid operand, such as an index out of range, on a device that
  /// runs asynchronously.
  std::vector<T> to_vector() const {
    static_assert(!std::is_same_v<T, bool>, "weft: to_vector of bool: use copy_to");
    std::vector<T> host(static_cast<std::size_t>(size()));
    copy_to(host.data());
    return host;
  }
  /// The same to `host`, which must have room for size() elements.
  void copy_to(T* host) const {
    detail::download_to(*state(), host);
  }
  /// Sets all size() elements, in row-major order. An expression that was written before and reads this
  /// tensor throws value_error when it is evaluated.
  void copy_from(const T* host) {
    detail::require_memory(*state());
    state()->where->upload(state()->memory.data(), host, state()->bytes());
    ++state()->version();
  }
  /// The same. Throws shape_error for a different number of elements.
  void copy_from(const std::vector<T>& host) {
    detail::require_elements(*state(), "copy_from", static_cast<index_t>(host.size()));
    copy_from(host.data());
  }

  /// The only element. Waits for the device, as to_vector does. Throws shape_error if the size is not 1.
  T item() const {
    detail::require_elements(*state(), "item", 1);
    T value;
    copy_to(&value);
    return value;
  }

  /// A copy of the elements on another device, or this tensor if it is already there. The copy of a variable
  /// or parameter is a separate one with its own gradient and no hooks. A tape cannot read the copy of a
  /// value that it has recorded, since no gradient would flow back through the copy.
  tensor to(const device& where) const {
    if (state()->where == where) return *this;
    tensor copy(alias_of(*state()));
    copy.state()->gradient_hooks.clear();
    move_to(*copy.state(), where);
    if (copy.state()->on_tape == tape_status::recorded) copy.state()->on_tape = tape_status::copied;
    return copy;
  }

  /// The elements in host memory, for reading. Throws device_error on devices whose memory the host cannot
  /// access.
  const T* data() const { return static_cast<const T*>(detail::host_memory(*state())); }
  /// The same for writing, which counts as an in-place change: expressions written before this call can no
  /// longer be evaluated, and backward passes can no longer read the elements. Finish writing before the next
  /// expression is written.
  T* mutable_data() {
    T* const elements = static_cast<T*>(detail::host_memory(*state()));
    ++state()->version();
    return elements;
  }

  /// The gradient accumulated by backward passes; undefined before the first of them.
  tensor<T, Extents> grad() const {
    if (!state()->grad) detail::require_own_gradient(*state(), "grad");
    return state()->grad ? tensor<T, Extents>(state()->grad) : tensor<T, Extents>();
  }
  /// Drops the gradient: grad() is undefined until the next backward pass. Throws usage_error while a run on
  /// several ranks holds the gradient: see distributed_context::zero_grad.
  void zero_grad() {
    detail::require_own_gradient(*state(), "zero_grad");
    state()->grad.reset();
  }

  /// Calls f(gradient) in every backward pass: for a value computed on the tape, when its gradient is
  /// complete and before it propagates further; for a parameter, after the pass has added to its gradient.
  /// `f` may change the gradient in place. It must not use the tape of that pass, and hooks that it adds are
  /// called from the next pass on.
  template <class F>
  void on_gradient(F f) {
    static_assert(Tracked,
                  "weft: on_gradient: this tensor is not tracked and gets no gradient: "
                  "a parameter, a variable or the result of tape.eval(...) does");
    state()->gradient_hooks.push_back(std::make_shared<typename backward_hook::element_type>(
        [f = std::move(f)](const std::shared_ptr<tensor_state>& g) mutable { f(tensor<T, Extents>(g)); }));
  }

  /// The handle as stored in expressions, with the current version count of the elements.
  tensor snapshot() const { return snapshot_of(*this); }
  /// False if the elements have changed since snapshot().
  bool is_current() const { return written_for_ == any_version || written_for_ == state()->version(); }

 protected:
  template <class Handle>
  static Handle snapshot_of(Handle t) {
    static_cast<tensor&>(t).written_for_ = t.state()->version();
    return t;
  }

 private:
  static const shape& checked(const shape& s) { return detail::checked_extents(static_shape, s); }

  std::shared_ptr<tensor_state> state_;
  static constexpr std::uint64_t any_version = ~std::uint64_t{0};
  std::uint64_t written_for_ = any_version;
};

/// A tensor for which tapes compute a gradient.
template <element T, class Extents>
using variable = tensor<T, Extents, true>;

/// A variable that belongs to a model and that optimizers change. Converts to and from a variable with the
/// same element type and extents. `Division`: the dim that ranks may divide, divided::along<...>, if a policy
/// divides layers.
template <class Extents, element T = float, class Division = divided::nowhere>
class parameter : public variable<T, Extents> {
  using base = variable<T, Extents>;
  static_assert(!Division::value.is_divided() || Division::value.dim < Extents::order,
                "weft: parameter: the dim that may be divided is out of range");
  static_assert(!Division::value.is_divided() || Extents::static_shape[Division::value.dim] == dyn ||
                    Extents::static_shape[Division::value.dim] %
                            (Division::value.groups * Division::value.unit) ==
                        0,
                "weft: parameter: groups and units must divide the dim that may be divided");

 public:
  static constexpr leaf_role role = leaf_role::parameter;
  using division = Division;

  parameter() = default;
  using base::base;
  parameter(const base& handle) : base(handle) {}

  // Redeclared, because those of `variable` return variables.
  parameter snapshot() const { return base::snapshot_of(*this); }
  auto operator[](index_t i) const {
    static_assert(base::static_shape.order > 0, "weft: x[i]: a scalar has no dims");
    return select<0>(*this, i);
  }
  using base::operator[];
  parameter to(const device& where) const { return base::to(where); }
};

}  // namespace weft
