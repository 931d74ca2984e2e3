// SPDX-License-Identifier: MIT
// What all units of train_gpt do alike, compiled once: devices by name, a second look at a bad batch.
#include <weft/gpu/open.hpp>
#include <weft/train/inspect.hpp>

#include "train_gpt_job.hpp"

namespace job {

using namespace weft;

std::string resolved_device(const std::string& name) {
  return name == "auto" ? open_device(name)->name() : name;
}

std::string devices() { return devices_text(list_devices()); }

device device_of(const settings& s, int local_rank) {
  try {
    return open_device(s.device_name, {.local_rank = local_rank, .threads = s.threads});
  } catch (const device_error& e) {
    throw usage_error("--device " + s.device_name + ": " + e.what());
  }
}

std::string look_again(const settings& s, const state_dict_t& whole, const suspect& batch) {
  const device host(std::make_shared<cpu::cpu_backend>());
  const auto model = gpt2::model<>::create(s.model, host);
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
  // bf16 has the range of f32: what is not finite in one is not in the other.
  const auto found = s.precision == "f16" ? look(std::make_unique<context_in<precision::f16>>(host))
                                          : look(std::make_unique<context>(host));
  return found ? found->text() : "nothing on a second look";
}

}  // namespace job
