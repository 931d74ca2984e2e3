// SPDX-License-Identifier: MIT
// The state shared by all handles of a tensor: where its elements are, its gradient and, for sharded tensors,
// its place in the whole tensor.
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

/// The distribution from which the initial elements of a parameter are drawn.
struct initializer {
  enum class distribution : std::uint8_t { none, constant, uniform, normal };
  distribution kind = distribution::none;
  double scale = 0;  // the constant, half the width, or the standard deviation
  std::uint64_t seed = 0, stream = 0;      // of the random numbers
  index_t zeros_begin = 0, zeros_end = 0;  // elements that are 0 instead, in row-major order
};

/// Whether a tape computed a value, and whether a backward pass may start from it. It may not if the tape
/// ended without a backward pass (lost), or if the value is a copy, on another device, of the recorded one
/// (copied).
enum class tape_status : std::uint8_t { never, not_recording, recorded, consumed, lost, copied };

/// The tensor that a shard belongs to.
struct division {
  std::string name;  // the parameter's; empty for other tensors
  shape whole;
  placement where{};  // if ranks divide the layer, the part of this rank, which programs read as a part
  index_t ranks = 1, rank = 0;  // if so, the ranks that divide it, and this one
  bool is_deferred = false;     // a parameter whose part has no elements yet
  bool on_other_stage = false;  // held by another pipeline stage
};
/// The division of a tensor that is not a parameter.
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
  std::shared_ptr<const division> divided;  // how ranks divide it; null if all elements are in `memory`
  std::shared_ptr<tensor_state> viewed;     // for a view (flat_view), the tensor that owns the elements
  bool is_gathered = false;      // `memory` is a copy for programs, gathered from the parts of all ranks
  bool gradient_in_run = false;  // a run holds the gradients of backward passes (parallel/reduce.hpp)
  bool gradient_reduced = false;  // over ranks, for the next step of a run
  bool rows_in_run = false;       // a run updates some rows of `memory` and gathers the others
  positions_dims positions = no_positions;  // dims along which other ranks hold other positions
  int runs = 0;                   // number of runs that hold this parameter

  tensor_state(const device& d, const shape& s, dtype t, const char* what = "")
      : tensor_state(d, s, t, d.allocate(bytes_of(s, t), what)) {}
  tensor_state(const device& d, const shape& s, dtype t, buffer m)
      : where(d), memory(std::move(m)), extents(s), type(t) {}
  std::size_t bytes() const { return bytes_of(extents, type); }
  /// Counts in-place changes; a view and the tensor it views share one count.
  std::uint64_t& version() { return viewed ? viewed->version() : changes_; }
  /// The extents that handles and expressions see: those of the whole tensor, over all ranks.
  const shape& whole() const { return divided ? divided->whole : extents; }
  /// Whether `memory` holds this rank's part of a parameter of a divided layer, or of an activation.
  bool is_part_of_layer() const { return divided && divided->where.is_divided(); }
  /// The same, but only for activations, their gradients, and tensors that the program divided itself.
  bool is_unnamed_part() const { return is_part_of_layer() && divided->name.empty(); }
  /// Which part of the tensor this rank has, if ranks divide layers.
  placement where_in_layer() const { return divided ? divided->where : placement{}; }
  /// Whether this is a parameter that has no elements yet; see device::deferred.
  bool is_deferred() const {
    return !memory && (!divided || divided->is_deferred) && extents.size() > 0;
  }

 private:
  std::uint64_t changes_ = 0;
};

// Not inlined: they are called in many places and allocate anyway.

/// A tensor with uninitialized elements. `what` names it in lists of memory use and must be a string that is
/// never freed.
std::shared_ptr<tensor_state> make_state(const device& where, const shape& extents, dtype type,
                                         const char* what = "");
/// A tensor of zeros.
std::shared_ptr<tensor_state> make_zeros(const device& where, const shape& extents, dtype type);
/// A new state that refers to the same elements, whose shape, gradient and device can be changed separately.
/// Waits for elements in flight from other ranks.
std::shared_ptr<tensor_state> alias_of(const tensor_state& t);

/// Calls the gradient hooks that `t` has now; hooks added meanwhile are not called.
void run_gradient_hooks(const tensor_state& t, std::shared_ptr<tensor_state> gradient);

/// The elements of `t` starting at `first`, of shape `extents`, as a separate tensor in the same memory.
std::shared_ptr<tensor_state> part_of(const tensor_state& t, index_t first, const shape& extents);
/// The same as a tensor that no tape has recorded, so that one can record it.
std::shared_ptr<tensor_state> unrecorded_part(const tensor_state& t, index_t first, const shape& extents);

/// A list of tensor states.
using tensor_list = recycled_vector<std::shared_ptr<tensor_state>>;

namespace detail {
// Not templates, so that their code is not instantiated for each tensor type.

/// Returns `s`; throws shape_error if a tensor with static extents `fixed` cannot have it.
const shape& checked_extents(const shape& fixed, const shape& s);
[[noreturn, gnu::cold]] void refuse_divided(const tensor_state& t);
[[noreturn, gnu::cold]] void refuse_deferred(const tensor_state& t);
/// Waits until elements in flight from other ranks have arrived, including those of the tensor that `t`
/// views.
void await_elements(const tensor_state& t);
/// Throws value_error if this rank lacks elements that it should have.
void require_own_memory(const tensor_state& t);
/// Throws value_error if this rank does not have all elements of the tensor, or has them for programs only.
void require_memory(const tensor_state& t);
/// Throws value_error if a write to `memory` would be lost.
void require_lasting_memory(const tensor_state& t);
void download_to(const tensor_state& t, void* host);
void require_elements(const tensor_state& t, const char* what, index_t count);
/// Throws for a parameter whose rows two runs would update.
[[noreturn, gnu::cold]] void refuse_second_run(const std::string& name);
[[noreturn, gnu::cold]] void refuse_gradient_in_run(const tensor_state& t, const char* what);
/// Throws usage_error if a run, and not the tensor, has the gradients of backward passes.
inline void require_own_gradient(const tensor_state& t, const char* what) {
  if (t.gradient_in_run) refuse_gradient_in_run(t, what);
}
[[noreturn, gnu::cold]] void refuse_host(const tensor_state& t);
/// Inlined, since t(i, j) calls it for each element.
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

/// Moves the elements and the gradient to another device, for all handles; a deferred parameter will get them
/// there, and a view is no longer one. Throws value_error for sharded tensors, and usage_error for a
/// parameter whose rows a run shards.
void move_to(tensor_state& t, const device& where);

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/tensor/impl/state.ipp>
#endif
