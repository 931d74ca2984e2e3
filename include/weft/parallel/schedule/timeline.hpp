// SPDX-License-Identifier: MIT
// Timelines of schedules as SVG images, from simulated or measured records.
//
//   const auto r = pipeline::simulate(s);
//   std::ofstream("timeline.svg") << pipeline::timeline_svg(r.records, {.title = "1F1B"});
#pragma once

#include <map>
#include <span>

#include <weft/parallel/schedule/simulate.hpp>

namespace weft::pipeline {

/// Options of `timeline_svg()`.
struct timeline_options {
  std::string title{};
  std::string unit{};       // of times, printed at the axis: "ms"
  double time_scale = 1;    // times are multiplied by this for the axis: 1e3 for seconds in ms
  bool messages = true;     // draw messages; without them, files are half as large
};

namespace detail {
/// Draws the rows of boxes. All CSS classes have colours for light and dark backgrounds.
class timeline_writer {
 public:
  timeline_writer(std::span<const record> records, const timeline_options& options)
      : records_(records), options_(options) {
    measure();
  }

  std::string write();

 private:
  static constexpr double left = 62, top = 34, row_height = 26, row_gap = 8, right = 14, bottom = 62;

  /// Determines the range of times and stages, and a scale at which the shortest common step has room for its
  /// number.
  void measure();

  double x(double time) const { return left + (time - begin_) * scale_; }
  static double y(int stage) { return top + stage * (row_height + row_gap); }
  double height() const { return y(stages_) + bottom; }

  /// With at most one decimal, since a file contains thousands of numbers.
  static std::string number(double v);
  static std::string escaped(const std::string& text);

  void open();
  /// Hues of micro-batches repeat after `hues`. Kinds differ in lightness, and weight parts are also hatched.
  static constexpr int hues = 8;
  static std::string style();
  /// The CSS classes f0, b0, i0, w0, f1, ...: `lightness` in percent, by kind.
  static std::string shades(const std::string& prefix, const int (&lightness)[4]);
  /// #rrggbb of a hue in degrees at 60% saturation, a notation that every viewer supports.
  static std::string colour(double hue, int lightness);
  static std::string patterns();

  void rect(const std::string& classes, double x0, double y0, double w, double h);
  void text(const std::string& classes, double x0, double y0, const std::string& what);

  void row(int stage);
  static char letter(step_kind k);
  /// The box of a step, with a line at its top if its chunk is not the first of its stage.
  void box(const record& r, double x0, double y0, double w, bool is_later_chunk = false);

  /// Draws a line from each send to its receive.
  void messages();
  struct message_key {
    bool is_gradient;
    int boundary, micro_batch;
    bool is_receive;
    auto operator<=>(const message_key&) const = default;
  };
  /// A boundary is identified by the chunk before it.
  static message_key key(const record& r);
  static bool is_same_message(const record& a, const record& b) {
    message_key k = key(a);
    k.is_receive = true;
    return k == key(b);
  }

  void axis();

  void legend();

  std::span<const record> records_;
  const timeline_options& options_;
  double begin_ = 0, end_ = 0, width_ = 0, scale_ = 0;
  int stages_ = 0;
  std::map<int, int> first_chunk_{};  // of each stage that computes
  bool has_later_chunks_ = false;
  std::string svg_{};
};
}  // namespace detail

/// Returns an SVG image with a row for each stage and a box for each step, numbered and coloured by
/// micro-batch: forward steps are light, backward steps dark, weight parts hatched, idle time dotted;
/// messages are lines, dashed for gradients. Follows the reader's light or dark theme. Records may be in any
/// order; a message needs both its send and its receive. Throws value_error for times that are not finite or
/// end before they start. Cost: n log n in the number of records, about 200 bytes each.
inline std::string timeline_svg(std::span<const record> records, const timeline_options& options = {}) {
  return detail::timeline_writer(records, options).write();
}

}  // namespace weft::pipeline

#ifndef WEFT_COMPILED
#include <weft/parallel/schedule/impl/timeline.ipp>
#endif
