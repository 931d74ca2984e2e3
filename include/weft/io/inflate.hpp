// SPDX-License-Identifier: MIT
// Decompression of DEFLATE (RFC 1951), the compression of zip files.
//
// Input is untrusted: it takes 8 KiB of memory beyond the output, and throws if the output's size is not the
// announced one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <weft/base/error.hpp>

namespace weft::io {

/// No stream gives more than this many bytes per byte of input.
inline constexpr std::uint64_t most_inflation = 1032;

namespace detail {

/// A prefix code: shorter bit sequences for more frequent symbols (RFC 1951, 3.2.2).
class prefix_code {
 public:
  /// Sets the code in which symbol `s` takes lengths[s] bits; symbols with length 0 are not used. False if
  /// there is no such code, or if bit sequences are left over and it has more than one symbol.
  bool assign(const std::uint8_t* lengths, unsigned symbols);

  /// The symbol at the beginning of the 15 `bits`, the first one lowest, and its length; length 0 for none.
  struct entry {
    std::uint16_t symbol = 0, length = 0;
  };
  entry find(std::uint32_t bits) const {
    const entry e = short_[bits & (short_size - 1)];
    return e.length ? e : find_long(bits);
  }

 private:
  static constexpr unsigned short_bits = 9, short_size = 1u << short_bits;

  entry find_long(std::uint32_t bits) const;

  entry short_[short_size];     // by the next bits
  std::uint16_t counts_[16];    // symbols by length
  std::uint16_t symbols_[288];  // in the order of their bit sequences
};

class inflater {
 public:
  inflater(std::string_view from, char* to, std::size_t size, const std::string& what)
      : from_(from), to_(to), size_(size), what_(what) {}

  void run();

 private:
  [[noreturn]] void fail(const char* why) const {
    refuse<io_error>({"weft: ", what_, ": DEFLATE at byte ", at_, ": ", why});
  }

  /// Makes `bits_` hold 15 bits or more, with zeros beyond the end.
  void refill() {
    while (count_ <= 56 && at_ < from_.size()) {
      bits_ |= static_cast<std::uint64_t>(static_cast<unsigned char>(from_[at_++])) << count_;
      count_ += 8;
    }
  }
  void drop(unsigned count) {
    if (count > count_) fail("ends early");
    bits_ >>= count;
    count_ -= count;
  }
  std::uint32_t take(unsigned count) {
    refill();
    const auto bits = static_cast<std::uint32_t>(bits_ & ((std::uint64_t{1} << count) - 1));
    drop(count);
    return bits;
  }
  unsigned take(const prefix_code& code) {
    refill();
    const prefix_code::entry e = code.find(static_cast<std::uint32_t>(bits_ & 0x7fff));
    if (e.length == 0) fail("bits without a meaning");
    drop(e.length);
    return e.symbol;
  }

  void copy_stored();
  void set_fixed_codes();
  void read_codes();
  void decode_block();
  void repeat(std::size_t distance, std::size_t count);

  std::string_view from_;
  char* to_;
  std::size_t size_;
  const std::string& what_;
  std::size_t at_ = 0, made_ = 0;
  std::uint64_t bits_ = 0;
  unsigned count_ = 0;
  prefix_code literals_{}, distances_{};
};

}  // namespace detail

/// Decompresses `from` to the `size` bytes at `to`. Throws io_error, with `what` as its name, if `from` is
/// not valid, gives more or fewer bytes, or has bytes after its end.
inline void inflate(std::string_view from, char* to, std::size_t size, const std::string& what) {
  detail::inflater(from, to, size, what).run();
}

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/inflate.ipp>
#endif
