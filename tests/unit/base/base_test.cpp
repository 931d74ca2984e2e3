// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <weft/base/blocked_signals.hpp>
#include <weft/base/dtype.hpp>
#include <weft/base/number.hpp>
#include <weft/base/philox.hpp>
#include <weft/base/reflect.hpp>
#include <weft/base/sequence.hpp>
#include <weft/shape/shape.hpp>

#include "../../comma_locale.hpp"

using namespace weft;

static_assert([] {
  sequence<int> s{1, 2};
  for (int i = 0; i < 20; ++i) s.push_back(s[0]);
  sequence<int> copy = s;
  copy.pop_back();
  return s.size() == 22 && copy.size() == 21 && s.back() == 1 && s.contains(2);
}());

namespace {
/// An element whose construction fails for lack of memory while `left` is 0.
struct scarce {
  static inline int left = 0;
  int value = 0;
  scarce() {
    if (left-- == 0) throw std::bad_alloc();
  }
  explicit scarce(int v) : value(v) {}
};
}  // namespace

TEST_CASE("sequence: an element for which there is no memory is not appended") {
  for (int left = 0; left < 64; ++left) {
    sequence<scarce> s;
    scarce::left = left;
    int appended = 0;
    try {
      for (; appended < 40; ++appended) s.push_back(scarce(appended));
    } catch (const std::bad_alloc&) {
      scarce::left = -1;
      CHECK(s.size() == appended);
    }
    scarce::left = -1;
    for (; appended < 40; ++appended) s.push_back(scarce(appended));
    REQUIRE(s.size() == 40);
    for (int i = 0; i < 40; ++i) CHECK(s[i].value == i);
  }
}

TEST_CASE("f16: every bit pattern survives the way to float and back") {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    float16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    const float f = h;
    if (f != f) CHECK((float16(f).bits & 0x7fffu) > 0x7c00u);
    else CHECK(float16(f).bits == bits);
  }
}

TEST_CASE("f16 and bf16 round to nearest, halves to even") {
  CHECK(float(float16(1.0f + 0x1p-11f)) == 1.0f);
  CHECK(float(float16(1.0f + 0x1.8p-10f)) == 1.0f + 0x1p-9f);
  CHECK(float(float16(65520.0f)) == std::numeric_limits<float>::infinity());
  CHECK(float(float16(0x1p-25f)) == 0.0f);
  CHECK(float(float16(0x1.8p-25f)) == 0x1p-24f);
  CHECK(float(bfloat16(1.0f + 0x1p-8f)) == 1.0f);
  CHECK(float(bfloat16(1.0f + 0x1.8p-7f)) == 1.0f + 0x1p-6f);
  CHECK(std::isnan(float(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("philox: the vectors of the paper's reference implementation") {
  CHECK(philox({0, 0}, 0) ==
        std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  for (std::uint64_t i = 0; i < 9; ++i) CHECK(philox_word({7, 9}, i) == philox({7, 9}, i / 4)[i % 4]);
  CHECK(unit_interval(0) == 0.0f);
  CHECK(unit_interval(0xffffffffu) < 1.0f);
}

namespace {
struct inner {
  int weight, bias;
};
struct outer {
  inner first;
  double scale;
};
}  // namespace

TEST_CASE("reflect: members of an aggregate with their names") {
  outer o{{1, 2}, 3};
  std::string names;
  for_each_member(o, [&](std::string_view name, auto&) { names += std::string(name) + ";"; });
  CHECK(names == "first;scale;");
  for_each_member(o.first,
                  [&](std::string_view name, int& v) { names += std::string(name) + std::to_string(v); });
  CHECK(names == "first;scale;weight1bias2");
}

TEST_CASE("messages: parts of every kind, numbers to their limits") {
  const std::string name = "weight";
  const std::string_view view = "0.weight";
  CHECK(detail::joined({"parameter ", name, " of ", view.substr(0, 1)}) == "parameter weight of 0");
  CHECK(detail::joined({-7, " ", std::numeric_limits<std::int64_t>::min(), " ", ~std::uint64_t{0}, " ",
                        std::int8_t{-1}}) == "-7 -9223372036854775808 18446744073709551615 -1");
  CHECK(detail::joined({0.5, " ", std::numeric_limits<float>::infinity()}) == "0.5 inf");
  CHECK(detail::joined({-1e-9, " ", 0.1f, " ", 1.0 / 3, " ", 16777217.0, " ", 1e300}) ==
        "-1e-09 0.1 0.3333333333333333 16777217 1e+300");
  CHECK(detail::joined({shape{2, {3, dyn}}, " and ", shape{}}) == "[3, ?] and []");
  CHECK(detail::joined({}).empty());
  CHECK_THROWS_WITH_AS(refuse<shape_error>({"weft: dim ", 1}), "weft: dim 1", shape_error);
}

TEST_CASE("parse_number: all of a text, or none") {
  using weft::detail::parse_number;
  CHECK(parse_number<int>("-12") == -12);
  CHECK(parse_number<double>("0.5") == 0.5);
  CHECK(parse_number<std::uint64_t>("18446744073709551615") == std::numeric_limits<std::uint64_t>::max());
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "1.0", "2147483648", "-"})
    CHECK_FALSE(parse_number<int>(text).has_value());
  CHECK_FALSE(parse_number<std::uint64_t>("-1").has_value());
}

TEST_CASE("numbers are written and read alike in every locale") {
  const test::comma_locale locale;
  if (!locale.is_set()) MESSAGE("no locale with a decimal comma on this machine");
  CHECK(detail::joined({0.5, " ", 0.1f, " ", 1.0 / 3, " ", 1e300}) == "0.5 0.1 0.3333333333333333 1e+300");
  CHECK(detail::fixed(1.25, 1) == "1.2");
  CHECK(detail::fixed(-0.0004, 3) == "-0.000");
  CHECK(detail::fixed(1e6, 0) == "1000000");
  CHECK(detail::fixed(std::numeric_limits<double>::max(), 3).size() == 309 + 4);
  CHECK(detail::general(1234567.0) == "1.23457e+06");
  CHECK(detail::general(0.25) == "0.25");
  CHECK(detail::general(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(detail::parse_number<double>("1.5") == 1.5);
  CHECK(!detail::parse_number<double>("1,5"));
}

TEST_CASE("blocked signals that arrive are discarded, one that was pending before stays") {
  const auto is_pending = [](int signal) {
    sigset_t pending;
    ::sigpending(&pending);
    return ::sigismember(&pending, signal) == 1;
  };
  sigset_t before, during, after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  {
    const blocked_signals outer{SIGXFSZ};
    ::raise(SIGXFSZ);
    {
      const blocked_signals inner{SIGPIPE, SIGXFSZ};
      ::raise(SIGPIPE);
      ::raise(SIGXFSZ);
      errno = EPIPE;
    }
    CHECK(errno == EPIPE);
    CHECK(!is_pending(SIGPIPE));
    CHECK(is_pending(SIGXFSZ));
    ::pthread_sigmask(SIG_BLOCK, nullptr, &during);
    CHECK(::sigismember(&during, SIGPIPE) == 0);
    CHECK(::sigismember(&during, SIGXFSZ) == 1);
  }
  CHECK(!is_pending(SIGXFSZ));
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  CHECK(::sigismember(&after, SIGXFSZ) == ::sigismember(&before, SIGXFSZ));
}
