// SPDX-License-Identifier: MIT
// NVRTC's code for fused kernels, copies, sums by index and matrix products: memory is accessed 16 bytes at a
// time if sizes and strides allow it, inner loops have no 64-bit division, no register is spilled. Needs no
// GPU and no fake driver.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include <weft/weft.hpp>

#include "../../examples/gpt2.hpp"
#include "code_facts.hpp"

using namespace weft;

namespace {

const std::optional<test::reporting_compiler>& compiler() {
  static const auto found = test::compiler_here();
  return found;
}

/// The sources of the kernels that f(device, context) launches.
template <class F>
std::vector<std::string> sources_of(F f, bool jointly = false) {
  const auto keeps = std::make_shared<test::sources_only>();
  keeps->launches_jointly = jointly;
  {
    const device d(keeps);
    context c(d);
    f(d, c);
  }
  REQUIRE(!keeps->sources.empty());
  return keeps->sources;
}

/// Checks what every kernel must fulfill, for each architecture, then calls expect(facts).
template <class F>
void check_code(const std::vector<std::string>& sources, F expect) {
  if (!compiler()) return;
  for (const std::string& source : sources)
    for (const char* architecture : {"sm_80", "sm_90", "sm_100", "sm_120"}) {
      CAPTURE(architecture);
      const test::code_facts facts = compiler()->compile(source, architecture);
      CAPTURE(source.substr(source.find("typedef struct {")));
      CAPTURE(facts.log);
      REQUIRE(facts.compiled);
      CHECK(facts.log.find("warning") == std::string::npos);
      CHECK(facts.figure("([0-9]+) bytes stack frame") == 0);
      CHECK(facts.figure("([0-9]+) bytes spill stores") == 0);
      CHECK(facts.figure("([0-9]+) bytes spill loads") == 0);
      CHECK_FALSE(facts.has("\\.local"));
      CHECK_FALSE(facts.has("\\b(atom|red)\\."));
      expect(facts);
    }
}

constexpr const char *wide_load = "ld\\.global(\\.nc)?\\.v4\\.[bfu]32",
                     *wide_store = "st\\.global\\.v4\\.[bfu]32", *load = "ld\\.global",
                     *short_division = "(div|rem)\\.[su]32", *long_division = "(div|rem)\\.[su]64";

/// Checks that the kernels of f(device) read and write 16 bytes at a time, without integer divisions.
template <class F>
void check_wide(F f) {
  check_code(sources_of([&](const device& d, context& c) { (void)eval(f(d), c); }), [=](const auto& facts) {
    CHECK(facts.has(wide_load));
    CHECK(facts.has(wide_store));
    CHECK_FALSE(facts.has(short_division));
    CHECK_FALSE(facts.has(long_division));
  });
}

template <class T = float, class E>
auto numbers(const device& d, E extents) {
  return randn<T>(extents, {}, d);
}

using line = extents<dyn>;
using rows = extents<dyn, dyn>;
using fixed = extents<dyn, 768>;

}  // namespace

TEST_CASE(
    "machine code of element kernels: 16 bytes at a time, and no division where rows have a constant size") {
  check_wide([](const device& d) { return exp(numbers(d, line{1024})) * 2.0f + numbers(d, line{1024}); });
  check_wide([](const device& d) { return cast<bfloat16>(numbers(d, line{1024}) * 2.0f); });
  check_wide([](const device& d) { return cast<float>(numbers<float16>(d, line{1024})) + 1.0f; });
  check_wide([](const device& d) { return numbers(d, fixed{64}) * numbers(d, extents<768>{}); });
  const auto of_any_size = sources_of([](const device& d, context& c) {
    (void)eval(numbers(d, rows{64, 768}) * numbers(d, line{768}), c);
  });
  check_code(of_any_size, [](const auto& facts) {
    CHECK(facts.has(wide_load));
    CHECK(facts.has(wide_store));
    CHECK(facts.has(short_division));
    CHECK_FALSE(facts.has(long_division));
  });
  const auto odd = sources_of([](const device& d, context& c) {
    (void)eval(numbers(d, rows{64, 767}) * numbers(d, line{767}), c);
  });
  check_code(odd, [](const auto& facts) {
    CHECK(facts.has(load));
    CHECK_FALSE(facts.has(wide_load));
    CHECK_FALSE(facts.has(wide_store));
    CHECK_FALSE(facts.has(long_division));
  });
}

TEST_CASE("machine code of row kernels: 16 bytes at a time, without division") {
  check_wide([](const device& d) { return softmax(numbers(d, rows{64, 768})); });
  check_wide([](const device& d) { return softmax(cast<float>(numbers<bfloat16>(d, fixed{64}))); });
  check_wide([](const device& d) {
    return layer_norm(numbers(d, fixed{64}), numbers(d, extents<768>{}), numbers(d, extents<768>{}));
  });
}

TEST_CASE("machine code of row kernels: all that a row begins with is read before any of it is used") {
  const auto gradient_of = [](auto extents) {
    return sources_of([&](const device& d, context& c) {
      const index_t n = extents[1];
      const auto x = variable<float, decltype(extents)>(numbers(d, extents));
      const auto w = variable<float, line>(numbers(d, line{n})),
                 b = variable<float, line>(numbers(d, line{n}));
      tape steps(c);
      steps.backward(steps.eval(layer_norm(x, w, b)), numbers(d, extents));
    });
  };
  for (auto sources : {gradient_of(fixed{512}), gradient_of(rows{512, 768}), gradient_of(rows{512, 700})}) {
    std::erase_if(sources, [](const std::string& s) { return s.find("f32 q1[") == s.npos; });
    REQUIRE(sources.size() == 1);
    check_code(sources, [](const auto& facts) {
      const std::string first = facts.ptx.substr(0, facts.ptx.find("div.rn.f32"));
      int loads = 0;
      for (std::size_t at = 0; (at = first.find("ld.global", at)) != first.npos; ++at) ++loads;
      CHECK(loads == 3 + 3 * 3);  // of three numbers of the row, and of three pieces of x, w and the slope
    });
  }
}

TEST_CASE("machine code of the derivative of cross_entropy: one division for each row") {
  const auto sources = sources_of([](const device& d, context& c) {
    const auto x = variable<float, rows>(numbers(d, rows{64, 1000}));
    const auto labels = generate<std::int32_t>(
        line{64}, [](index_t i) { return static_cast<std::int32_t>(i); }, d);
    tape steps(c);
    steps.backward(steps.eval(cross_entropy<reduction_kind::none>(x, labels)), numbers(d, line{64}));
  });
  int divisions = 0;
  check_code(sources, [&](const auto& facts) {
    CHECK_FALSE(facts.has("div\\.(rn|full)\\.f32"));
    divisions += facts.has("rcp\\.rn\\.f32");
  });
  CHECK((!compiler() || divisions == 4));  // in one kernel, for four architectures
}

TEST_CASE("machine code of several kernels in one: as much shared memory as one of them") {
  auto sources = sources_of(
      [](const device& d, context& c) {
        const auto of = [&](index_t size) { return numbers(d, rows{64, size}); };
        const auto x = of(768), y = of(512), z = of(256), to_x = of(768), to_y = of(512), to_z = of(256);
        update(c, {to_x.state(), to_y.state(), to_z.state()},
               bundled(softmax(x), softmax(exp(y)), softmax(tanh(z))));
      },
      true);
  std::erase_if(sources, [](const std::string& s) { return s.find("part_2(") == s.npos; });
  REQUIRE(sources.size() == 1);
  check_code(sources, [](const auto& facts) {
    CHECK(facts.figure("([0-9]+) bytes smem") == gpu::group_size * static_cast<int>(sizeof(long)));
  });
}

TEST_CASE("machine code of a transformer block in bf16: derivatives of norms and residuals are one kernel") {
  using block = gpt2::block<dyn, dyn>;
  using operand = variable<float, extents<dyn, dyn, dyn>>;
  auto sources = sources_of([](const device& d, context&) {
    context_in<precision::bf16> c(d);
    const index_t width = 768;
    gpt2::config k{.layers = 1, .heads = 12, .width = width};
    const block b = gpt2::model<>::create(k, d).h.blocks[0];
    const operand x(numbers(d, extents<dyn, dyn, dyn>{2, 16, width}).state());
    tape steps(c);
    steps.backward(steps.eval(b(x)), numbers(d, extents<dyn, dyn, dyn>{2, 16, width}));
  });
  using expression_type = decltype(std::declval<const block&>()(std::declval<operand>()));
  using options = options_of<precision::bf16>;
  CHECK(runtime::backward_program<expression_type, options>::plan.kernels.size() == 6);
  check_code(sources, [](const auto&) {});
}

TEST_CASE("machine code of folded columns: no 64-bit division") {
  const auto folded = sources_of([](const device& d, context& c) {
    (void)eval(sum(numbers(d, extents<dyn, dyn, 768>{4, 512}), dims<0, 1>), c);
    (void)eval(amax(numbers(d, rows{4096, 768}), dims<0>), c);
    (void)eval(sum(numbers(d, extents<dyn, dyn, 768>{4, 512}), dims<1>), c);
  });
  CHECK(folded.size() == 6);  // and a text that joins blocks each
  check_code(folded, [](const auto& facts) { CHECK_FALSE(facts.has(long_division)); });
}

TEST_CASE("machine code of copies: lines and rows 16 bytes at a time, others without 64-bit division") {
  const auto copied = [](shape extents, std::vector<index_t> from) {
    return sources_of([&](const device& d, context&) {
      strided a, b;
      a.extents = b.extents = extents;
      set_contiguous(b);
      for (std::size_t i = 0; i < from.size(); ++i) a.stride[i] = from[i];
      d->copy(a, b);
    });
  };
  for (const auto& wide : {copied({2, {64, 768}}, {768, 1}), copied({2, {64, 768}}, {2304, 1})})
    check_code(wide, [](const auto& facts) {
      CHECK(facts.has(wide_load));
      CHECK(facts.has(wide_store));
      CHECK_FALSE(facts.has(long_division));
    });
  check_code(copied({3, {8, 64, 96}}, {1, 768, 8}), [](const auto& facts) {
    CHECK_FALSE(facts.has(wide_load));
    CHECK_FALSE(facts.has(long_division));
  });
}

TEST_CASE("machine code of products in tiles, and of sums of rows by index") {
  check_code(sources_of([](const device& d, context&) {
               for (const dtype type : {dtype::f32, dtype::bf16})
                 for (const index_t n : {32, 1024, 4096}) {
                   strided t;
                   t.type = type;
                   t.extents = {2, {n, n}};
                   set_contiguous(t);
                   d->multiply({}, t, t, t);
                 }
             }),
             [](const auto& facts) { CHECK(facts.has("fma\\.rn\\.f32")); });
  const auto sums = sources_of([](const device& d, context& c) {
    const auto index = generate<std::int32_t>(
        extents<dyn>{5000}, [](index_t i) { return i % 7; }, d);
    const auto table = variable<float, extents<7, 768>>(numbers(d, extents<7, 768>{}));
    tape steps(c);
    steps.backward(steps.eval(sum(embedding(table, index))));
  });
  std::vector<std::string> of_sorting;
  for (const std::string& source : sums)
    if (source.find("SORTED(p)") != source.npos) of_sorting.push_back(source);
  CHECK(of_sorting.size() == 4);
  check_code(of_sorting, [](const auto&) {});
}
