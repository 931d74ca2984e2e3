// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/distributed_context.hpp>: steps that a device records.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/parallel/distributed_context.hpp>
#include <weft/parallel/norm.hpp>

namespace weft {

WEFT_DEFINE void distributed_context::require_recordable() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds)
      refuse<usage_error>({"weft: step: a step with ", what, " cannot be recorded (.graph = true)"});
  };
  require(!options_.deterministic, "sums in a fixed order over ranks (.deterministic = true)");
  require(!hooks() && groups().data().size() == 1, "messages to other ranks");
  require(!options_.offload_optimizer && !options_.offload_parameters, "offload");
  require(&engine() == &*where(), "another backend than the device's");
  require(joins_.empty(), "join()");
  for (const auto& [name, p] : local_) {
    require(p->gradient_hooks.empty(), "gradient hooks");
    require(!p->grad, "gradients of another backward pass");
  }
}

WEFT_DEFINE step_result distributed_context::graph_step(const void* statement, const runtime::operands& read,
                                                        std::span<const random_state> begins,
                                                        const std::function<tensor_list()>& compute,
                                                        const step_options& o) {
  require_recordable();
  const communication before = communicated();
  tensor_list parameters;
  parallel::step_form form{statement, o.clip, loss_scale, loss_weight, recompute_programs};
  for (const auto& [name, p] : local_) {
    parameters.push_back(p);
    form.memory.push_back(p->memory.data());
  }
  for (const auto& [name, b] : parallel_->buffers()) form.memory.push_back(b->memory.data());
  const tensor_list tensors = parallel::described_operands(read, form);
  parallel::step_graph* g = graphs_.find(form);
  if (!g) {
    for (const auto& p : read.held->parameters)
      if (std::find(parameters.begin(), parameters.end(), p) == parameters.end())
        refuse<usage_error>({"weft: step: a step with a parameter of shape ", p->extents,
                             " in a block that the run does not train cannot be recorded (.graph = true)"});
    g = &graphs_.add(std::make_unique<parallel::step_graph>(*this, form, tensors));
  }
  const double mean = mean_factor(o);
  const auto all = [&] {
    parallel::step_graph::values v;
    v.losses = compute();
    deliver_gradients();
    const parallel::gradient_measure m = measured(o, mean);
    v.norm = m.norm.pending();
    v.scale = m.scale;
    return v;
  };
  parallel::step_graph::values v;
  if (!g->seal()) {
    v = g->warm_up(parameters, all);
  } else {
    if (!g->is_recorded()) g->record(begins, tensors, parameters, all);
    v = g->replay(begins, tensors, parameters);
  }
  passes_seen_ = backward_passes();
  const std::vector<double> weights(v.losses.size(), loss_weight);
  return complete_step(v.losses, weights, o, before, [&] {
    return apply({pending_number(v.norm), v.scale});
  });
}

}  // namespace weft
