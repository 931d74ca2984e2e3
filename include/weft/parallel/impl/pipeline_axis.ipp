// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/pipeline_axis.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/parallel/groups.hpp>
#include <weft/parallel/pipeline_axis.hpp>

namespace weft {
namespace parallel {

WEFT_DEFINE pipeline::schedule usable_schedule(pipeline::schedule s, int stages, index_t micro_batches,
                                               bool divides_backward) {
  auto mistake = pipeline::detail::check_lists(s);
  if (!mistake && !s.has_messages()) s = pipeline::with_messages(s);
  if (!mistake) mistake = pipeline::check(s);
  if (mistake)
    weft::refuse<usage_error>({"weft: pipeline: the schedule cannot run: ", pipeline::to_text(*mistake)});
  const auto refuse = [&](const std::string& why) {
    weft::refuse<usage_error>(
        {"weft: pipeline: the schedule for ", stages, " stages and ", micro_batches, " micro-batches ", why});
  };
  if (s.stages() != stages || s.micro_batches != micro_batches)
    refuse("is for " + std::to_string(s.stages()) + " stages and " + std::to_string(s.micro_batches));
  if (!divides_backward && weft::detail::divides_backward(s))
    refuse("splits backward steps, which the policy must allow: pp<pipeline::zb_h1>, or pp<make, true>");
  if (!s.flush && s.chunks() != stages)
    refuse("updates parameters after each backward step, which needs one chunk on each stage: it has " +
           std::to_string(s.chunks()));
  return s;
}

WEFT_DEFINE void refuse_without_flush(const parallel_options& o, double clip, bool scales_loss) {
  const auto refuse = [](const std::string& what) {
    weft::refuse<usage_error>(
        {"weft: pipeline: the schedule updates parameters after each backward step: ", what});
  };
  if (clip > 0)
    refuse(
        "step_options::clip needs the norm of the gradient over all stages, which do not wait for each "
        "other; set it to 0");
  if (scales_loss)
    refuse("the loss scale of precision::f16 depends on the gradients of all stages; use precision::bf16");
  if (o.divide != sharding::none)
    refuse(
        "fsdp shards parameters or optimizer state among ranks, but each stage keeps whole versions of its "
        "parameters; use dp");
  if (o.local_steps > 1)
    refuse("local_steps is " + std::to_string(o.local_steps) + ": ranks would keep different versions");
}

}  // namespace parallel
}  // namespace weft
