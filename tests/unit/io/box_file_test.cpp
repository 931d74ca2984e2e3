// SPDX-License-Identifier: MIT
// Boxes read from files that hold other boxes, on devices whose memory the host can access and on others.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <weft/io/box_file.hpp>
#include <weft/io/stored_tensor.hpp>

#include "../../boxes.hpp"

using namespace weft;
using namespace weft::test;

namespace {

/// A device whose memory the host can only copy to and from; counts the copies.
struct far_backend : cpu::cpu_backend {
  int uploads = 0;
  far_backend() : cpu_backend(1) {}
  bool host_accessible() const override { return false; }
  void upload(void* to, const void* from, std::size_t bytes) override {
    ++uploads;
    std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
};

struct temporary_file {
  std::string path =
      (std::filesystem::temp_directory_path() / ("weft-box-" + std::to_string(::getpid()))).string();
  explicit temporary_file(const std::string& bytes) { put(bytes); }
  ~temporary_file() { std::filesystem::remove(path); }
  void put(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
};

std::string random_bytes(random_source& random, std::size_t n, dtype type) {
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(type == dtype::boolean ? random() % 2 : random());
  return bytes;
}
/// The elements of `b`, selected from those of the whole tensor.
std::string chosen(const std::string& all, const box& b, const shape& whole, dtype type) {
  std::string bytes;
  const auto size = static_cast<std::size_t>(size_of(type));
  for (const index_t i : elements_of(b, whole)) bytes += all.substr(static_cast<std::size_t>(i) * size, size);
  return bytes;
}
constexpr dtype types[] = {dtype::f32, dtype::f64, dtype::bf16, dtype::f16,
                           dtype::i32, dtype::i64, dtype::u8,   dtype::boolean};

}  // namespace

TEST_CASE("any box from a file with any other box, of every type, with checksums and without") {
  random_source random(1);
  const device near(std::make_shared<cpu::cpu_backend>(1)), far(std::make_shared<far_backend>());
  const temporary_file f("");
  int read = 0;
  for (int round = 0; round < 2000; ++round) {
    const dtype type = types[round % 8];
    const shape whole = random_shape(random);
    const box there = random_box(random, whole), wanted = random_box(random, whole);
    const std::string all = random_bytes(random, bytes_of(whole, type), type), before = "before ";
    const std::string stored = chosen(all, there, whole, type);
    f.put(before + stored + "after");
    const io::input_file file(f.path);
    io::box_in_file from{file, before.size(), there, {}, "name"};
    if (round % 3) from.sums = io::block_sums(stored);
    const auto to = make_state(round % 2 ? near : far, wanted.extents, type);
    std::memset(to->memory.data(), 0x55, to->bytes());
    io::read_shared(from, wanted, *to);
    const box both = intersection(there, wanted);
    std::string expected;
    for (const index_t i : elements_of(wanted, whole)) {
      const auto in_both = elements_of(both, whole);
      const auto size = static_cast<std::size_t>(size_of(type));
      expected += std::binary_search(in_both.begin(), in_both.end(), i)
                      ? all.substr(static_cast<std::size_t>(i) * size, size)
                      : std::string(size, 0x55);
    }
    INFO(to_string(wanted) << " from " << to_string(there) << " of " << to_string(whole));
    CHECK(std::string(static_cast<const char*>(to->memory.data()), to->bytes()) == expected);
    read += both.size() > 0;
  }
  CHECK(read > 500);
}

TEST_CASE("only blocks with elements that are needed are read, and each is checked before it is used") {
  random_source random(2);
  const shape whole{2, {1200, 1024}};  // a row is 4 KiB, a block 256 rows
  const std::string all = random_bytes(random, bytes_of(whole, dtype::f32), dtype::f32);
  const temporary_file f(all);
  const auto far = std::make_shared<far_backend>();
  const device where(far);
  const std::vector<std::uint64_t> sums = io::block_sums(all);
  CHECK(sums.size() == 5);
  const auto read = [&](const box& wanted, const std::vector<std::uint64_t>& with) {
    const io::input_file file(f.path);
    const auto to = make_state(where, wanted.extents, dtype::f32);
    io::read_shared({file, 0, whole_box(whole), with, "w"}, wanted, *to);
    return std::string(static_cast<const char*>(to->memory.data()), to->bytes()) ==
           chosen(all, wanted, whole, dtype::f32);
  };
  const box rows{{2, {300, 0}}, {2, {400, 1024}}};      // of blocks 1 and 2
  const box columns{{2, {0, 1000}}, {2, {1200, 24}}};   // of all
  const box corner{{2, {1100, 512}}, {2, {100, 512}}};  // of block 4
  for (const box& b : {rows, columns, corner}) {
    CHECK(read(b, sums));
    CHECK(read(b, {}));
    CHECK(read(b, {xxh64(all)}));
  }
  far->uploads = 0;
  CHECK(read(columns, {}));
  CHECK(far->uploads == 1);  // in one copy, although each row has a separate run
  for (std::size_t block = 0; block < 5; ++block) {
    std::string damaged = all;
    damaged[block * io::block_bytes + 77] ^= 4;
    f.put(damaged);
    const auto is_refused = [&](const box& b) {
      try {
        read(b, sums);
        return false;
      } catch (const io_error& e) {
        CHECK(std::string(e.what()) ==
              "weft: " + f.path + ": tensor w is damaged: its checksum does not match");
        return true;
      }
    };
    CHECK(is_refused(rows) == (block == 1 || block == 2));
    CHECK(is_refused(columns));
    CHECK(is_refused(corner) == (block == 4));
    CHECK_THROWS_AS(read(corner, {xxh64(all)}), io_error);  // a checksum of the whole needs the whole
  }
  f.put(all.substr(0, 700 * 4096));
  CHECK(read(rows, {}));  // without checksums nothing behind the last element
  CHECK_THROWS_WITH_AS(read(corner, {}), doctest::Contains("ends early"), io_error);
}

TEST_CASE("elements of another floating type are converted, in more than one block") {
  random_source random(3);
  const device near(std::make_shared<cpu::cpu_backend>(1)), far(std::make_shared<far_backend>());
  const temporary_file f("");
  const shape whole{2, {611, 701}};
  for (const dtype type : {dtype::f32, dtype::f64, dtype::bf16, dtype::f16}) {
    const std::string all = random_bytes(random, bytes_of(whole, type), type);
    f.put(all);
    const io::input_file file(f.path);
    for (const dtype wanted_type : {dtype::f32, dtype::f64, dtype::bf16, dtype::f16})
      for (const bool checked : {false, true})
        for (const device& where : {near, far}) {
          const box wanted = random_box(random, whole);
          const std::string part = chosen(all, wanted, whole, type);
          const std::vector<char> bytes = type == wanted_type ? std::vector<char>(part.begin(), part.end())
                                                              : io::converted(part, type, wanted_type);
          const auto to = make_state(where, wanted.extents, wanted_type);
          const auto sums = checked ? io::block_sums(all) : std::vector<std::uint64_t>();
          io::read_shared({file, 0, whole_box(whole), sums, "w", type}, wanted, *to);
          INFO(name_of(type) << " to " << name_of(wanted_type) << ", " << to_string(wanted));
          CHECK(std::equal(bytes.begin(), bytes.end(), static_cast<const char*>(to->memory.data()),
                           static_cast<const char*>(to->memory.data()) + to->bytes()));
        }
  }
}

TEST_CASE("a bool other than 0 and 1 is refused") {
  const temporary_file f(std::string("\1\0\2\1", 4));
  const io::input_file file(f.path);
  const device where(std::make_shared<cpu::cpu_backend>(1));
  const auto to = make_state(where, {1, {2}}, dtype::boolean);
  io::read_shared({file, 0, whole_box({1, {4}}), {}, "mask"}, box{{1, {0}}, {1, {2}}}, *to);
  const box second{{1, {1}}, {1, {2}}};
  CHECK_THROWS_WITH_AS(io::read_shared({file, 0, whole_box({1, {4}}), {}, "mask"}, second, *to),
                       doctest::Contains("tensor mask is bool, but has bytes other than 0 and 1"), io_error);
}
