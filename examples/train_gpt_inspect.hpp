// SPDX-License-Identifier: MIT
// Computes a batch whose loss was not finite again, to find the cause. Compiled once for each kind of model.
#pragma once

#include <weft/train/inspect.hpp>

#include "train_gpt_job.hpp"

namespace job {

template <class Model>
std::string look_again(const settings& s, const weft::state_dict_t& whole, const suspect& batch) {
  using namespace weft;
  const device host(std::make_shared<cpu::cpu_backend>());
  const auto model = Model::create(s.model, host);
  const state_dict_t copies = state_dict(model);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    move_to(*whole[i].second, host);
    copies[i].second->memory = whole[i].second->memory;
  }
  const auto look = [&]<class Context>(Context c) {
    c->set_randomness(batch.randomness);
    return find_non_finite(copies, *c, [&](auto& debug) {
      eval(cross_entropy(model(batch.inputs.to(host), s.model.context), batch.labels.to(host)), debug);
    });
  };
  // bf16 has the range of f32, so that a value overflows in both or in neither.
  const auto found = s.precision == "f16" ? look(std::make_unique<context_in<precision::f16>>(host))
                                          : look(std::make_unique<context>(host));
  return found ? found->text() : "nothing found when computed again";
}

}  // namespace job
