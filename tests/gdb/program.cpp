// SPDX-License-Identifier: MIT
// Values for tests/gdb/check.sh, which prints them at `stop`.
#include <weft/run/debug.hpp>
#include <weft/weft.hpp>

using namespace weft;

[[gnu::noinline]] void stop() { asm volatile(""); }

int main() {
  const tensor<float, extents<dyn, 3>> x =
      generate<float>(extents<dyn, 3>{2, 3}, [](index_t i) { return 0.5 * static_cast<double>(i); });
  const tensor<bfloat16, extents<2>> half = eval(cast<bfloat16>(full<float>(extents<2>{}, -1.5f)));
  const tensor<std::int64_t, extents<>> number = full<std::int64_t>(extents<>{}, 7);
  const tensor<float, extents<0, 4>> empty{extents<0, 4>{}};
  const tensor<float, extents<5>> undefined;
  const auto mask = eval(x > 1.0f);
  const parameter<extents<2>> weight = make_parameter(extents<2>{}, init::constant(0.25));
  const shape form = x.extents();
  const bfloat16 one = 1;
  debug(x + 1.0f);
  stop();
  return static_cast<int>(form[0] + static_cast<index_t>(static_cast<float>(one)) + undefined.defined() +
                          empty.size() + number.item()) == 10 &&
                 half.size() == 2 && mask.size() == 6 && weight.size() == 2
             ? 0
             : 1;
}
