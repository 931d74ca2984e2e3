// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <weft/io/inflate.hpp>
#include <weft/io/zip.hpp>

#include "../../memory_file.hpp"
#include "../../numbers.hpp"

using namespace weft;
using namespace std::string_literals;

namespace {

/// Writes the bits of a DEFLATE stream as in RFC 1951: numbers from the lowest bit on, codes from the
/// highest.
struct bit_writer {
  std::string bytes{};
  unsigned count = 0;

  bit_writer& bit(unsigned b) {
    if (count++ % 8 == 0) bytes += '\0';
    bytes.back() = static_cast<char>(bytes.back() | static_cast<int>(b << (count - 1) % 8));
    return *this;
  }
  bit_writer& number(unsigned n, unsigned bits) {
    for (unsigned i = 0; i < bits; ++i) bit(n >> i & 1);
    return *this;
  }
  bit_writer& code(std::string_view bits) {
    for (const char c : bits) bit(c == '1');
    return *this;
  }
  bit_writer& align() {
    while (count % 8) bit(0);
    return *this;
  }
  bit_writer& raw(std::string_view more) {
    bytes += more;
    count += 8 * static_cast<unsigned>(more.size());
    return *this;
  }
};

std::string inflated(const std::string& from, std::size_t size) {
  std::string to(size, '?');
  io::inflate(from, to.data(), size, "test");
  return to;
}
void check_refused(const std::string& from, std::size_t size, const std::string& words) {
  CAPTURE(words);
  CHECK_THROWS_WITH_AS(inflated(from, size), doctest::Contains(words.c_str()), io_error);
}

void check_zip_refused(const std::string& bytes, const std::string& words) {
  const memory_file file;
  file.write(bytes);
  CAPTURE(words);
  CHECK_THROWS_WITH_AS(
      [&] {
        const io::zip_file zip(file.path());
        for (const auto& [name, m] : zip.members()) zip.read(m);
      }(),
      doctest::Contains(words.c_str()), io_error);
}

std::string little(std::uint64_t n, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += static_cast<char>(n >> 8 * i);
  return s;
}

}  // namespace

TEST_CASE("crc32: values of the standard, and of any pieces") {
  CHECK(crc32("") == 0);
  CHECK(crc32("123456789") == 0xcbf43926);
  CHECK(crc32(std::string(32, '\xff')) == 0xff6cab0b);
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(37 * i);
  for (std::size_t i = 0; i <= text.size(); ++i)
    CHECK(crc32(std::string_view(text).substr(i), crc32(text.substr(0, i))) == crc32(text));
}

TEST_CASE("inflate: blocks bit by bit") {
  using bits = bit_writer;
  const auto stored = [](unsigned last, const std::string& text) {
    return bits{}
        .number(last, 1)
        .number(0, 2)
        .align()
        .raw(little(text.size(), 2) + little(~text.size(), 2) + text)
        .bytes;
  };
  CHECK(inflated(stored(1, "weft"), 4) == "weft");
  CHECK(inflated(stored(0, "we") + stored(0, "") + stored(1, "ft"), 4) == "weft");
  // Fixed codes: 'a' is 0x30 + 97 in 8 bits, 200 is 0x190 + 56 in 9 bits, lengths 3 to 114 have 7 bits.
  const auto fixed = [] { return bits{}.number(1, 1).number(1, 2); };
  CHECK(inflated(fixed().code("10010001").code("111001000").code("0000000").bytes, 2) == "a\xc8");
  // 'a', then four bytes at distance 1: code 258 = 0000010, distance code 0 = 00000.
  CHECK(inflated(fixed().code("10010001").code("0000010").code("00000").code("0000000").bytes, 5) == "aaaaa");
  // 'a' 'b', then three from two before; then 11 + 1 bytes (265 with an extra bit) from 5 before (4, an extra
  // bit of 0).
  CHECK(inflated(fixed()
                     .code("10010001")
                     .code("10010010")
                     .code("0000001")
                     .code("00001")
                     .code("0001001")
                     .number(1, 1)
                     .code("00100")
                     .number(0, 1)
                     .code("0000000")
                     .bytes,
                 17) == "ababaababaababaab");
  // 'a' and 258 bytes: code 285, 11000101.
  CHECK(inflated(fixed().code("10010001").code("11000101").code("00000").code("0000000").bytes, 259) ==
        std::string(259, 'a'));
  // A block with dynamic codes: 'a' is 0, the end 1, and the only distance 0. Lengths: 97 zeros, 1, 158
  // zeros, 1; 1.
  const auto own = [](unsigned last, const std::string& one = "0") {
    // The code of the lengths: 1 is 0; 18, which repeats zeros, is 1.
    return bits{}
        .number(last, 1)
        .number(2, 2)
        .number(0, 5)
        .number(0, 5)
        .number(14, 4)
        .number(0, 6)
        .number(1, 3)
        .number(0, 21)
        .number(0, 21)
        .number(1, 3)
        .code("1")
        .number(97 - 11, 7)
        .code("0")
        .code("1")
        .number(138 - 11, 7)
        .code("1")
        .number(20 - 11, 7)
        .code("0")
        .code("0")
        .code(one);
  };
  CHECK(inflated(own(1).code("1").bytes, 1) == "a");
  CHECK(inflated(own(1, "").code("1").bytes, 0).empty());

  check_refused("", 0, "ends early");
  check_refused(bits{}.number(1, 1).number(3, 2).bytes, 0, "unknown kind of block");
  check_refused(stored(0, "weft"), 4, "ends early");
  check_refused(stored(1, "weft").substr(0, 8), 4, "ends early");
  check_refused(stored(1, "weft"), 3, "more bytes than announced");
  check_refused(stored(1, "weft"), 5, "fewer bytes than announced");
  check_refused(stored(1, "weft") + "x", 4, "bytes after its end");
  check_refused(bits{}.number(1, 1).number(0, 2).align().raw("\1\1\1\1x").bytes, 1,
                "stored block is malformed");
  check_refused(fixed().code("10010001").code("0000000").bytes, 0, "more bytes than announced");
  check_refused(fixed().code("10010001").code("0000010").code("00000").code("0000000").bytes, 4,
                "more bytes than announced");
  check_refused(fixed().code("10010001").code("0000010").code("00001").code("0000000").bytes, 5,
                "before the first");
  check_refused(fixed().code("10010001").code("0000010").code("11110").code("0000000").bytes, 5,
                "unknown distance");
  check_refused(fixed().code("11000110").bytes, 5, "unknown length");
  check_refused(fixed().code("10010001").bytes, 1, "ends early");
  check_refused(bits{}.number(1, 1).number(2, 2).number(31, 5).number(0, 5).number(0, 4).bytes, 0,
                "too many symbols");
  check_refused(bits{}.number(1, 1).number(2, 2).number(0, 5).number(31, 5).number(0, 4).bytes, 0,
                "too many symbols");
  const auto lengths = [&](std::initializer_list<unsigned> of) {  // in the order 16, 17, 18, 0
    bits b = bits{}.number(1, 1).number(2, 2).number(0, 5).number(0, 5).number(0, 4);
    for (const unsigned n : of) b.number(n, 3);
    return b;
  };
  check_refused(lengths({1, 1, 1, 0}).bytes, 0, "lengths of no code");  // three codes of one bit
  check_refused(lengths({2, 2, 2, 0}).bytes, 0, "lengths of no code");  // one sequence left over
  check_refused(lengths({0, 0, 0, 0}).raw("\0\0"s).bytes, 0, "bits without a meaning");
  check_refused(lengths({1, 0, 1, 0}).code("0").bytes, 0, "repeats a length before the first");
  check_refused(lengths({0, 0, 1, 1}).code("1").number(127, 7).code("1").number(127, 7).bytes, 0,
                "too many lengths");
  check_refused(lengths({0, 0, 1, 1}).code("1").number(127, 7).code("1").number(109, 7).bytes, 0,
                "a block that does not end");
}

TEST_CASE("zip: more members than 16 bits count") {
  std::vector<std::pair<std::string, std::string>> contents;
  for (int i = 0; i < 65537; ++i) contents.emplace_back(std::to_string(i), "");
  contents[40000].second = "weft";
  const memory_file file;
  for (const std::size_t members : {65537, 65535, 65534}) {
    contents.resize(members);
    file.write(archive(contents));
    const io::zip_file zip(file.path());
    CHECK(zip.members().size() == members);
    CHECK(zip.read(*zip.find("40000")) == std::vector<char>{'w', 'e', 'f', 't'});
  }
}

TEST_CASE("zip: members and positions of more than 4 GiB") {
  const std::uint64_t large = (std::uint64_t{1} << 32) + 5;
  const io::zip_member a{"a", 0, large, large, 0, 1};
  const io::zip_member b{"b", 51 + large, 4, 4, 0, crc32("weft")};
  const io::zip_member c{"c", b.at + 51 + 4, large, large, 0, 1};
  const std::uint64_t end = c.at + 51 + large;
  const std::string directory = io::detail::zip_directory({a, b, c}, end);
  // APPNOTE 4.5.3: size, size in the archive, position, each only if it does not fit.
  CHECK(directory.find("a\1\0\x10\0"s + little(large, 8) + little(large, 8) + "PK") != directory.npos);
  CHECK(directory.find("b\1\0\x8\0"s + little(b.at, 8) + "PK") != directory.npos);
  CHECK(directory.find("c\1\0\x18\0"s + little(large, 8) + little(large, 8) + little(c.at, 8) + "PK") !=
        directory.npos);
  const memory_file file;
  for (const io::zip_member& m : {a, b, c})
    file.write_at(static_cast<off_t>(m.at), io::detail::zip_local_header(m));
  file.write_at(static_cast<off_t>(b.at + 51), "weft");
  file.write_at(static_cast<off_t>(end), directory);
  const io::zip_file zip(file.path());
  for (const io::zip_member& m : {a, b, c}) {
    CHECK(zip.find(m.name)->at == m.at);
    CHECK(zip.find(m.name)->size == m.size);
    CHECK(zip.find(m.name)->bytes == m.bytes);
  }
  CHECK(zip.read(*zip.find("b")) == std::vector<char>{'w', 'e', 'f', 't'});
}

TEST_CASE("zip: what is not read, or contradicts itself, is a clear error") {
  const std::string good = archive({{"a", "weft"}, {"b", "xyz"}});
  const std::size_t local = 31 + 20, second = local + 4, directory = second + local + 3, entry = 47,
                    end = directory + 2 * entry;
  REQUIRE(good.size() == end + 22);
  const auto with = [&](std::size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  check_zip_refused("", "incomplete or not an archive");
  check_zip_refused(good.substr(0, good.size() - 1), "incomplete or not an archive");
  check_zip_refused(good + "x", "incomplete or not an archive");
  const memory_file commented;
  commented.write(with(end + 20, "\7") + "comment");
  CHECK(io::zip_file(commented.path()).members().size() == 2);
  check_zip_refused(with(end + 4, "\1"), "several parts");
  check_zip_refused(with(end + 8, "\1"), "several parts");
  check_zip_refused(with(end + 8, "\3\0\3"s), "the directory has 2 members instead of 3");
  check_zip_refused(with(end + 8, "\1\0\1"s), "the directory has 2 members instead of 1");
  check_zip_refused(with(end + 12, "\1"), "entry 0 of the directory is malformed");
  check_zip_refused(with(end + 12, little(entry + 1, 4)), "entry 1 of the directory is malformed");
  check_zip_refused(with(end + 12, "\xff\xff\xff\x7f"), "the directory is not in the file");
  check_zip_refused(with(end + 16, "\xff\xff\xff\x7f"), "the directory is not in the file");
  check_zip_refused(with(directory + 1, "k"), "entry 0 of the directory is malformed");
  check_zip_refused(with(directory + 28, "\xff\xff"), "entry 0 of the directory is malformed");
  check_zip_refused(with(directory + 8, "\1"), "member a is encrypted");
  check_zip_refused(with(directory + 10, "\14"), "member a is compressed by method 12");
  check_zip_refused(with(directory + 24, "\5"), "member a of 4 bytes cannot inflate to 5");
  check_zip_refused(with(directory + 10, "\10").replace(directory + 24, 4, little(5 * 1032, 4)),
                    "member a of 4 bytes cannot inflate to 5160");
  check_zip_refused(with(directory + 16, "\1"), "member a is corrupt");
  check_zip_refused(with(local, "W"), "member a is corrupt");
  check_zip_refused(with(30, "b"), "member a has the header of another member");
  check_zip_refused(with(1, "k"), "member a has the header of another member");
  check_zip_refused(with(28, "\xff\xff"), "ends early");
  check_zip_refused(with(directory + 46, "b"), "member b occurs twice");
  check_zip_refused(with(directory + entry + 42, little(0, 4)), "members a and b overlap");
  check_zip_refused(with(directory + 42, little(1, 4)), "member a has the header of another member");
  check_zip_refused(with(directory + 42, little(directory, 4)), "member a is not in the file");
  check_zip_refused(with(directory + 20, little(1000, 4) + little(1000, 4)), "member a is not in the file");
  check_zip_refused(with(directory + 20, little(60, 4) + little(60, 4)), "members a and b overlap");
}

TEST_CASE("zip: the 64-bit end of the directory is checked") {
  std::vector<std::pair<std::string, std::string>> contents;
  for (int i = 0; i < 65536; ++i) contents.emplace_back(std::to_string(i), "");
  const std::string good = archive(contents);
  const std::size_t locator = good.size() - 42, record = locator - 56;
  const auto with = [&](std::size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  check_zip_refused(with(locator, "x"), "members instead of 65535");
  check_zip_refused(with(locator + 8, little(record + 1, 8)), "no 64-bit end of the directory");
  check_zip_refused(with(locator + 8, little(good.size(), 8)),
                    "64-bit end of the directory is not in the file");
  check_zip_refused(with(locator + 8, std::string(8, '\xff')),
                    "64-bit end of the directory is not in the file");
  check_zip_refused(with(record + 40, std::string(8, '\xff')), "the directory is not in the file");
  check_zip_refused(with(record + 48, std::string(8, '\xff')), "the directory is not in the file");
  check_zip_refused(with(record + 32, little(65535, 8)), "members instead of 65535");
}
