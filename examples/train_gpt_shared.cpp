// SPDX-License-Identifier: MIT
// Code that all units of train_gpt share, compiled once: devices by name, inspection of a bad batch.
#include <weft/gpu/open.hpp>
#if WEFT_WITH_NCCL
#include <weft/gpu/nccl.hpp>
#endif

#include "train_gpt_inspect.hpp"

namespace job {

using namespace weft;

std::string resolved_device(const std::string& name) {
  return name == "auto" ? open_device(name)->name() : name;
}

std::string devices() { return devices_text(list_devices()); }

device device_of(const settings& s, int local_rank) {
  try {
    const device where = open_device(s.device_name, {.local_rank = local_rank, .threads = s.threads});
    where->allow_tf32(s.tf32);
    return where;
  } catch (const device_error& e) { throw usage_error("--device " + s.device_name + ": " + e.what()); }
}

std::unique_ptr<communicator> over_nccl(const settings& s, communicator& host, const device& where) {
  if (s.comm != "nccl") return nullptr;
#if WEFT_WITH_NCCL
  try {
    return std::make_unique<nccl_communicator>(host, where, nccl_options{}, std::chrono::seconds(s.timeout));
  } catch (const device_error& e) {
    throw usage_error(std::string("--comm nccl: ") + e.what());
  }
#else
  (void)host, (void)where;
  throw usage_error("--comm nccl: " + weft::detail::not_built("nccl"));
#endif
}

template std::string look_again<gpt2::model<>>(const settings&, const state_dict_t&, const suspect&);

}  // namespace job
