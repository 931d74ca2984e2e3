// SPDX-License-Identifier: MIT
// Timelines of schedules as SVG images, from simulated or measured records.
//
//   const auto r = pipeline::simulate(s);
//   std::ofstream("timeline.svg") << pipeline::timeline_svg(r.records, {.title = "1F1B"});
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
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

  std::string write() {
    open();
    for (int stage = 0; stage < stages_; ++stage) row(stage);
    if (options_.messages) messages();
    for (const record& r : records_)
      if (!is_message(r.kind)) box(r);
    axis();
    legend();
    return std::move(svg_) + "</svg>\n";
  }

 private:
  static constexpr double left = 62, top = 34, row_height = 26, row_gap = 8, right = 14, bottom = 62;

  /// Determines the range of times and stages, and a scale at which the shortest common step has room for its
  /// number.
  void measure() {
    std::vector<double> lengths;
    for (const record& r : records_) {
      const bool fits = r.stage >= 0 && r.stage < 4096 && r.chunk >= 0 && r.micro_batch >= 0;
      if (!fits || !std::isfinite(r.start) || !std::isfinite(r.end) || r.end < r.start)
        throw value_error("timeline_svg: a record of stage " + std::to_string(r.stage) + " (" + to_text({
            r.kind, r.chunk, r.micro_batch}) + ") has times or numbers that make no sense");
      begin_ = records_.data() == &r ? r.start : std::min(begin_, r.start);
      end_ = records_.data() == &r ? r.end : std::max(end_, r.end);
      stages_ = std::max(stages_, r.stage + 1);
      chunks_ = std::max(chunks_, r.chunk + 1);
      if (!is_message(r.kind)) lengths.push_back(r.end - r.start);
    }
    std::sort(lengths.begin(), lengths.end());
    const double usual = lengths.empty() ? 0 : lengths[lengths.size() / 10];
    const double span = end_ - begin_;
    width_ = usual > 0 ? std::clamp(span / usual * 13, 660.0, 3600.0) : 660;
    scale_ = span > 0 ? width_ / span : 0;
  }

  double x(double time) const { return left + (time - begin_) * scale_; }
  static double y(int stage) { return top + stage * (row_height + row_gap); }
  double height() const { return y(stages_) + bottom; }

  /// With at most one decimal, since a file contains thousands of numbers.
  static std::string number(double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", v);
    std::string s = text;
    if (s.ends_with(".0")) s.resize(s.size() - 2);
    return s == "-0" ? "0" : s;
  }
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
      if (c == '<') out += "&lt;";
      else if (c == '&') out += "&amp;";
      else if (static_cast<unsigned char>(c) >= ' ') out += c;
    return out;
  }

  void open() {
    const std::string w = number(left + width_ + right), h = number(height());
    svg_ = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + w + ' ' + h + "' width='" + w +
           "' height='" + h + "' font-family='sans-serif' font-size='11'>\n<style>" + style() +
           "</style>\n<defs>" + patterns() + "</defs>\n<rect class='page' width='100%' height='100%'/>\n";
    svg_ += "<text class='ink' x='8' y='20' font-size='14'>" + escaped(options_.title) + "</text>\n";
  }
  /// Hues of micro-batches repeat after `hues`. Kinds differ in lightness, and weight parts are also hatched.
  static constexpr int hues = 8;
  static std::string style() {
    std::string css =
        ".page{fill:#fff}.ink{fill:#222}.idle{fill:url(#i)}.axis{stroke:#888}.dots{fill:#bbb}"
        ".mail{stroke:#555;stroke-width:.8;stroke-opacity:.45;fill:none}.back{stroke-dasharray:3 2}"
        ".n{text-anchor:middle;font-size:9px;fill:#111}.d{fill:#fff}.w{fill:url(#w)}"
        ".late{stroke:#222;stroke-width:1.2}";
    css += shades("", {82, 36, 62, 74});
    css += "@media(prefers-color-scheme:dark){.page{fill:#16181d}.ink{fill:#ddd}.dots{fill:#444}"
           ".mail{stroke:#ccc}.late{stroke:#eee}}";
    return css;
  }
  /// The CSS classes f0, b0, i0, w0, f1, ...: `lightness` in percent, by kind.
  static std::string shades(const std::string& prefix, const int (&lightness)[4]) {
    std::string css;
    for (int h = 0; h < hues; ++h)
      for (int k = 0; k < 4; ++k)
        css += prefix + "." + "fbiw"[k] + std::to_string(h) +
               "{fill:" + colour(h * 360.0 / hues + 210, lightness[k]) + "}";
    return css;
  }
  /// #rrggbb of a hue in degrees at 60% saturation, a notation that every viewer supports.
  static std::string colour(double hue, int lightness) {
    const double l = lightness / 100.0, a = 0.6 * std::min(l, 1 - l);
    const auto channel = [&](double n) {
      const double k = std::fmod(n + hue / 30, 12);
      return static_cast<int>(std::lround(255 * (l - a * std::max(-1.0, std::min({k - 3, 9 - k, 1.0})))));
    };
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", channel(0) & 255, channel(8) & 255, channel(4) & 255);
    return text;
  }
  static std::string patterns() {
    return "<pattern id='i' width='6' height='6' patternUnits='userSpaceOnUse'><circle class='dots' cx='3' "
           "cy='3' "
           "r='.9'/></pattern><pattern id='w' width='5' height='5' patternUnits='userSpaceOnUse'>"
           "<path d='M0 5L5 0' stroke='#222' stroke-width='.7' stroke-opacity='.6'/></pattern>";
  }

  void rect(const std::string& classes, double x0, double y0, double w, double h) {
    svg_ += "<rect class='" + classes + "' x='" + number(x0) + "' y='" + number(y0) + "' width='" +
            number(w) + "' height='" + number(h) + "'/>";
  }
  void text(const std::string& classes, double x0, double y0, const std::string& what) {
    svg_ += "<text class='" + classes + "' x='" + number(x0) + "' y='" + number(y0) + "'>" + what + "</text>";
  }

  void row(int stage) {
    text("ink", 8, y(stage) + 17, "stage " + std::to_string(stage));
    rect("idle", left, y(stage), width_, row_height);
    svg_ += '\n';
  }
  static char letter(step_kind k) {
    return k == step_kind::forward          ? 'f'
           : k == step_kind::backward       ? 'b'
           : k == step_kind::backward_input ? 'i'
                                            : 'w';
  }
  void box(const record& r) { box(r, x(r.start), y(r.stage), (r.end - r.start) * scale_); }
  /// Boxes of chunks after the first on a stage have a line at their top.
  void box(const record& r, double x0, double y0, double w) {
    rect(letter(r.kind) + std::to_string(r.micro_batch % hues), x0, y0, std::max(w - 0.6, 0.4), row_height);
    if (r.kind == step_kind::backward_weight) rect("w", x0, y0, std::max(w - 0.6, 0.4), row_height);
    if (chunks_ > stages_ && r.chunk >= stages_)
      svg_ += "<path class='late' d='M" + number(x0) + ' ' + number(y0 + 1) + 'h' +
              number(std::max(w - 0.6, 0.4)) + "'/>";
    const std::string label = std::to_string(r.micro_batch);
    if (w >= 5.5 * static_cast<double>(label.size()))
      text(r.kind == step_kind::backward ? "n d" : "n", x0 + w / 2, y0 + 17, label);
    svg_ += '\n';
  }

  /// Draws a line from each send to its receive.
  void messages() {
    const auto sent_first = [](const record& a, const record& b) { return key(a) < key(b); };
    std::vector<record> ends;
    for (const record& r : records_)
      if (is_message(r.kind)) ends.push_back(r);
    std::sort(ends.begin(), ends.end(), sent_first);
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const record &from = ends[i - 1], &to = ends[i];
      if (!is_send(from.kind) || is_send(to.kind) || !is_same_message(from, to)) continue;
      const bool down = to.stage > from.stage;
      svg_ += std::string("<path class='mail") + (from.kind == step_kind::send_gradient ? " back" : "") +
              "' d='M" + number(x(from.start)) + ' ' + number(y(from.stage) + (down ? row_height : 0)) + 'L' +
              number(x(to.end)) + ' ' + number(y(to.stage) + (down ? 0 : row_height)) + "'/>\n";
    }
  }
  struct message_key {
    bool is_gradient;
    int boundary, micro_batch;
    bool is_receive;
    auto operator<=>(const message_key&) const = default;
  };
  /// A boundary is identified by the chunk before it.
  static message_key key(const record& r) {
    const bool gradient = r.kind == step_kind::send_gradient || r.kind == step_kind::receive_gradient;
    const bool upper = r.kind == step_kind::receive_activation || r.kind == step_kind::send_gradient;
    return {gradient, upper ? r.chunk - 1 : r.chunk, r.micro_batch, !is_send(r.kind)};
  }
  static bool is_same_message(const record& a, const record& b) {
    message_key k = key(a);
    k.is_receive = true;
    return k == key(b);
  }

  void axis() {
    const double base = y(stages_) + 2, span = (end_ - begin_) * options_.time_scale;
    svg_ += "<path class='axis' d='M" + number(left) + ' ' + number(base) + 'h' + number(width_) + "'/>";
    if (span > 0) {
      const double digit = std::pow(10, std::floor(std::log10(span / 8)));
      const double tick = digit * (span / 8 / digit > 5   ? 10
                                   : span / 8 / digit > 2 ? 5
                                   : span / 8 / digit > 1 ? 2
                                                          : 1);
      for (int i = 0; i * tick <= span * (1 + 1e-9); ++i) {
        char label[32];
        std::snprintf(label, sizeof label, "%g", i * tick);
        text("ink", left + i * tick * scale_ / options_.time_scale, base + 13, label);
      }
    }
    text("ink", 8, base + 13, options_.unit.empty() ? "time" : "time, " + escaped(options_.unit));
    svg_ += '\n';
  }

  void legend() {
    const double y0 = y(stages_) + 28;
    double x0 = left;
    const auto entry = [&](step_kind kind, const std::string& what) {
      record r{.kind = kind};
      box(r, x0, y0, 26);
      text("ink", x0 + 32, y0 + 17, what);
      x0 += 46 + 6.5 * static_cast<double>(what.size());
    };
    const auto has = [&](step_kind k) {
      return std::any_of(records_.begin(), records_.end(), [&](const record& r) { return r.kind == k; });
    };
    entry(step_kind::forward, "forward");
    if (has(step_kind::backward)) entry(step_kind::backward, "backward");
    if (has(step_kind::backward_input)) entry(step_kind::backward_input, "of the input");
    if (has(step_kind::backward_weight)) entry(step_kind::backward_weight, "of the parameters");
    rect("idle", x0, y0, 26, row_height);
    text("ink", x0 + 32, y0 + 17, "idle");
    if (chunks_ > stages_) text("ink", x0 + 70, y0 + 17, "line above: a later chunk");
    svg_ += '\n';
  }

  std::span<const record> records_;
  const timeline_options& options_;
  double begin_ = 0, end_ = 0, width_ = 0, scale_ = 0;
  int stages_ = 0, chunks_ = 0;
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
