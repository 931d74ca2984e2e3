// SPDX-License-Identifier: MIT
// State shared by the handles of a tensor: the location of its elements, its gradient, and for sharded
// tensors its place in the whole.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/device/device.hpp>
#include <weft/shape/extents.hpp>
#include <weft/shape/placement.hpp>

namespace weft {

/// The distribution from which the elements of a parameter are drawn.
struct initializer {
  enum class distribution : std::uint8_t { none, constant, uniform, normal };
  distribution kind = distribution::none;
  double scale = 0;  // the constant, half the width, or the standard deviation
  std::uint64_t seed = 0, stream = 0;  // of the random numbers
};

/// Whether a value was computed by a tape, and whether a backward pass may start from it.
enum class tape_status : std::uint8_t { never, not_recording, recorded, consumed };

/// The tensor that a shard belongs to.
struct division {
  std::string name;  // of the parameter; empty for other tensors
  shape whole;
  placement where{};  // if ranks divide the layer: this rank has a part, and programs read it as such
  index_t ranks = 1, rank = 0;  // then: of those that divide it
  bool is_deferred = false;     // a parameter whose part has no elements so far
};
/// The division of a tensor that is no parameter.
inline std::shared_ptr<const division> unnamed_division(const shape& whole, const placement& where,
                                                        index_t ranks, index_t rank) {
  return make_recycled<division>(division{{}, whole, where, ranks, rank});
}

/// State shared by the handles of a tensor.
struct tensor_state {
  device where;
  buffer memory;
  shape extents;  // of the elements in `memory`
  dtype type;
  tape_status on_tape = tape_status::never;
  std::uint64_t version = 0;           // counts changes in place
  initializer init;                    // initial values of a parameter
  std::shared_ptr<tensor_state> grad;  // sum of the gradients of backward passes
  std::vector<std::function<void(const std::shared_ptr<tensor_state>&)>> gradient_hooks;
  std::function<void()> arrive;        // waits for elements in flight from other ranks
  std::shared_ptr<const division> divided;  // among ranks; null if all elements are in `memory`

  tensor_state(const device& d, const shape& s, dtype t)
      : tensor_state(d, s, t, d.allocate(bytes_of(s, t))) {}
  tensor_state(const device& d, const shape& s, dtype t, buffer m)
      : where(d), memory(std::move(m)), extents(s), type(t) {}
  std::size_t bytes() const { return bytes_of(extents, type); }
  /// The extents that handles and expressions see: those of all ranks together.
  const shape& whole() const { return divided ? divided->whole : extents; }
  /// Whether these are the elements of this rank of a parameter of a divided layer, or of an activation.
  bool is_part_of_layer() const { return divided && divided->where.is_divided(); }
  /// The same for activations and gradients of them, and tensors divided by hand.
  bool is_unnamed_part() const { return is_part_of_layer() && divided->name.empty(); }
  /// What of the tensor this rank has, if ranks divide layers.
  placement where_in_layer() const { return divided ? divided->where : placement{}; }
  /// Whether it is a parameter without elements so far; see device::deferred.
  bool is_deferred() const {
    return !memory && (!divided || divided->is_deferred) && extents.size() > 0;
  }
};

// Not inlined: they are called in many places and allocate anyway.

/// A tensor with uninitialized elements.
[[gnu::noinline]] inline std::shared_ptr<tensor_state> make_state(const device& where, const shape& extents,
                                                                  dtype type) {
  return make_recycled<tensor_state>(where, extents, type);
}
/// A tensor of zeros.
inline std::shared_ptr<tensor_state> make_zeros(const device& where, const shape& extents, dtype type) {
  auto t = make_state(where, extents, type);
  where->fill_zero(t->memory.data(), t->bytes());
  return t;
}
/// A copy of the state that refers to the same elements; shape, gradient and device can be changed
/// separately.
[[gnu::noinline]] inline std::shared_ptr<tensor_state> alias_of(const tensor_state& t) {
  return make_recycled<tensor_state>(t);
}

/// The elements of `t` starting at `first`, of shape `extents`, as a separate tensor in the same memory.
inline std::shared_ptr<tensor_state> part_of(const tensor_state& t, index_t first, const shape& extents) {
  auto part = alias_of(t);
  part->extents = extents;
  part->memory = t.memory.part(static_cast<std::size_t>(first * size_of(t.type)));
  part->grad.reset();
  part->gradient_hooks.clear();
  return part;
}

/// A list of tensor states.
using tensor_list = recycled_vector<std::shared_ptr<tensor_state>>;

namespace detail {
// Not templates, so that their text is not instantiated for each tensor type.

/// Returns `s`; throws shape_error if a tensor with static extents `fixed` cannot have it.
inline const shape& checked_extents(const shape& fixed, const shape& s) {
  bool fits = s.order == fixed.order;
  for (int i = 0; fits && i < s.order; ++i) fits = fixed[i] == dyn ? s[i] >= 0 : s[i] == fixed[i];
  if (!fits)
    refuse<shape_error>({"weft: a tensor of type ", fixed, " cannot have the extents ", s});
  return s;
}
[[noreturn, gnu::cold]] inline void refuse_divided(const tensor_state& t) {
  const std::string part = t.memory ? ", this one has " + to_string(t.extents) : "";
  if (t.is_unnamed_part())
    refuse<value_error>({"weft: a tensor of shape ", t.whole(), " is divided among ranks along ",
                         to_string(t.divided->where), part,
                         ": gather(t, ranks) gives the whole, local_part(t) this part "
                         "(parallel/redistribute.hpp)"});
  refuse<value_error>({"weft: parameter ", t.divided->name, " of shape ", t.whole(),
                       " is divided among ranks", part,
                       ": run.full() gives whole copies, where `run` is what bind returned; expressions that "
                       "read it are evaluated there: eval(e, run), tape steps(run)"});
}
[[noreturn, gnu::cold]] inline void refuse_deferred(const tensor_state& t) {
  refuse<value_error>({"weft: a parameter of shape ", t.extents,
                       " was created on a deferred device and has no elements yet: bind the model to a "
                       "strategy, or call materialize(model)"});
}
/// Throws value_error if elements that this rank should have are not here.
inline void require_own_memory(const tensor_state& t) {
  if (const auto arrive = t.arrive) arrive();  // a copy, because arriving clears it
  if (t.is_deferred()) refuse_deferred(t);
  if (t.divided && !t.memory && t.extents.size() > 0) refuse_divided(t);
}
/// Throws value_error if elements of the whole tensor are missing on this rank.
inline void require_memory(const tensor_state& t) {
  require_own_memory(t);
  if (t.divided && !(t.extents == t.whole()) && t.whole().size() > 0) refuse_divided(t);
}
inline void download_to(const tensor_state& t, void* host) {
  require_memory(t);
  t.where->synchronize();
  t.where->download(host, t.memory.data(), t.bytes());
}
inline void require_elements(const tensor_state& t, const char* what, index_t count) {
  if (t.whole().size() != count)
    refuse<shape_error>({"weft: ", what, ": ", count, " elements for a tensor of shape ", t.whole()});
}
inline void* host_memory(const tensor_state& t) {
  if (!t.where->host_accessible())
    refuse<device_error>({"weft: data of a tensor on ", t.where->name()});
  require_memory(t);
  return t.memory.data();
}
[[noreturn, gnu::cold]] inline void refuse_undefined(dtype type, const shape& extents) {
  refuse<value_error>({"weft: a tensor of type ", name_of(type), " ", extents,
                       " is used before it has elements, or after it was moved"});
}
/// `dim` counted from the left; throws value_error if a tensor of shape `s` does not have it.
inline int checked_dim(const shape& s, int dim) {
  if (normalized_dim(dim, s.order) == s.order)
    refuse<value_error>({"weft: dim ", dim, " of a tensor of shape ", s});
  return normalized_dim(dim, s.order);
}
/// Returns `t`; throws value_error if it is null or its elements are not of `type`.
inline const std::shared_ptr<tensor_state>& typed_state(dtype type, const shape& fixed,
                                                        const std::shared_ptr<tensor_state>& t) {
  if (!t) refuse_undefined(type, fixed);
  if (t->type != type)
    refuse<value_error>({"weft: a tensor of ", name_of(type), " cannot have the elements of a tensor of ",
                         name_of(t->type)});
  return t;
}
}  // namespace detail

/// Moves the elements to another device, for all handles; a deferred parameter gets them there. Throws
/// value_error for sharded tensors.
inline void move_to(tensor_state& t, const device& where) {
  if (t.where == where) return;
  if (t.is_deferred()) {
    t.where = where;
    return;
  }
  detail::require_memory(t);
  const std::unique_ptr<std::byte[]> host(new std::byte[t.bytes()]);
  t.where->download(host.get(), t.memory.data(), t.bytes());
  t.memory = where.allocate(t.bytes());
  where->upload(t.memory.data(), host.get(), t.bytes());
  t.where = where;
  t.grad.reset();
}

}  // namespace weft
