// SPDX-License-Identifier: MIT
// Serialisation of standings.
#pragma once

#include <weft/comm/standing.hpp>
#include <weft/comm/store_protocol.hpp>

namespace weft::detail {

void write(frame_writer& to, const rank_wait& w);
rank_wait read_wait(frame_reader& from);

void write(frame_writer& to, const rank_standing& s);
rank_standing read_standing(frame_reader& from);

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/standing_frames.ipp>
#endif
