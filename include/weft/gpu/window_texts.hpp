// SPDX-License-Identifier: MIT
// The texts of native ops on windows: op/convolution.hpp, op/depthwise.hpp. device/native.hpp explains their
// vocabulary.
#pragma once

namespace weft::gpu {

/// Each item is an element of the result.
inline constexpr const char* fold_windows_text = R"(
    int order = in0_order;
    long width = out0_extent(order - 3), x = item % width, y = item / width % out0_extent(order - 4);
    long plane = item / width / out0_extent(order - 4), at = 0;
    for (int d = order - 4; d-- > 0;) {
      at += plane % in0_extent(d) * in0_stride(d);
      plane /= in0_extent(d);
    }
    long down = attribute(2) >> 32, across = attribute(2) & 0xffffffff;
    long inner_down = attribute(3) >> 32, inner_across = attribute(3) & 0xffffffff;
    out0_t sum = out0_adds ? out0_load(item) : (out0_t)0;
    for (long k = 0; k < in0_extent(order - 2); ++k) {
      long i = y + (attribute(4) >> 32) - k * inner_down;
      if (i < 0 || i % down || i / down >= in0_extent(order - 4)) continue;
      for (long l = 0; l < in0_extent(order - 1); ++l) {
        long j = x + (attribute(4) & 0xffffffff) - l * inner_across;
        if (j < 0 || j % across || j / across >= in0_extent(order - 3)) continue;
        sum += in0_load(at + i / down * in0_stride(order - 4) + j / across * in0_stride(order - 3) +
                        k * in0_stride(order - 2) + l * in0_stride(order - 1));
      }
    }
    out0_store(item, sum);)";

/// Each item is a window.
inline constexpr const char* arg_window_max_text = R"(
    int order = in0_order;
    long columns = out0_extent(order - 1), rows = out0_extent(order - 2);
    long plane = item / columns / rows, at = 0, height = in0_extent(order - 2), width = in0_extent(order - 1);
    for (int d = order - 2; d-- > 0;) {
      at += plane % in0_extent(d) * in0_stride(d);
      plane /= in0_extent(d);
    }
    long top = item / columns % rows * (attribute(1) >> 32) - (attribute(2) >> 32);
    long left = item % columns * (attribute(1) & 0xffffffff) - (attribute(2) & 0xffffffff);
    long bottom = top + (attribute(0) >> 32), right = left + (attribute(0) & 0xffffffff);
    if (top < 0) top = 0;
    if (left < 0) left = 0;
    if (bottom > height) bottom = height;
    if (right > width) right = width;
    long best = top * width + left;
    in0_t largest = in0_load(at + top * in0_stride(order - 2) + left * in0_stride(order - 1));
    for (long i = top; i < bottom; ++i)
      for (long j = left; j < right; ++j) {
        in0_t x = in0_load(at + i * in0_stride(order - 2) + j * in0_stride(order - 1));
        if (!(x > largest) && (x == x || largest != largest)) continue;
        best = i * width + j;
        largest = x;
      }
    out0_store(item, best);)";

/// Each item is an element of the result.
inline constexpr const char* depthwise_conv2d_text = R"(
    long width = out0_extent(3), j = item % width, i = item / width % out0_extent(2);
    long channel = item / width / out0_extent(2) % out0_extent(1);
    long image = item / width / out0_extent(2) / out0_extent(1);
    long from = image * in0_stride(0) + channel * in0_stride(1), weight = channel * in1_stride(0);
    long top = i * (attribute(0) >> 32) - (attribute(2) >> 32);
    long left = j * (attribute(0) & 0xffffffff) - (attribute(2) & 0xffffffff);
    out0_t sum = 0;
    for (long k = 0; k < in1_extent(1); ++k) {
      long y = top + k * (attribute(1) >> 32);
      if (y < 0 || y >= in0_extent(2)) continue;
      for (long l = 0; l < in1_extent(2); ++l) {
        long x = left + l * (attribute(1) & 0xffffffff);
        if (x < 0 || x >= in0_extent(3)) continue;
        sum += in0_load(from + y * in0_stride(2) + x * in0_stride(3)) *
               in1_load(weight + k * in1_stride(1) + l * in1_stride(2));
      }
    }
    out0_store(item, out0_adds ? out0_load(item) + sum : sum);)";

/// Each task is an element of the result, which a group sums.
inline constexpr const char* depthwise_weight_gradient_text = R"(
NATIVE_KERNEL {
  SHARED_MEMORY out0_t sums[GROUP_SIZE];
  long rows = in1_extent(2), columns = in1_extent(3), pixels = rows * columns;
  for (long task = GROUP_ID; task < tasks; task += GROUPS) {
    long l = task % out0_extent(2), k = task / out0_extent(2) % out0_extent(1);
    long channel = task / out0_extent(2) / out0_extent(1);
    out0_t sum = 0;
    for (long p = LOCAL_ID; p < in0_extent(0) * pixels; p += GROUP_SIZE) {
      long j = p % columns, i = p / columns % rows, image = p / pixels;
      long y = i * (attribute(0) >> 32) + k * (attribute(1) >> 32) - (attribute(2) >> 32);
      long x = j * (attribute(0) & 0xffffffff) + l * (attribute(1) & 0xffffffff);
      x -= attribute(2) & 0xffffffff;
      if (y < 0 || y >= in0_extent(2) || x < 0 || x >= in0_extent(3)) continue;
      long from = image * in0_stride(0) + channel * in0_stride(1);
      long gradient = image * in1_stride(0) + channel * in1_stride(1);
      sum += in0_load(from + y * in0_stride(2) + x * in0_stride(3)) *
             in1_load(gradient + i * in1_stride(2) + j * in1_stride(3));
    }
    sums[LOCAL_ID] = sum;
    BARRIER;
    for (int apart = GROUP_SIZE / 2; apart > 0; apart /= 2) {
      if (LOCAL_ID < apart) sums[LOCAL_ID] += sums[LOCAL_ID + apart];
      BARRIER;
    }
    if (LOCAL_ID == 0) out0_store(task, out0_adds ? out0_load(task) + sums[0] : sums[0]);
    BARRIER;
  }
}
)";

}  // namespace weft::gpu
