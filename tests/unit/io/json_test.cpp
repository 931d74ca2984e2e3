// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <set>

#include <weft/io/json.hpp>

using namespace weft;
using namespace std::string_literals;

namespace {
std::string failure(const std::string& text) {
  try {
    io::json(text, "test");
  } catch (const io_error& e) {
    return e.what();
  }
  return "";
}
}  // namespace

TEST_CASE("JSON: values, keys in order, strings decoded, numbers as written") {
  const io::json j(
      R"( {"a": [1, -0, 2.50, 1e+9, true, false, null, "x", {}, []],)"
      R"( "b\u00e9\n": {"c": {"d": "\ud83d\ude00\u20ac\"\\\/\b\f\r\t"}}, "": 3} )",
      "test");
  std::vector<std::string> keys;
  j.root().for_each_member([&](std::string_view key, const io::json_value&) { keys.emplace_back(key); });
  CHECK(keys == std::vector<std::string>{"a", "b\xc3\xa9\n", ""});
  std::string items;
  j.root().find("a")->for_each_item([&](const io::json_value& v) {
    items += std::to_string(static_cast<int>(v.kind())) + std::string(v.text()) + " ";
  });
  CHECK(items == "21 2-0 22.50 21e+9 1true 1false 0null 3x 5 4 ");
  CHECK(j.root().find("a")->size() == 10);
  CHECK(j.root().find("b\xc3\xa9\n")->find("c")->find("d")->text() ==
        "\xf0\x9f\x98\x80\xe2\x82\xac\"\\/\b\f\r\t");
  CHECK(j.root().find("")->integer() == 3);
  CHECK(!j.root().find("c"));
  CHECK(!j.root().find("")->find("x"));
  CHECK(io::json(" 7 ", "test").root().integer() == 7);
  const std::string odd = "\"\\\x01\x1f\xc3\xa9 \x7f";
  CHECK(io::json(io::json_string(odd), "test").root().text() == odd);
}

TEST_CASE("JSON: integers are those that fit, written as such") {
  const auto integer = [](const char* text) { return io::json(text, "test").root().integer(); };
  CHECK(integer("-9223372036854775808") == INT64_MIN);
  CHECK(integer("9223372036854775807") == INT64_MAX);
  for (const char* text :
       {"9223372036854775808", "1.0", "1e2", "\"1\"", "true", "[1]", "123456789012345678901234567890"})
    CHECK(!integer(text));
}

TEST_CASE("JSON: what RFC 8259 does not allow is refused, and where it is said") {
  for (const std::string& text : {""s,
                                  " "s,
                                  "{"s,
                                  "}"s,
                                  "["s,
                                  "[1"s,
                                  "[1,"s,
                                  "[1,]"s,
                                  "[,1]"s,
                                  "[1 2]"s,
                                  "{\"a\"}"s,
                                  "{\"a\":}"s,
                                  "{\"a\":1,}"s,
                                  "{a:1}"s,
                                  "{'a':1}"s,
                                  "{1:1}"s,
                                  "{\"a\":1 \"b\":2}"s,
                                  "01"s,
                                  "-01"s,
                                  "00"s,
                                  "-"s,
                                  "+1"s,
                                  "1."s,
                                  ".5"s,
                                  "-.5"s,
                                  "1.e3"s,
                                  "1e"s,
                                  "1e+"s,
                                  "1E-"s,
                                  "0x1"s,
                                  "1a"s,
                                  "--1"s,
                                  "NaN"s,
                                  "Infinity"s,
                                  "-Infinity"s,
                                  "nul"s,
                                  "nulll"s,
                                  "True"s,
                                  "tru"s,
                                  "1 2"s,
                                  "[]]"s,
                                  "\""s,
                                  "\"a"s,
                                  "\"\\"s,
                                  "\"\\x\""s,
                                  "\"\\u12\""s,
                                  "\"\\u12g4\""s,
                                  "\"\n\""s,
                                  "\"\t\""s,
                                  "\"\0\""s,
                                  "\"\\ud800\""s,
                                  "\"\\ud800x\""s,
                                  "\"\\ud800\\n\""s,
                                  "\"\\ud800\\ud800\""s,
                                  "\"\\udc00\""s,
                                  "\"\\udc00\\ud800\""s,
                                  "\"\x80\""s,
                                  "\"\xc3\""s,
                                  "\"\xc3(\""s,
                                  "\"\xc0\xaf\""s,
                                  "\"\xc1\x81\""s,
                                  "\"\xe0\x80\xaf\""s,
                                  "\"\xe2\x82\""s,
                                  "\"\xed\xa0\x80\""s,
                                  "\"\xf0\x80\x80\x80\""s,
                                  "\"\xf4\x90\x80\x80\""s,
                                  "\"\xf5\x80\x80\x80\""s,
                                  "\"\xff\""s,
                                  "\xef\xbb\xbf{}"s,
                                  "\x0c[]"s,
                                  "[1]//x"s,
                                  "/**/1"s,
                                  "[1]\0"s,
                                  "{\"a\":1,\"b\":2,\"a\":3}"s,
                                  "{\"a\":1,\"\\u0061\":2}"s}) {
    CAPTURE(text);
    CHECK(failure(text).find("weft: test: JSON at byte ") == 0);
  }
  CHECK(failure("[1, 02]").find("at byte 5: malformed number: a leading zero") != std::string::npos);
  CHECK(failure("{\"k\\n\": {\"x\": 1, \"x\": 2}}").find("duplicate key \"x\"") != std::string::npos);
  CHECK(failure("\"\\ud800\"").find("half of a surrogate pair") != std::string::npos);
  CHECK(failure("\"\xff\"").find("at byte 1: the string is not UTF-8") != std::string::npos);
}

TEST_CASE("JSON: depth is bounded") {
  CHECK(failure(std::string(32, '[') + std::string(32, ']')) == "");
  CHECK(failure(std::string(1'000'000, '[')).find("nested too deeply") != std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"\":";
  CHECK(failure(objects).find("nested too deeply") != std::string::npos);
}

// Ten times as many keys took a hundred times as long; a million keys took hours.
TEST_CASE("JSON: a million keys") {
  std::string text = "{";
  for (int i = 0; i < 1'000'000; ++i)
    text += (i ? ",\"tensor." : "\"tensor.") + std::to_string(i * 7919L % 1'000'000) + "\":0";
  const io::json j(text + "}", "test");
  CHECK(j.root().size() == 1'000'000);
  CHECK(failure(text + ",\"tensor.77\":0}").find("duplicate key \"tensor.77\"") != std::string::npos);
}

TEST_CASE("JSON: memory within ten times the text, for the texts with most values") {
#ifdef WEFT_SANITIZED
  const long most_growth =
      16 * 20'000'000 / 1024;  // blocks have borders, and stay for a while when they are free
#else
  const long most_growth = 9 * 20'000'000 / 1024;
#endif
  for (const char* unit : {"0,", "[],", "\"\",", "[0],", "{},", "{\"\":0},"}) {
    std::string text = "[";
    while (text.size() < 20'000'000) text += unit;
    text += "0]";
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {  // a new process, whose peak memory is not from before
      const auto largest = [] {
        rusage r{};
        ::getrusage(RUSAGE_SELF, &r);
        return r.ru_maxrss;  // KiB
      };
      const long before = largest();
      io::json j(std::move(text), "test");
      ::_exit(largest() - before < most_growth && j.root().size() > 0 ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    CAPTURE(std::string(unit));
    CHECK(status == 0);
  }
}
