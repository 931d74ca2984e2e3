// SPDX-License-Identifier: MIT
// Definitions of <weft/io/inflate.hpp>.
#pragma once

#include <algorithm>
#include <cstring>

#include <weft/base/config.hpp>
#include <weft/io/inflate.hpp>

namespace weft {
namespace io {
namespace detail {

WEFT_DEFINE bool prefix_code::assign(const std::uint8_t* lengths, unsigned symbols) {
  std::fill(std::begin(short_), std::end(short_), entry{});
  std::fill(std::begin(counts_), std::end(counts_), std::uint16_t{0});
  for (unsigned s = 0; s < symbols; ++s) ++counts_[lengths[s]];
  const unsigned used = symbols - counts_[0];
  counts_[0] = 0;
  std::uint32_t first[16]{}, place[16]{};  // bit sequence and place of the next symbol, by length
  std::int32_t left = 1;
  for (unsigned n = 1; n < 16; ++n) {
    left = 2 * left - counts_[n];
    if (left < 0) return false;
    first[n] = (first[n - 1] + counts_[n - 1]) << 1;
    place[n] = place[n - 1] + counts_[n - 1];
  }
  if (left > 0 && (used > 1 || used != counts_[1])) return false;
  for (unsigned s = 0; s < symbols; ++s) {
    const unsigned n = lengths[s];
    if (n == 0) continue;
    symbols_[place[n]++] = static_cast<std::uint16_t>(s);
    std::uint32_t reversed = 0;
    for (unsigned i = 0; i < n; ++i) reversed |= (first[n] >> i & 1) << (n - 1 - i);
    ++first[n];
    for (std::uint32_t i = reversed; n <= short_bits && i < short_size; i += 1u << n)
      short_[i] = {static_cast<std::uint16_t>(s), static_cast<std::uint16_t>(n)};
  }
  return true;
}

WEFT_DEFINE prefix_code::entry prefix_code::find_long(std::uint32_t bits) const {
  std::uint32_t code = 0, first = 0, place = 0;
  for (unsigned n = 1; n < 16; ++n) {
    code = code << 1 | (bits >> (n - 1) & 1);
    first <<= 1;
    if (code - first < counts_[n]) return {symbols_[place + code - first], static_cast<std::uint16_t>(n)};
    first += counts_[n];
    place += counts_[n];
  }
  return {};
}

WEFT_DEFINE void inflater::run() {
  for (bool last = false; !last;) {
    last = take(1) != 0;
    switch (take(2)) {
      case 0: copy_stored(); break;
      case 1: set_fixed_codes(), decode_block(); break;
      case 2: read_codes(), decode_block(); break;
      default: fail("unknown kind of block");
    }
  }
  if (made_ != size_) fail("gives fewer bytes than announced");
  if (at_ - count_ / 8 != from_.size()) fail("bytes after its end");
}

WEFT_DEFINE void inflater::copy_stored() {
  drop(count_ % 8);
  const std::uint32_t size = take(16), complement = take(16);
  if ((size ^ complement) != 0xffff) fail("the size of a stored block is malformed");
  at_ -= count_ / 8;
  bits_ = count_ = 0;
  if (size > from_.size() - at_) fail("ends early");
  if (size > size_ - made_) fail("gives more bytes than announced");
  std::copy_n(from_.data() + at_, size, to_ + made_);
  at_ += size, made_ += size;
}

WEFT_DEFINE void inflater::set_fixed_codes() {
  std::uint8_t lengths[288];
  for (unsigned s = 0; s < 288; ++s)
    lengths[s] = static_cast<std::uint8_t>(s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8);
  literals_.assign(lengths, 288);
  std::fill_n(lengths, 32, std::uint8_t{5});
  distances_.assign(lengths, 32);
}

WEFT_DEFINE void inflater::read_codes() {
  constexpr std::uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const unsigned literals = take(5) + 257, distances = take(5) + 1, sizes = take(4) + 4;
  if (literals > 286 || distances > 30) fail("too many symbols");
  std::uint8_t lengths[286 + 30]{};
  for (unsigned i = 0; i < sizes; ++i) lengths[order[i]] = static_cast<std::uint8_t>(take(3));
  prefix_code of_lengths{};
  if (!of_lengths.assign(lengths, 19)) fail("lengths of no code");
  std::fill_n(lengths, 19, std::uint8_t{0});
  for (unsigned i = 0; i < literals + distances;) {
    const unsigned symbol = take(of_lengths);
    if (symbol < 16) {
      lengths[i++] = static_cast<std::uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) fail("repeats a length before the first");
    const std::uint8_t length = symbol == 16 ? lengths[i - 1] : std::uint8_t{0};
    const unsigned count = symbol == 16 ? take(2) + 3 : symbol == 17 ? take(3) + 3 : take(7) + 11;
    if (count > literals + distances - i) fail("too many lengths");
    std::fill_n(lengths + i, count, length);
    i += count;
  }
  if (lengths[256] == 0) fail("a block that does not end");
  if (!literals_.assign(lengths, literals) || !distances_.assign(lengths + literals, distances))
    fail("lengths of no code");
}

WEFT_DEFINE void inflater::decode_block() {
  constexpr std::uint16_t counts[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  constexpr std::uint8_t count_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                         2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  constexpr std::uint16_t distances[] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                         33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                         1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  for (;;) {
    const unsigned symbol = take(literals_);
    if (symbol < 256) {
      if (made_ == size_) fail("gives more bytes than announced");
      to_[made_++] = static_cast<char>(symbol);
      continue;
    }
    if (symbol == 256) return;
    if (symbol > 285) fail("unknown length");
    const std::size_t count = counts[symbol - 257] + take(count_bits[symbol - 257]);
    const unsigned far = take(distances_);
    if (far > 29) fail("unknown distance");
    repeat(distances[far] + take(far < 4 ? 0 : far / 2 - 1), count);
  }
}

WEFT_DEFINE void inflater::repeat(std::size_t distance, std::size_t count) {
  if (distance > made_) fail("repeats bytes before the first");
  if (count > size_ - made_) fail("gives more bytes than announced");
  char* const to = to_ + made_;
  const char* const from = to - distance;
  if (distance >= count) std::memcpy(to, from, count);
  else
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
  made_ += count;
}

}  // namespace detail
}  // namespace io
}  // namespace weft
