// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/schedule/timeline.hpp>.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/parallel/schedule/timeline.hpp>

namespace weft {
namespace pipeline {
namespace detail {

WEFT_DEFINE std::string timeline_writer::write() {
  open();
  for (int stage = 0; stage < stages_; ++stage) row(stage);
  if (options_.messages) messages();
  for (const record& r : records_)
    if (!is_message(r.kind))
      box(r, x(r.start), y(r.stage), (r.end - r.start) * scale_, r.chunk > first_chunk_.at(r.stage));
  axis();
  legend();
  return std::move(svg_) + "</svg>\n";
}

WEFT_DEFINE void timeline_writer::measure() {
  std::vector<double> lengths;
  for (const record& r : records_) {
    const bool fits = r.stage >= 0 && r.stage < 4096 && r.chunk >= 0 && r.micro_batch >= 0;
    if (!fits || !std::isfinite(r.start) || !std::isfinite(r.end) || r.end < r.start)
      throw value_error("timeline_svg: a record of stage " + std::to_string(r.stage) + " (" +
                        to_text({r.kind, r.chunk, r.micro_batch}) +
                        ") has times or numbers that make no sense");
    begin_ = records_.data() == &r ? r.start : std::min(begin_, r.start);
    end_ = records_.data() == &r ? r.end : std::max(end_, r.end);
    stages_ = std::max(stages_, r.stage + 1);
    if (is_message(r.kind)) continue;
    lengths.push_back(r.end - r.start);
    const auto [first, is_new] = first_chunk_.try_emplace(r.stage, r.chunk);
    has_later_chunks_ = has_later_chunks_ || first->second != r.chunk;
    first->second = std::min(first->second, r.chunk);
  }
  std::sort(lengths.begin(), lengths.end());
  const double usual = lengths.empty() ? 0 : lengths[lengths.size() / 10];
  const double span = end_ - begin_;
  width_ = usual > 0 ? std::clamp(span / usual * 13, 660.0, 3600.0) : 660;
  scale_ = span > 0 ? width_ / span : 0;
}

WEFT_DEFINE std::string timeline_writer::number(double v) {
  std::string s = weft::detail::fixed(v, 1);
  if (s.ends_with(".0")) s.resize(s.size() - 2);
  return s == "-0" ? "0" : s;
}

WEFT_DEFINE std::string timeline_writer::escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ') out += c;
  return out;
}

WEFT_DEFINE void timeline_writer::open() {
  const std::string w = number(left + width_ + right), h = number(height());
  svg_ = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 " + w + ' ' + h + "' width='" + w +
         "' height='" + h + "' font-family='sans-serif' font-size='11'>\n<style>" + style() +
         "</style>\n<defs>" + patterns() + "</defs>\n<rect class='page' width='100%' height='100%'/>\n";
  svg_ += "<text class='ink' x='8' y='20' font-size='14'>" + escaped(options_.title) + "</text>\n";
}

WEFT_DEFINE std::string timeline_writer::style() {
  std::string css =
      ".page{fill:#fff}.ink{fill:#222}.idle{fill:url(#i)}.axis{stroke:#888}.dots{fill:#bbb}"
      ".mail{stroke:#555;stroke-width:.8;stroke-opacity:.45;fill:none}.back{stroke-dasharray:3 2}"
      ".n{text-anchor:middle;font-size:9px;fill:#111}.d{fill:#fff}.w{fill:url(#w)}"
      ".late{stroke:#222;stroke-width:1.2}";
  css += shades("", {82, 36, 62, 74});
  css +=
      "@media(prefers-color-scheme:dark){.page{fill:#16181d}.ink{fill:#ddd}.dots{fill:#444}"
      ".mail{stroke:#ccc}.late{stroke:#eee}}";
  return css;
}

WEFT_DEFINE std::string timeline_writer::shades(const std::string& prefix, const int (&lightness)[4]) {
  std::string css;
  for (int h = 0; h < hues; ++h)
    for (int k = 0; k < 4; ++k)
      css += prefix + "." + "fbiw"[k] + std::to_string(h) +
             "{fill:" + colour(h * 360.0 / hues + 210, lightness[k]) + "}";
  return css;
}

WEFT_DEFINE std::string timeline_writer::colour(double hue, int lightness) {
  const double l = lightness / 100.0, a = 0.6 * std::min(l, 1 - l);
  const auto channel = [&](double n) {
    const double k = std::fmod(n + hue / 30, 12);
    return static_cast<int>(std::lround(255 * (l - a * std::max(-1.0, std::min({k - 3, 9 - k, 1.0})))));
  };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", channel(0) & 255, channel(8) & 255, channel(4) & 255);
  return text;
}

WEFT_DEFINE std::string timeline_writer::patterns() {
  return "<pattern id='i' width='6' height='6' patternUnits='userSpaceOnUse'><circle class='dots' cx='3' "
         "cy='3' "
         "r='.9'/></pattern><pattern id='w' width='5' height='5' patternUnits='userSpaceOnUse'>"
         "<path d='M0 5L5 0' stroke='#222' stroke-width='.7' stroke-opacity='.6'/></pattern>";
}

WEFT_DEFINE void timeline_writer::rect(const std::string& classes, double x0, double y0, double w, double h) {
  svg_ += "<rect class='" + classes + "' x='" + number(x0) + "' y='" + number(y0) + "' width='" + number(w) +
          "' height='" + number(h) + "'/>";
}

WEFT_DEFINE void timeline_writer::text(const std::string& classes, double x0, double y0,
                                       const std::string& what) {
  svg_ += "<text class='" + classes + "' x='" + number(x0) + "' y='" + number(y0) + "'>" + what + "</text>";
}

WEFT_DEFINE void timeline_writer::row(int stage) {
  text("ink", 8, y(stage) + 17, "stage " + std::to_string(stage));
  rect("idle", left, y(stage), width_, row_height);
  svg_ += '\n';
}

WEFT_DEFINE char timeline_writer::letter(step_kind k) {
  return k == step_kind::forward          ? 'f'
         : k == step_kind::backward       ? 'b'
         : k == step_kind::backward_input ? 'i'
                                          : 'w';
}

WEFT_DEFINE void timeline_writer::box(const record& r, double x0, double y0, double w, bool is_later_chunk) {
  rect(letter(r.kind) + std::to_string(r.micro_batch % hues), x0, y0, std::max(w - 0.6, 0.4), row_height);
  if (r.kind == step_kind::backward_weight) rect("w", x0, y0, std::max(w - 0.6, 0.4), row_height);
  if (is_later_chunk)
    svg_ += "<path class='late' d='M" + number(x0) + ' ' + number(y0 + 1) + 'h' +
            number(std::max(w - 0.6, 0.4)) + "'/>";
  const std::string label = std::to_string(r.micro_batch);
  if (w >= 5.5 * static_cast<double>(label.size()))
    text(r.kind == step_kind::backward ? "n d" : "n", x0 + w / 2, y0 + 17, label);
  svg_ += '\n';
}

WEFT_DEFINE void timeline_writer::messages() {
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

WEFT_DEFINE timeline_writer::message_key timeline_writer::key(const record& r) {
  const bool gradient = r.kind == step_kind::send_gradient || r.kind == step_kind::receive_gradient;
  const bool upper = r.kind == step_kind::receive_activation || r.kind == step_kind::send_gradient;
  return {gradient, upper ? r.chunk - 1 : r.chunk, r.micro_batch, !is_send(r.kind)};
}

WEFT_DEFINE void timeline_writer::axis() {
  const double base = y(stages_) + 2, span = (end_ - begin_) * options_.time_scale;
  svg_ += "<path class='axis' d='M" + number(left) + ' ' + number(base) + 'h' + number(width_) + "'/>";
  if (span > 0) {
    const double digit = std::pow(10, std::floor(std::log10(span / 8)));
    const double tick = digit * (span / 8 / digit > 5   ? 10
                                 : span / 8 / digit > 2 ? 5
                                 : span / 8 / digit > 1 ? 2
                                                        : 1);
    for (int i = 0; tick > 0 && i * tick <= span * (1 + 1e-9); ++i) {
      text("ink", left + i * tick * scale_ / options_.time_scale, base + 13, weft::detail::general(i * tick));
    }
  }
  text("ink", 8, base + 13, options_.unit.empty() ? "time" : "time, " + escaped(options_.unit));
  svg_ += '\n';
}

WEFT_DEFINE void timeline_writer::legend() {
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
  if (has_later_chunks_) text("ink", x0 + 70, y0 + 17, "line above: a later chunk");
  svg_ += '\n';
}

}  // namespace detail
}  // namespace pipeline
}  // namespace weft
