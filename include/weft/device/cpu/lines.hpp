// SPDX-License-Identifier: MIT
// The lines of a tensor along a dim, for CPU kernels that process several adjacent lines at a time.
#pragma once

#include <algorithm>
#include <type_traits>

#include <weft/device/cpu/executor.hpp>
#include <weft/device/native.hpp>

namespace weft::cpu {
inline namespace WEFT_ISA {
namespace detail {

/// The lines of tensors of one shape along dim `dim`, in groups of adjacent lines: adjacent along the last
/// dim or, if that is `dim`, along the one before it. In the latter case groups are smaller, since rows may
/// map to the same cache lines.
class grouped_lines {
 public:
  static constexpr index_t most = 64, few = 4;  // lines of a group

  grouped_lines(const shape& s, int dim) : groups_(s), size_(s[dim]) {
    groups_[dim] = 1;
    if (s.order == 1) return;
    across_ = dim == s.order - 1 ? dim - 1 : s.order - 1;
    width_ = across_ > dim ? most : few;
    lines_ = s[across_];
    groups_[across_] = (lines_ + width_ - 1) / width_;
  }

  /// The step from a line of `t` to the next one of its group.
  index_t step(const strided& t) const { return across_ < 0 ? 0 : t.stride[across_]; }
  /// The offset of the first element of a group.
  index_t offset(const strided& t, index_t group) const {
    index_t stride[max_order] = {};
    std::copy(t.stride, t.stride + groups_.order, stride);
    if (across_ >= 0) stride[across_] *= width_;
    return element_offset(groups_, stride, 0, groups_.order, group);
  }

  /// Calls f(group, lines) for every group and the number of its lines, in parallel if that is worthwhile.
  template <class F>
  void for_each(const native_call& call, F f) const {
    const index_t count = groups_.size();
    const index_t tasks =
        count * width_ * size_ < 65536 ? 1 : std::min<index_t>(count, 4 * call.threads.threads());
    call.threads.parallel_for(tasks, [&](index_t task, scratch_memory&) {
      for (index_t group = count * task / tasks; group < count * (task + 1) / tasks; ++group)
        f(group, std::min(width_, lines_ - place(group) * width_));
    });
  }

  /// Calls f(lines, steps...) with constants for full groups, so that loops over adjacent lines are
  /// vectorised and loops over a few lines are unrolled.
  template <class F, class... Steps>
  static void with_constants(F f, index_t lines, Steps... steps) {
    if (lines == most && (... && (steps == 1)))
      f(std::integral_constant<index_t, most>{}, adjacent<Steps>{}...);
    else if (lines == few) f(std::integral_constant<index_t, few>{}, steps...);
    else f(lines, steps...);
  }

 private:
  template <class>
  using adjacent = std::integral_constant<index_t, 1>;

  /// The index of a group along the dim across which lines are grouped.
  index_t place(index_t group) const {
    if (across_ < 0) return 0;
    index_t after = 1;
    for (int d = across_ + 1; d < groups_.order; ++d) after *= groups_[d];
    return group / after % groups_[across_];
  }

  shape groups_;  // the number of groups along each dim
  index_t size_;
  int across_ = -1;
  index_t width_ = 1, lines_ = 1;
};

}  // namespace detail
}  // namespace WEFT_ISA
}  // namespace weft::cpu
