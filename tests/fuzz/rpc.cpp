// SPDX-License-Identifier: MIT
// Fuzz target for remote calls to functions with every kind of argument: any bytes are answered or dropped.
// The first byte selects what the bytes are: a whole request, the arguments of a function, or an answer.
#include <cstdint>

#include <weft/comm/rpc.hpp>

namespace {

struct point {
  double x;
  std::int32_t n;
};

weft::detail::rpc_functions& functions() {
  static weft::detail::rpc_functions all;
  static const bool served = [] {
    all.serve("0", [](int a, std::int64_t b) { return static_cast<std::int64_t>(a) ^ b; });
    all.serve("1", [](const std::string& a, std::vector<std::string> rest) {
      std::string text = a;
      for (const std::string& r : rest) text += r;
      return text;
    });
    all.serve("2", [](std::vector<point> p) { return p.empty() ? point{} : p.back(); });
    all.serve("3", [](bool b, std::vector<bool> more) { return b ? more : std::vector<bool>{}; });
    all.serve("4", [](std::vector<std::vector<char>> v) { return v; });
    all.serve("5", [](float) -> int { throw 7; });
    all.serve("6", [](std::string text) -> int { throw weft::value_error(text); });
    all.serve("7", [] {});
    return true;
  }();
  static_cast<void>(served);
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::detail;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] >= 192) {
    weft::detail::rpc_calls calls(std::make_shared<weft::memory_store>());
    calls.begin();
    calls.answered(bytes);
    return 0;
  }
  const std::string request =
      data[0] < 64 ? bytes
                   : frame_writer().number(1).number(7).text(std::to_string(data[0] % 8)).raw(bytes).take();
  const std::optional<rpc_answer> a = functions().answer(request, 3);
  if (!a) return 0;
  if (a->to < 0 || a->to >= 3) __builtin_trap();
  frame_reader r(a->bytes());
  if (r.number() != a->number || r.byte() > 1) __builtin_trap();
  r.text();
  if (!r.at_end()) __builtin_trap();
  return 0;
}
