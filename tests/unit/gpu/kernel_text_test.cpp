// SPDX-License-Identifier: MIT
// Kernels whose work items compute several elements, whose rows have a constant size, or whose indices have
// 32 bits compute the same as general kernels. WEFT_TEST_DEVICE names the device; the default is opencl.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/lower/text.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../gpu/device_memory.hpp"
#include "../../oracle.hpp"

using namespace weft;
using test::tested_device;
namespace oracle = test::oracle;

namespace {

/// Checks f(device) on the tested device against its definition.
template <class F>
void check(F f, double tolerance = 1e-5) {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const auto seen = oracle::read(eval(f(*d), c));
  CHECK(
      test::matches(seen, oracle::value(f(default_device())), {.absolute = 1e-12, .of_largest = tolerance}));
}

/// The same for two expressions that one program computes.
template <class F>
void check_both(F f, double tolerance = 1e-5) {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const auto [x, y] = f(*d);
  const auto first = eval(x + x, c);
  const auto second = eval(y + y, c);
  update(c, {first.state(), second.state()}, bundled(x, y));
  const auto values = oracle::value(std::apply([](auto... e) { return bundled(e...); }, f(default_device())));
  CHECK(test::matches(oracle::read(first), values[0], {.absolute = 1e-12, .of_largest = tolerance}));
  CHECK(test::matches(oracle::read(second), values[1], {.absolute = 1e-12, .of_largest = tolerance}));
}

template <class T = float, class E>
auto numbers(const device& d, E extents, std::uint64_t seed = 1) {
  return randn<T>(extents, {.seed = seed}, d);
}

using line = extents<dyn>;
using rows = extents<dyn, dyn>;

}  // namespace

TEST_CASE(
    "elements: several at once where their number allows it, from any address on, of types side by side") {
  for (const index_t n : {1, 2, 3, 4, 7, 8, 16, 1023, 1024, 4100}) {
    CAPTURE(n);
    check([=](const device& d) { return exp(numbers(d, line{n})) * 2.0f + numbers(d, line{n}, 2); });
    check([=](const device& d) {
      return cast<float>(numbers<bfloat16>(d, line{n})) * numbers(d, line{n}, 2) +
             cast<float>(numbers<double>(d, line{n}, 3));
    });
    check([=](const device& d) { return cast<bfloat16>(numbers(d, line{n}) * 3.0f); }, 0x1p-8);
    check([=](const device& d) {
      const auto mask = generate<bool>(
          line{n}, [](index_t i) { return i % 3 == 0; }, d);
      const auto bytes = generate<std::uint8_t>(
          line{n}, [](index_t i) { return i % 7; }, d);
      return where(mask, cast<float>(bytes), numbers(d, line{n}));
    });
  }
  for (const index_t n : {9, 1025, 1032}) {
    CAPTURE(n);
    check([=](const device& d) { return slice<0>(numbers(d, line{n}), 1, n) + 1.0f; });
    check([=](const device& d) { return slice<0>(numbers(d, line{n}), 4, n) + 1.0f; });
    check([=](const device& d) { return slice<0>(numbers<float16>(d, line{n}), 8, n); }, 0);
  }
}

TEST_CASE("elements of rows: sizes of a row, known when the program is compiled or not, rows apart, turned") {
  for (const index_t n : {1, 3, 4, 6, 8, 130}) {
    CAPTURE(n);
    check([=](const device& d) { return numbers(d, rows{37, n}) * numbers(d, line{n}, 2); });
    check([=](const device& d) { return numbers(d, rows{5, n}) * numbers(d, extents<dyn, 1>{5}, 2); });
    check([=](const device& d) { return transpose(numbers(d, rows{n, 5})) + numbers(d, rows{5, n}, 2); });
    check([=](const device& d) { return slice<1>(numbers(d, rows{5, n + 1}), 1, n + 1) + 1.0f; });
    check([=](const device& d) {
      return slice<1>(numbers(d, rows{5, n + 4}), 4, n + 4) + numbers(d, rows{5, n}, 2);
    });
  }
  check([](const device& d) { return numbers(d, extents<dyn, 12>{37}) * numbers(d, extents<12>{}, 2); });
  check([](const device& d) {
    return numbers(d, extents<dyn, 6, 8>{7}) * numbers(d, extents<6, 1>{}, 2) + numbers(d, extents<8>{}, 3);
  });
  check([](const device& d) { return flip<1>(numbers(d, rows{5, 8})) + numbers(d, line{8}, 2); });
}

TEST_CASE("rows that are folded: several elements at once, with values kept between sweeps") {
  // up to 2048, or 1536 where two values are kept, in registers
  for (const index_t n : {1, 3, 64, 255, 256, 258, 260, 512, 768, 1028, 1540, 2048, 2049, 2052}) {
    CAPTURE(n);
    check([=](const device& d) { return softmax(numbers(d, rows{5, n})); });
    check([=](const device& d) {
      return layer_norm(numbers(d, rows{5, n}), numbers(d, line{n}, 2), numbers(d, line{n}, 3));
    });
    check([=](const device& d) { return softmax(cast<float>(numbers<bfloat16>(d, rows{5, n}))); });
    check([=](const device& d) {
      const auto labels = generate<std::int32_t>(
          line{5}, [=](index_t i) { return i * 7 % n; }, d);
      return cross_entropy<reduction_kind::none>(numbers(d, rows{5, n}), labels);
    });
    check([=](const device& d) { return amax(slice<1>(numbers(d, rows{5, n + 1}), 1, n + 1), dims<1>); });
    check([=](const device& d) { return sum(transpose(numbers(d, rows{n, 5})) * 2.0f, dims<1>); });
  }
  check([](const device& d) { return softmax(numbers(d, extents<dyn, 512>{9})); });
  check([](const device& d) { return softmax(slice<1>(numbers(d, rows{5, 516}), 3, 515)); });
  check([](const device& d) { return softmax(numbers<double>(d, extents<dyn, 300>{9})); });
}

namespace {

/// A device whose groups have at most `threads` items.
template <class Backend>
class with_small_groups : public Backend {
 public:
  explicit with_small_groups(int threads) : threads_(threads) {}

 protected:
  gpu::group_limits limits() const override {
    gpu::group_limits all = Backend::limits();
    all.threads = threads_;
    return all;
  }

 private:
  const int threads_;
};

std::optional<device> device_with_small_groups(int threads) {
  const device* const d = tested_device();
#if WEFT_WITH_CUDA
  if (d && std::string_view((*d)->name()) == "cuda")
    return device(std::make_shared<with_small_groups<gpu::cuda_backend>>(threads));
#endif
#if WEFT_WITH_OPENCL
  if (d && std::string_view((*d)->name()) == "opencl")
    return device(std::make_shared<with_small_groups<gpu::opencl_backend>>(threads));
#endif
  return std::nullopt;
}

}  // namespace

TEST_CASE("long rows on devices with small groups: nothing is written beside the scratch memory") {
  for (const int threads : {64, 128, 255}) {
    CAPTURE(threads);
    const std::optional<device> small = device_with_small_groups(threads);
    if (!small) return;
    const auto gradients = [](const device& d) {
      context c(d);
      const index_t n = 4096;
      const auto x = variable<float, rows>(numbers(d, rows{9, n}));
      const auto w = variable<float, line>(numbers(d, line{n}, 2)),
                 b = variable<float, line>(numbers(d, line{n}, 3));
      const auto g = numbers(d, rows{9, n}, 4);
      tape steps(c);
      steps.backward(steps.eval(softmax(x)), g);
      auto all = x.grad().to_vector();
      steps.backward(steps.eval(layer_norm(x, w, b)), g);
      for (const auto& part :
           {x.grad().to_vector(), w.grad().to_vector(), b.grad().to_vector(), x.to_vector(), g.to_vector()})
        all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    const auto seen = gradients(*small), expected = gradients(default_device());
    REQUIRE(seen.size() == expected.size());
    float largest = 0;
    for (std::size_t i = 0; i < seen.size(); ++i)
      largest = std::max(largest, std::abs(seen[i] - expected[i]) / (1 + std::abs(expected[i])));
    CHECK(largest < 1e-5f);
  }
}

TEST_CASE("long sums are accurate: of one row, of all elements, of few columns of many rows") {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const index_t n = index_t{1} << 22;
  const auto x = full<float>(line{n}, 0.1f, *d);
  const auto y = full<float>(rows{n / 2, 2}, 0.1f, *d);
  const auto error = [](double sum, index_t of) {
    return std::abs(sum / (static_cast<double>(0.1f) * static_cast<double>(of)) - 1);
  };
  CHECK(error(static_cast<double>(eval(sum(x), c).item()), n) < 5e-6);
  CHECK(error(static_cast<double>(eval(sum(y), c).item()), n) < 5e-6);
  for (const float column : eval(sum(y, dims<0>), c).to_vector())
    CHECK(error(static_cast<double>(column), n / 2) < 5e-6);
}

#if WEFT_WITH_OPENCL
namespace {

class without_double : public gpu::opencl_backend {
 protected:
  const char* dialect() const override { return text_.c_str(); }

 private:
  std::string text_ = gpu::opencl_dialect + std::string("#undef HAS_DOUBLE\n");
};

}  // namespace

TEST_CASE("running sums and products of long lines are accurate on devices without f64, too") {
  const device* const tested = tested_device();
  if (!tested || std::string_view((*tested)->name()) != "opencl") return;
  const device d(std::make_shared<without_double>());
  const auto all = [](const device& on) {
    context c(on);
    const auto constant = [&](float x) { return full<float>(line{1 << 18}, x, on); };
    const float ends[] = {1, INFINITY, 2, -INFINITY, 3, NAN, 4};
    const auto special = generate<float>(line{7}, [&](index_t i) { return ends[i]; }, on);
    const auto recurrence = [](auto a, auto b) { return apply<op::linear_recurrence, attr<0, 0>>(a, b); };
    std::vector<std::vector<float>> lines;
    for (const auto& t : {eval(cumsum<0>(constant(0.1f)), c), eval(cumprod<0>(constant(1.000001f)), c),
                          eval(recurrence(constant(0.99999f), constant(0.1f)), c),
                          eval(cumsum<0>(slice<0>(special, 0, 3)), c), eval(cumsum<0>(special), c),
                          eval(cumprod<0>(special), c)})
      lines.push_back(t.to_vector());
    return lines;
  };
  const auto seen = all(d), expected = all(default_device());
  for (std::size_t l = 0; l < seen.size(); ++l)
    for (std::size_t i = 0; i < seen[l].size(); ++i) {
      const float x = seen[l][i], y = expected[l][i];
      const bool fits = std::isfinite(y) ? std::abs(x - y) <= 2e-7f * std::abs(y)
                        : std::isnan(y)  ? std::isnan(x)
                                         : x == y;
      if (!fits) {
        CAPTURE(l);
        CAPTURE(i);
        CHECK(x == y);
        break;
      }
    }
}
#endif

TEST_CASE("a row has the same sum wherever it begins") {
  const device* const d = tested_device();
  if (!d) return;
  context c(*d);
  const auto x = numbers(*d, rows{5, 516});
  for (index_t first = 0; first < 5; ++first) {
    const auto there = eval(slice<1>(x, first, first + 512) + 0.0f, c);
    CHECK(eval(sum(slice<1>(x, first, first + 512), dims<1>), c).to_vector() ==
          eval(sum(there, dims<1>), c).to_vector());
  }
}

TEST_CASE("columns that are folded, of rows of a constant size and of others") {
  check([](const device& d) { return sum(numbers(d, extents<dyn, 12>{1003}), dims<0>); });
  check([](const device& d) { return amax(numbers(d, rows{1003, 5}), dims<0>); });
  check([](const device& d) { return sum(numbers(d, rows{20011, 3}), dims<0>); });
  check([](const device& d) { return sum(numbers(d, extents<dyn, dyn, 6>{3, 700}), dims<1>); });
  check([](const device& d) { return sum(numbers(d, extents<dyn, dyn, 6>{3, 700}), dims<0, 1>); });
  check([](const device& d) { return sum(exp(transpose(numbers(d, rows{6, 70}))), dims<0>); });
  check([](const device& d) { return sum(cast<float>(numbers<bfloat16>(d, rows{1003, 24})), dims<0>); });
  check([](const device& d) { return sum(cast<float>(numbers<bfloat16>(d, rows{31, 1160})), dims<0>); });
  check([](const device& d) { return sum(slice<1>(numbers(d, rows{77, 9}), 1, 9), dims<0>); });
  check([](const device& d) { return amin(numbers(d, extents<dyn, dyn, dyn, 8>{3, 50, 4}), dims<1, 2>); });
}

TEST_CASE("elements that are stored, and their columns folded") {
  for (const index_t n : {0, 1, 2, 6, 8, 300})
    for (const index_t count : {0, 1, 7, 63, 64, 1003}) {
      CAPTURE(n);
      CAPTURE(count);
      check_both([=](const device& d) {
        const auto y = gelu(numbers(d, rows{count, n}) + numbers(d, line{n}, 2));
        return std::pair(y, sum(y, dims<0>));
      });
      if (count == 0) continue;  // no largest element
      check_both([=](const device& d) {
        const auto x = numbers<bfloat16>(d, rows{count, n});
        return std::pair(exp(cast<float>(x)), amax(cast<float>(x) * 2.0f, dims<0>));
      });
    }
  check_both([](const device& d) {
    const auto y = numbers(d, extents<dyn, dyn, 12>{5, 40}) * 2.0f;
    return std::pair(y, sum(y, dims<0, 1>));
  });
}

namespace {

/// y = x + 1 for [rows, size], with rows `apart` elements apart in x.
kernel_call a_call(index_t count, index_t size, index_t apart, std::uintptr_t address,
                   dtype type = dtype::f32) {
  using lower::instruction;
  static std::vector<std::vector<std::uint64_t>> kept;
  kept.push_back({instruction{lower::sweep}.encoded(), instruction{lower::load, type, 0}.encoded(),
                  instruction{lower::store, type, 1, 1}.encoded(), instruction{lower::end}.encoded()});
  kernel_call call;
  call.instructions = kept.back();
  call.args.order = 2;
  call.args.arguments = 2;
  call.args.extent[0] = count;
  call.args.extent[1] = size;
  for (int a = 0; a < 2; ++a) {
    call.args.pointer[a] = reinterpret_cast<void*>(address);
    call.args.stride[a][0] = a == 0 ? apart : size;
    call.args.stride[a][1] = 1;
  }
  return call;
}

}  // namespace

TEST_CASE("the form of a text: as wide as sizes and strides allow, 32 bits where all fits") {
  const auto width = [](const kernel_call& c) { return lower::text_form_of(c).width; };
  CHECK(width(a_call(5, 768, 768, 64)) == 4);
  CHECK(width(a_call(5, 768, 770, 64)) == 2);
  CHECK(width(a_call(5, 767, 768, 64)) == 1);
  CHECK(width(a_call(1, 768, 771, 64)) == 4);  // for one row, the stride of rows does not matter
  CHECK(width(a_call(5, 768, 768, 64, dtype::bf16)) == 8);
  CHECK(width(a_call(5, 768, 768, 64, dtype::f64)) == 2);
  CHECK(width(a_call(5, 768, 768, 64, dtype::u8)) == 8);
  kernel_call rows = a_call(5, 768, 768, 64);
  rows.division = kernel_division::rows;
  CHECK(width(rows) == 4);
  rows.args.extent[1] = 252;  // fewer than four for each item of a group
  CHECK(width(rows) == 2);
  rows.division = kernel_division::columns;
  CHECK(width(rows) == 4);

  const auto aligned = [](std::uintptr_t address, dtype type) {
    return lower::text_form_of(a_call(5, 768, 768, address, type)).aligned;
  };
  CHECK(aligned(80, dtype::f32));
  CHECK_FALSE(aligned(72, dtype::f32));
  CHECK_FALSE(aligned(72, dtype::f64));
  CHECK(aligned(72, dtype::u8));               // eight bytes at a time
  CHECK(width(a_call(5, 768, 768, 68)) == 4);  // the order of sums does not depend on where a row begins

  const auto narrow = [](const kernel_call& c) { return lower::text_form_of(c).narrow; };
  CHECK(narrow(a_call(1 << 10, 1 << 20, 1 << 20, 64)));
  CHECK_FALSE(narrow(a_call((1 << 10) + 1, 1 << 20, 1 << 20, 64)));
  CHECK(narrow(a_call(2, 4, 1 << 29, 64)));
  CHECK_FALSE(narrow(a_call(3, 4, -(index_t{1} << 29), 64)));
  kernel_call columns = a_call(1 << 24, 4, 4, 64);
  CHECK(narrow(columns));
  columns.division = kernel_division::columns;
  columns.args.folded = 1;
  columns.column_folds = 1;
  CHECK_FALSE(narrow(columns));  // the first row of a block is a quotient of a larger number

  kernel_call fixed = a_call(5, 768, 768, 64);
  CHECK(lower::text_form_of(fixed).row_size == 0);
  fixed.fixed_row = true;
  CHECK(lower::text_form_of(fixed).row_size == 768);
  fixed.args.order = 1;  // nothing is divided by it
  CHECK(lower::text_form_of(fixed).row_size == 0);
}
