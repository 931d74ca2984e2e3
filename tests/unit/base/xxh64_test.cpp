// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <set>
#include <string>

#include <weft/base/xxh64.hpp>

using namespace weft;

TEST_CASE("XXH64 has the published values") {
  struct {
    const char* text;
    std::uint64_t seed, sum;
  } const published[] = {
      {"", 0, 0xef46db3751d8e999},
      {"a", 0, 0xd24ec4f1a98c6e5b},
      {"as", 0, 0x1c330fb2d66be179},
      {"asd", 0, 0x631c37ce72a97393},
      {"asdf", 0, 0x415872f599cea71e},
      {"abc", 0, 0x44bc2cf5ad770999},
      {"xxhash", 0, 0x32dd38952c4bc720},
      {"xxhash", 20141025, 0xb559b98d844e0635},
      {"I want an unsigned 64-bit seed!", 0, 0xd4cb0a70a2b8c7c1},
      {"I want an unsigned 64-bit seed!", 1, 0xce5087f12470d961},
      {"Call me Ishmael. Some years ago--never mind how long precisely-", 0, 0x02a2e85470d6fd96},
  };
  for (const auto& p : published) {
    CAPTURE(p.text);
    CHECK(xxh64(p.text, p.seed) == p.sum);
  }
}

TEST_CASE("XXH64 reads every byte, wherever it lies, and nothing beyond") {
  std::string text(301, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37 + 11);
  for (std::size_t size = 0; size < 150; ++size) {
    std::set<std::uint64_t> sums{xxh64({text.data(), size})};
    for (std::size_t i = 0; i < size; ++i) {
      text[i] = static_cast<char>(text[i] ^ 4);
      sums.insert(xxh64({text.data(), size}));
      text[i] = static_cast<char>(text[i] ^ 4);
    }
    CHECK(sums.size() == size + 1);
    const std::string apart = "x" + text.substr(0, size);  // at an odd address, with nothing after it
    CHECK(xxh64({apart.data() + 1, size}) == xxh64({text.data(), size}));
  }
}
