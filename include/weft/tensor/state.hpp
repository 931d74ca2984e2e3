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

/// Whether a value was computed by a tape, and whether a backward pass may start from it: not if its tape has
/// ended without one (lost), or it is a copy, on another device, of what the tape recorded (copied).
enum class tape_status : std::uint8_t { never, not_recording, recorded, consumed, lost, copied };

/// The tensor that a shard belongs to.
struct division {
  std::string name;  // of the parameter; empty for other tensors
  shape whole;
  placement where{};  // if ranks divide the layer: this rank has a part, and programs read it as such
  index_t ranks = 1, rank = 0;  // then: of those that divide it
  bool is_deferred = false;     // a parameter whose part has no elements so far
  bool on_other_stage = false;  // of a pipeline
};
/// The division of a tensor that is no parameter.
inline std::shared_ptr<const division> unnamed_division(const shape& whole, const placement& where,
                                                        index_t ranks, index_t rank) {
  return make_recycled<division>(division{{}, whole, where, ranks, rank});
}

struct tensor_state;
/// A function that is called with a gradient. Shared, so that hooks may add hooks.
using backward_hook = std::shared_ptr<std::function<void(const std::shared_ptr<tensor_state>&)>>;

/// State shared by the handles of a tensor.
struct tensor_state {
  device where;
  buffer memory;
  shape extents;  // of the elements in `memory`
  dtype type;
  tape_status on_tape = tape_status::never;
  initializer init;                    // initial values of a parameter
  std::shared_ptr<tensor_state> grad;  // sum of the gradients of backward passes
  std::vector<backward_hook> gradient_hooks;
  std::function<void()> arrive;        // waits for elements in flight from other ranks
  std::shared_ptr<const division> divided;  // among ranks; null if all elements are in `memory`
  std::shared_ptr<tensor_state> viewed;     // of a view (flat_view): whose elements these are
  bool is_gathered = false;      // `memory` is a copy for programs, of what the ranks have parts of elsewhere
  bool gradient_in_run = false;  // backward passes have given their gradients to a run (parallel/reduce.hpp)
  bool gradient_reduced = false;  // over ranks, for the next step of a run
  bool rows_in_run = false;       // a run updates some rows of `memory` and gathers the others
  positions_dims positions = no_positions;  // dims along which other ranks have other positions
  int runs = 0;                   // number of runs that have this parameter

  tensor_state(const device& d, const shape& s, dtype t, const char* what = "")
      : tensor_state(d, s, t, d.allocate(bytes_of(s, t), what)) {}
  tensor_state(const device& d, const shape& s, dtype t, buffer m)
      : where(d), memory(std::move(m)), extents(s), type(t) {}
  std::size_t bytes() const { return bytes_of(extents, type); }
  /// Counts changes in place, of views together with what they view.
  std::uint64_t& version() { return viewed ? viewed->version() : changes_; }
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

 private:
  std::uint64_t changes_ = 0;
};

// Not inlined: they are called in many places and allocate anyway.

/// A tensor with uninitialized elements. `what` it is, for lists of what memory is used for; a string that is
/// never freed.
std::shared_ptr<tensor_state> make_state(const device& where, const shape& extents, dtype type,
                                         const char* what = "");
/// A tensor of zeros.
std::shared_ptr<tensor_state> make_zeros(const device& where, const shape& extents, dtype type);
/// A copy of the state that refers to the same elements; shape, gradient and device can be changed
/// separately. Waits for elements in flight from other ranks.
std::shared_ptr<tensor_state> alias_of(const tensor_state& t);

/// Calls the gradient hooks of `t` that it has now.
void run_gradient_hooks(const tensor_state& t, std::shared_ptr<tensor_state> gradient);

/// The elements of `t` starting at `first`, of shape `extents`, as a separate tensor in the same memory.
std::shared_ptr<tensor_state> part_of(const tensor_state& t, index_t first, const shape& extents);

/// A list of tensor states.
using tensor_list = recycled_vector<std::shared_ptr<tensor_state>>;

namespace detail {
// Not templates, so that their text is not instantiated for each tensor type.

/// Returns `s`; throws shape_error if a tensor with static extents `fixed` cannot have it.
const shape& checked_extents(const shape& fixed, const shape& s);
[[noreturn, gnu::cold]] void refuse_divided(const tensor_state& t);
[[noreturn, gnu::cold]] void refuse_deferred(const tensor_state& t);
/// Waits until elements in flight from other ranks have arrived, also those of what `t` is a view of.
void await_elements(const tensor_state& t);
/// Throws value_error if elements that this rank should have are not here.
void require_own_memory(const tensor_state& t);
/// Throws value_error if elements of the whole tensor are missing on this rank, or are there for programs
/// only.
void require_memory(const tensor_state& t);
/// Throws value_error if what is written to `memory` would be lost.
void require_lasting_memory(const tensor_state& t);
void download_to(const tensor_state& t, void* host);
void require_elements(const tensor_state& t, const char* what, index_t count);
/// For a parameter of which two runs would change the rows.
[[noreturn, gnu::cold]] void refuse_second_run(const std::string& name);
[[noreturn, gnu::cold]] void refuse_gradient_in_run(const tensor_state& t, const char* what);
/// Throws usage_error if the gradients of backward passes are not here but in a run.
inline void require_own_gradient(const tensor_state& t, const char* what) {
  if (t.gradient_in_run) refuse_gradient_in_run(t, what);
}
[[noreturn, gnu::cold]] void refuse_host(const tensor_state& t);
/// Inlined, as t(i, j) asks for each element.
inline void* host_memory(const tensor_state& t) {
  if (!t.where->host_accessible()) refuse_host(t);
  if (t.arrive || t.divided || t.is_deferred() || (t.viewed && (t.viewed->arrive || t.viewed->divided)))
    require_memory(t);
  return t.memory.data();
}
[[noreturn, gnu::cold]] void refuse_undefined(dtype type, const shape& extents);
/// `dim` counted from the left; throws value_error if a tensor of shape `s` does not have it.
int checked_dim(const shape& s, int dim);
/// Returns `t`; throws value_error if it is null or its elements are not of `type`.
const std::shared_ptr<tensor_state>& typed_state(dtype type, const shape& fixed,
                                                 const std::shared_ptr<tensor_state>& t);
}  // namespace detail

/// Moves the elements and the gradient to another device, for all handles; a deferred parameter gets them
/// there. Throws value_error for sharded tensors, and usage_error for a parameter whose rows a run divides.
void move_to(tensor_state& t, const device& where);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/tensor/impl/state.ipp>
#endif
