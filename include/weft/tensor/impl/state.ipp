// SPDX-License-Identifier: MIT
// Definitions of <weft/tensor/state.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/tensor/state.hpp>

namespace weft {

[[gnu::noinline]] WEFT_DEFINE std::shared_ptr<tensor_state> make_state(const device& where,
                                                                       const shape& extents, dtype type,
                                                                       const char* what) {
  return make_recycled<tensor_state>(where, extents, type, what);
}

[[gnu::noinline]] WEFT_DEFINE std::shared_ptr<tensor_state> alias_of(const tensor_state& t) {
  detail::await_elements(t);
  auto alias = make_recycled<tensor_state>(t);
  alias->gradient_in_run = alias->gradient_reduced = alias->rows_in_run = false;
  alias->runs = 0;
  return alias;
}

WEFT_DEFINE std::shared_ptr<tensor_state> make_zeros(const device& where, const shape& extents, dtype type) {
  auto t = make_state(where, extents, type);
  where->fill_zero(t->memory.data(), t->bytes());
  return t;
}

WEFT_DEFINE std::shared_ptr<tensor_state> part_of(const tensor_state& t, index_t first,
                                                  const shape& extents) {
  auto part = alias_of(t);
  if (!(extents == t.extents)) part->positions = no_positions;
  part->extents = extents;
  part->memory = t.memory.part(static_cast<std::size_t>(first * size_of(t.type)));
  part->grad.reset();
  part->gradient_hooks.clear();
  return part;
}

WEFT_DEFINE std::shared_ptr<tensor_state> unrecorded_part(const tensor_state& t, index_t first,
                                                          const shape& extents) {
  auto part = part_of(t, first, extents);
  part->on_tape = tape_status::never;
  return part;
}

namespace detail {

WEFT_DEFINE void download_to(const tensor_state& t, void* host) {
  require_memory(t);
  t.where->download(host, t.memory.data(), t.bytes());
}

WEFT_DEFINE const shape& checked_extents(const shape& fixed, const shape& s) {
  bool fits = s.order == fixed.order;
  for (int i = 0; fits && i < s.order; ++i) fits = fixed[i] == dyn ? s[i] >= 0 : s[i] == fixed[i];
  if (!fits) refuse<shape_error>({"weft: a tensor of type ", fixed, " cannot have the extents ", s});
  return s;
}

WEFT_DEFINE void refuse_divided(const tensor_state& t) {
  const std::string part =
      t.memory && !(t.extents == t.whole()) ? ", and this rank has " + to_string(t.extents) : "";
  if (t.is_unnamed_part())
    refuse<value_error>({"weft: a tensor of shape ", t.whole(), " is divided among ranks along ",
                         to_string(t.divided->where), part,
                         ": gather(t, ranks) gives the whole, local_part(t) this part "
                         "(parallel/redistribute.hpp)"});
  if (t.divided->on_other_stage)
    refuse<value_error>(
        {"weft: parameter ", t.divided->name, " of shape ", t.whole(),
         " is held by another stage of the pipeline: the statement that divided the model, of "
         "the first step, run.eval or run.prepare, did not read it on this stage. A "
         "pipeline computes losses in run.step(m, loss) and values in run.eval(e), not on "
         "tapes; run.full() gives whole copies, where `run` is what bind returned"});
  refuse<value_error>({"weft: parameter ", t.divided->name, " of shape ", t.whole(),
                       " is divided among ranks", part,
                       ": run.full() gives whole copies, where `run` is what bind returned; expressions that "
                       "read it are evaluated there: eval(e, run), tape steps(run)"});
}

WEFT_DEFINE void refuse_deferred(const tensor_state& t) {
  refuse<value_error>({"weft: a parameter of shape ", t.extents,
                       " was created on a deferred device and has no elements yet: bind the model to a "
                       "strategy, or call materialize(model)"});
}

WEFT_DEFINE void await_elements(const tensor_state& t) {
  if (const auto arrive = t.arrive) arrive();  // a copy, because calling it clears t.arrive
  if (t.viewed) await_elements(*t.viewed);
}

WEFT_DEFINE void require_own_memory(const tensor_state& t) {
  await_elements(t);
  if (t.viewed && t.viewed->divided && !t.viewed->is_part_of_layer()) refuse_divided(*t.viewed);
  if (t.is_deferred()) refuse_deferred(t);
  if (t.divided && !t.memory && t.extents.size() > 0) refuse_divided(t);
}

WEFT_DEFINE void require_lasting_memory(const tensor_state& t) {
  require_own_memory(t);
  if (t.is_gathered) refuse_divided(t);
}

WEFT_DEFINE void require_memory(const tensor_state& t) {
  require_lasting_memory(t);
  if (t.divided && !(t.extents == t.whole()) && t.whole().size() > 0) refuse_divided(t);
}

WEFT_DEFINE void require_elements(const tensor_state& t, const char* what, index_t count) {
  if (t.whole().size() != count)
    refuse<shape_error>({"weft: ", what, ": a tensor of shape ", t.whole(), " has ", t.whole().size(),
                         " elements, not ", count});
}

WEFT_DEFINE void refuse_second_run(const std::string& name) {
  refuse<value_error>({"weft: bind: parameter ", name,
                       " is in another run, and one of the two divides its rows among ranks: end that run "
                       "first, or bind models that share parameters as members of one struct"});
}

WEFT_DEFINE void refuse_gradient_in_run(const tensor_state& t, const char* what) {
  refuse<usage_error>(
      {"weft: ", what, ": the gradient of a parameter of shape ", t.whole(),
       " is in the run to which the model is bound, until its step: run.step() updates, "
       "run.zero_grad() drops it, run.step({.clip = limit}) clips it, run.gradient_norm() measures it"});
}

WEFT_DEFINE void refuse_host(const tensor_state& t) {
  refuse<device_error>({"weft: data of a tensor of shape ", t.whole(), " on ", t.where->name(),
                        ", whose memory the host cannot access: x.to_vector(), x.item(), "
                        "x.to(default_device())"});
}

WEFT_DEFINE void refuse_undefined(dtype type, const shape& extents) {
  bool is_open = false;
  for (int d = 0; d < extents.order; ++d) is_open = is_open || extents[d] == dyn;
  refuse<value_error>({"weft: a tensor of type ", name_of(type), " ", extents,
                       " is used before it has elements, or after it was moved",
                       is_open ? "; layers with a dyn size are made by create" : ""});
}

WEFT_DEFINE int checked_dim(const shape& s, int dim) {
  if (normalized_dim(dim, s.order) == s.order)
    refuse<value_error>({"weft: dim ", dim, " is out of range for a tensor of shape ", s});
  return normalized_dim(dim, s.order);
}

WEFT_DEFINE const std::shared_ptr<tensor_state>& typed_state(dtype type, const shape& fixed,
                                                             const std::shared_ptr<tensor_state>& t) {
  if (!t) refuse_undefined(type, fixed);
  if (t->type != type)
    refuse<value_error>(
        {"weft: a tensor of ", name_of(type), " cannot have the elements of a tensor of ", name_of(t->type)});
  return t;
}

}  // namespace detail

WEFT_DEFINE void move_to(tensor_state& t, const device& where) {
  if (t.where == where) return;
  if (t.is_deferred()) {
    t.where = where;
    return;
  }
  detail::require_memory(t);
  if (t.rows_in_run)
    refuse<usage_error>({"weft: to: a parameter of shape ", t.whole(), " on ", t.where->name(),
                         " is in a run that divides its rows among ranks: move the model before bind, or end "
                         "the run first"});
  const std::unique_ptr<std::byte[]> host(new std::byte[t.bytes()]);
  t.where->download(host.get(), t.memory.data(), t.bytes());
  buffer memory = where.allocate(t.bytes());
  where->upload(memory.data(), host.get(), t.bytes());
  memory.describe_as(t.memory);
  std::shared_ptr<tensor_state> grad;
  if (t.grad) {
    grad = alias_of(*t.grad);  // other handles keep their own
    move_to(*grad, where);
  }
  const std::uint64_t changes = t.version();
  t.memory = std::move(memory);  // nothing below can fail
  t.viewed.reset();              // has its own elements now, and its own count
  t.version() = changes;
  t.where = where;
  t.grad = std::move(grad);
}

WEFT_DEFINE void run_gradient_hooks(const tensor_state& t, std::shared_ptr<tensor_state> gradient) {
  const std::size_t now = t.gradient_hooks.size();
  for (std::size_t i = 0; i < now; ++i) {
    const backward_hook hook = t.gradient_hooks[i];
    (*hook)(gradient);
  }
}

}  // namespace weft
