// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/standing_frames.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/standing_frames.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE void write(frame_writer& to, const rank_wait& w) {
  to.text(w.group).number(w.number).number(static_cast<std::int64_t>(w.members.size()));
  for (const int m : w.members) to.number(m);
  to.text(w.doing);
}

WEFT_DEFINE rank_wait read_wait(frame_reader& from) {
  rank_wait w{from.text(), from.number(), {}, {}};
  for (std::int64_t n = from.number(); n > 0 && from.good(); --n)
    w.members.push_back(static_cast<int>(from.number()));
  w.doing = from.text();
  return w;
}

WEFT_DEFINE void write(frame_writer& to, const rank_standing& s) {
  to.number(static_cast<std::int64_t>(s.posted.size()));
  for (const auto& [group, count] : s.posted) to.text(group).number(count);
  to.byte(s.waits.has_value());
  if (s.waits) write(to, *s.waits);
  to.text(s.last);
}

WEFT_DEFINE rank_standing read_standing(frame_reader& from) {
  rank_standing s;
  for (std::int64_t n = from.number(); n > 0 && from.good(); --n) {
    const std::string group = from.text();
    s.posted[group] = from.number();
  }
  if (from.byte()) s.waits = read_wait(from);
  s.last = from.text();
  return s;
}

}  // namespace detail
}  // namespace weft
