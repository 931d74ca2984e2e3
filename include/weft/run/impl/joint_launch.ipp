// SPDX-License-Identifier: MIT
// Definitions of <weft/run/joint_launch.hpp>.
#pragma once

#include <utility>

#include <weft/base/config.hpp>
#include <weft/run/joint_launch.hpp>

namespace weft {
namespace runtime {

WEFT_DEFINE void joint_launch::launch() {
  const recycled_vector<kernel_call> calls = std::exchange(calls_, {});
  recycled_vector<const kernel_call*> all;
  for (const kernel_call& call : calls) all.push_back(&call);
  if (!all.empty()) device_.launch_together({all.data(), all.size()});
  kept_.clear();
}

WEFT_DEFINE joint_launch::~joint_launch() {
  try {
    launch();
  } catch (...) {  // another error is being thrown
  }
}

}  // namespace runtime
}  // namespace weft
