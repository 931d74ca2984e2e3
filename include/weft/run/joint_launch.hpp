// SPDX-License-Identifier: MIT
// Programs of one kernel each that are launched together, such as the updates of all parameters of a model.
//
//   joint_launch together(c, "optimizer step");
//   for (...) execute(c, program, leaves, numbers, outputs, {}, {}, &together);
//   together.launch();
#pragma once

#include <weft/base/record_function.hpp>
#include <weft/run/eval.hpp>

namespace weft::runtime {

/// Collects programs of one kernel each, none of which may read or write what another one writes. A program
/// is launched immediately if the device does not profit from collecting, or if it cannot be collected.
/// Operands and results are kept alive until the launch.
class joint_launch final : public launch_collector {
 public:
  /// `what`: the name under which profilers show its lifetime.
  joint_launch(context& c, const char* what) : range_(what), device_(c.engine()) {}
  joint_launch(const joint_launch&) = delete;
  joint_launch& operator=(const joint_launch&) = delete;
  /// Launches what is left after an error, as if it had been launched immediately.
  ~joint_launch();

  void launch();

  bool collects(const specialization& p) const override {
    return device_.launches_together() && p.is_one_kernel();
  }
  void collect(const kernel_call& kernel) override { calls_.push_back(kernel); }
  void keep(const tensor_list& some) override { kept_.append(some.begin(), some.end()); }

 private:
  record_function range_;
  backend& device_;
  recycled_vector<kernel_call> calls_;
  tensor_list kept_;
};

}  // namespace weft::runtime

#ifndef WEFT_COMPILED
#include <weft/run/impl/joint_launch.ipp>
#endif
