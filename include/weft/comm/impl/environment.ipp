// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/environment.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/comm/environment.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE int variable_as_int(const variable_lookup& look_up, const char* name, int low, int high) {
  const char* text = look_up(name);
  if (!text || !*text)
    refuse<usage_error>({"weft: ", name, " is not set, but other variables of a launcher are"});
  const std::optional<int> n = parse_number<int>(text);
  if (!n || *n < low || *n > high)
    refuse<usage_error>({"weft: ", name, "=", text, ": expected a number from ", low, " to ", high});
  return *n;
}

}  // namespace detail

WEFT_DEFINE launch launch_from_environment(const variable_lookup& look_up) {
  constexpr int most = 1 << 20;
  launch l;
  const auto number = [&](const char* name, int low, int high) {
    return detail::variable_as_int(look_up, name, low, high);
  };
  if (look_up("RANK") || look_up("WORLD_SIZE")) {
    l.from = launch::launcher::variables;
    l.size = number("WORLD_SIZE", 1, most);
    const bool by_mpirun = look_up("OMPI_COMM_WORLD_SIZE") && !look_up("TORCHELASTIC_RUN_ID");
    if (by_mpirun && number("OMPI_COMM_WORLD_SIZE", 1, most) != l.size)
      throw usage_error("weft: WORLD_SIZE=" + std::to_string(l.size) + " contradicts OMPI_COMM_WORLD_SIZE=" +
                        look_up("OMPI_COMM_WORLD_SIZE") + ": unset WORLD_SIZE and RANK under mpirun");
    l.rank = number("RANK", 0, l.size - 1);
    const bool one_machine = !look_up("LOCAL_WORLD_SIZE");
    l.local_size = one_machine ? l.size : number("LOCAL_WORLD_SIZE", 1, l.size);
    if (look_up("LOCAL_RANK")) l.local_rank = number("LOCAL_RANK", 0, l.local_size - 1);
    else l.local_rank = one_machine ? l.rank : 0;
  } else if (look_up("OMPI_COMM_WORLD_RANK")) {
    l.from = launch::launcher::mpirun;
    l.size = number("OMPI_COMM_WORLD_SIZE", 1, most);
    l.rank = number("OMPI_COMM_WORLD_RANK", 0, l.size - 1);
    l.local_size =
        look_up("OMPI_COMM_WORLD_LOCAL_SIZE") ? number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, l.size) : l.size;
    l.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK", 0, l.local_size - 1);
  } else {
    return l;
  }
  if (const char* address = look_up("MASTER_ADDR")) l.address = address;
  if (!l.address.empty()) l.port = number("MASTER_PORT", 1, 65535);
  const char* const agent = look_up("TORCHELASTIC_USE_AGENT_STORE");  // torchrun itself listens on the port
  if (l.port && agent && std::string(agent) == "True") l.port = l.port % 65535 + 1;
  return l;
}

WEFT_DEFINE std::vector<std::string> ignored_variables(const variable_lookup& look_up) {
  std::vector<std::string> ignored;
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
                           "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "TORCH_DISTRIBUTED_DEBUG"})
    if (look_up(name)) ignored.emplace_back(name);
  return ignored;
}

}  // namespace weft
