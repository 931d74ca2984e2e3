// SPDX-License-Identifier: MIT
// Sizes at their limits, and numbers of threads: the value of an expression matches its definition.
#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <string>

#include <weft/lower/reference.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"

using namespace weft;
using test::matches;
namespace oracle = test::oracle;

namespace {

using matrix = variable<float, extents<dyn, dyn>>;

matrix numbers(index_t rows, index_t columns, std::uint64_t seed) {
  return matrix(randn<float>(extents<dyn, dyn>{rows, columns}, {.seed = seed}));
}

/// Compares with the definition, on vectors and, if `plain`, on the reference back end.
template <expression E>
void check(const std::string& what, E e, bool plain) {
  CAPTURE(what);
  const oracle::array expected = oracle::value(e);
  const test::tolerance near{
      .absolute = 2e-5, .relative = 2e-5, .of_largest = 1e-6};  // sums of a thousand in f32
  CHECK(matches(eval(e), expected, near));
  if (!plain) return;
  context c;
  lower::reference_backend reference;
  c.set_backend(&reference);
  CHECK(matches(eval(e, c), expected, near));
}

struct net {
  causal_self_attention<> attention;
  feed_forward<> mlp;
  layer_normalization<> norm;
  auto operator()(expression auto x) const {
    return let(x + attention(norm(x)), [&](auto y) { return y + mlp(norm(y)); });
  }
};

}  // namespace

TEST_CASE("extents of 0, of 1 and primes") {
  constexpr std::pair<index_t, index_t> sizes[] = {{0, 0},  {0, 5},   {5, 0},     {1, 1},    {1, 7},
                                                   {13, 1}, {17, 31}, {127, 131}, {2, 1031}, {1031, 2}};
  for (const auto& [rows, columns] : sizes) {
    const matrix x = numbers(rows, columns, 1), y = numbers(rows, columns, 2),
                 square = numbers(columns, columns, 4);
    const variable<float, extents<dyn>> row(randn<float>(extents<dyn>{columns}, {.seed = 3}));
    CAPTURE(rows); CAPTURE(columns);
    check("chain", gelu(x * y + row) * sigmoid(x) + sin(y), true);
    check("sums", sum(x * y, dims<0>), true);
    check("means", mean(x, dims<1>), true);
    check("sum", sum(x * x), true);
    check("softmax", softmax(x), true);
    check("log_softmax of columns", log_softmax<0>(x), true);
    check("normalised", layer_norm(x, row, row), true);
    check("product", matmul(x, square), true);
    check("transposed product", matmul(transpose(x), y), true);
    check("product with a transposed matrix", matmul(x, transpose(y)), true);
    check("movement", concat<1>(transpose(x) * 2, flip<0>(square)), true);
    check("compared", cast<float>(x < y), true);

    tape steps;  // and backward
    const auto total = sum(softmax(matmul(x, square)) * y + layer_norm(x, row, row));
    steps.backward(steps.eval(total));
    if (rows * columns > 600 ||
        columns ==
            1) {  // too many differences; and a row of one has a variance of 0, whose derivative is steep
      const auto g = square.grad().to_vector();
      CHECK(square.grad().extents() == square.extents());
      CHECK(std::all_of(g.begin(), g.end(), [](float e) { return std::isfinite(e); }));
    } else {
      CHECK(matches(x.grad(), oracle::gradient(total, x), {.absolute = 1e-6, .of_largest = 1e-4}));
      CHECK(matches(square.grad(), oracle::gradient(total, square), {.absolute = 1e-6, .of_largest = 1e-4}));
      CHECK(matches(row.grad(), oracle::gradient(total, row), {.absolute = 1e-6, .of_largest = 1e-4}));
    }
  }
}

namespace {
/// A CPU that checks that operands are in its memory, like devices with a separate address space.
class careful_backend : public cpu::cpu_backend {
 public:
  careful_backend() : cpu_backend(1) {}
  int strangers = 0;  // operands of no block

  void* allocate(std::size_t bytes) override {
    void* const block = cpu_backend::allocate(bytes);
    blocks_[reinterpret_cast<std::uintptr_t>(block)] = bytes;
    return block;
  }
  void deallocate(void* block, std::size_t bytes) noexcept override {
    blocks_.erase(reinterpret_cast<std::uintptr_t>(block));
    cpu_backend::deallocate(block, bytes);
  }
  void multiply(const native_code& code, const strided& a, const strided& b, const strided& c) override {
    for (const strided* t : {&a, &b, &c}) look_at(*t);
    cpu_backend::multiply(code, a, b, c);
  }
  void call_native(const char* op, const native_code& code, const native_operands& operands) override {
    for (const strided& t : operands.in) look_at(t);
    for (const strided& t : operands.out) look_at(t);
    cpu_backend::call_native(op, code, operands);
  }

 private:
  void look_at(const strided& t) {
    const auto address = reinterpret_cast<std::uintptr_t>(t.pointer);
    auto after = blocks_.upper_bound(address);
    strangers += after == blocks_.begin() || address - (--after)->first > after->second;
  }
  std::map<std::uintptr_t, std::size_t> blocks_;
};
}  // namespace

TEST_CASE("values without elements have an address of the device") {
  const auto backend = std::make_shared<careful_backend>();
  const device where(backend);
  context c(where);
  const auto x = zeros<float>(extents<dyn, dyn>{3, 0}, where),
             y = zeros<float>(extents<dyn, dyn>{0, 4}, where);
  CHECK(eval(matmul(x + 1.0f, y * 2.0f), c).to_vector() == std::vector<float>(12));
  const auto z = full<float>(extents<dyn>{5}, 1, where), none = zeros<float>(extents<dyn>{0}, where);
  const auto index = zeros<std::int32_t>(extents<dyn>{0}, where);
  CHECK(eval(scatter_add<0>(z, index + 1, none * 2.0f), c).to_vector() == std::vector<float>(5, 1));
  CHECK(backend->strangers == 0);
}

TEST_CASE("long rows and many rows are folded by blocks") {
  constexpr std::pair<index_t, index_t> sizes[] = {{1, 65536},  {1, 65537}, {1, 200003}, {3, 131072},
                                                   {70, 65600}, {9001, 3},  {8193, 130}, {4097, 1}};
  for (const auto& [rows, columns] : sizes) {
    const matrix x = numbers(rows, columns, 1), y = numbers(rows, columns, 2);
    const auto wide = cast<double>(x);
    const auto counted = cast<std::int32_t>(x * 100);
    CAPTURE(rows); CAPTURE(columns);
    check("sum", sum(wide * wide), false);
    check("chain", x * y + variable<float, extents<dyn>>(randn<float>(extents<dyn>{columns}, {.seed = 3})),
          false);
    check("largest", amax(x * y), false);
    check("sums of rows", sum(wide * wide, dims<1>), false);
    check("smallest of rows", amin(x, dims<1>), false);
    check("logsumexp of rows", logsumexp(x, dims<1>), false);
    check("softmax", softmax(x), false);
    check("normalised",
          (wide - mean(wide, dims<1>, keepdim)) * rsqrt(mean(wide * wide, dims<1>, keepdim) + 1.0), false);
    check("sums of columns", sum(wide * wide, dims<0>), false);
    check("largest of columns", amax(x - y, dims<0>), false);
    check("strided", sum(transpose(wide) * transpose(wide), dims<1>), false);
    CHECK(eval(sum(counted)).item() == [&] {
      std::int32_t all = 0;
      for (std::int32_t v : eval(counted).to_vector()) all += v;
      return all;
    }());
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3}) {
      const device where(std::make_shared<cpu::cpu_backend>(threads));
      context c(where);
      const auto a = x.to(where), b = y.to(where);
      std::vector<float> seen = eval(sum(a * b, dims<0>), c).to_vector();
      for (float v : eval(logsumexp(a, dims<1>), c).to_vector()) seen.push_back(v);
      seen.push_back(eval(sum(a * b), c).item());
      results.push_back(seen);
    }
    CHECK(results[1] == results[0]);
    CHECK(results[2] == results[0]);
  }
}

TEST_CASE("sums of columns have the same bits in a kernel that reduces rows, on any number of threads") {
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{1003, 5},
                                      {515, 260},
                                      {0, 8},
                                      {8193, 33},
                                      {40, 2100},
                                      {40, 4200},
                                      {3, 66000}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    std::vector<float> of_one_thread;
    for (int threads : {1, 2, 3}) {
      const device where(std::make_shared<cpu::cpu_backend>(threads));
      context c(where);
      const auto x = numbers(rows, columns, 1).to(where), g = numbers(rows, columns, 2).to(where);
      const variable<float, extents<dyn>> b(randn<float>(extents<dyn>{columns}, {.seed = 3}, where));
      const matrix v(x);
      const tensor<float, extents<dyn, dyn>> seed(g);
      tape steps(c);
      steps.backward(steps.eval(softmax(v + b)), seed);
      const std::vector<float> together = b.grad().to_vector();
      CHECK(together == eval(sum(v.grad(), dims<0>), c).to_vector());
      if (threads == 1) of_one_thread = together;
      CHECK(together == of_one_thread);
      variable<float, extents<dyn>> weight(randn<float>(extents<dyn>{columns}, {.seed = 4}, where)),
          bias(randn<float>(extents<dyn>{columns}, {.seed = 5}, where));
      steps.backward(steps.eval(layer_norm(v, weight, bias)), seed);
      CHECK(bias.grad().to_vector() == eval(sum(seed, dims<0>), c).to_vector());
    }
  }
}

TEST_CASE("sums of rows without elements are zeros, also beside sums of columns") {
  const tensor<float, extents<dyn, dyn>> x(shape{2, {8, 0}});
  tensor<float, extents<dyn>> rows(full<float>(extents<dyn>{8}, 5.0f)), columns(shape{1, {0}});
  const auto y = shared(x + 0.0f);
  update(default_context(), {rows.state(), columns.state()},
         bundled(sum(y * y, dims<1>), sum(y * 1.5f, dims<0>)));
  CHECK(rows.to_vector() == std::vector<float>(8, 0.0f));
}

TEST_CASE("lines are picked, added to and searched on several threads") {
  constexpr index_t rows = 301, columns = 517;
  const device where(std::make_shared<cpu::cpu_backend>(3));
  context c(where);
  const auto at = [&](index_t r, index_t col) { return static_cast<std::size_t>(r * columns + col); };
  tensor<std::int64_t, extents<dyn, dyn>> index(shape{2, {rows, columns}}, where);
  std::vector<std::int64_t> chosen;
  for (index_t i = 0; i < rows * columns; ++i) chosen.push_back((i * i + 7 * i) % rows);
  index.copy_from(chosen);
  const matrix x(numbers(rows, columns, 5).to(where));
  const auto values = x.to_vector();
  const auto along_rows = eval(gather<1>(x, index), c).to_vector(),
             along_columns = eval(gather<0>(x, index), c).to_vector();
  const tensor<float, extents<rows, dyn>> sized(x);
  const auto added = eval(scatter_add<0>(sized, index, x), c);
  const auto largest = eval(argmax<0>(x), c).to_vector(), smallest = eval(argmin<1>(x), c).to_vector();
  std::vector<double> sums(values.begin(), values.end());
  for (index_t r = 0; r < rows; ++r)
    for (index_t col = 0; col < columns; ++col) {
      const index_t i = chosen[at(r, col)];
      REQUIRE(along_rows[at(r, col)] == values[at(r, i)]);
      REQUIRE(along_columns[at(r, col)] == values[at(i, col)]);
      REQUIRE(values[at(r, col)] <= values[at(largest[static_cast<std::size_t>(col)], col)]);
      REQUIRE(values[at(r, col)] >= values[at(r, smallest[static_cast<std::size_t>(r)])]);
      sums[at(i, col)] += double(values[at(r, col)]);
    }
  CHECK(matches(added, oracle::numbers(dtype::f32, {2, {rows, columns}}, sums), {.absolute = 1e-5}));
  chosen[at(200, 3)] = rows;
  index.copy_from(chosen);
  CHECK_THROWS_WITH_AS(eval(gather<0>(x, index), c),
                       "weft: gather: index 301 at position 103403 is outside of [0, 301)", value_error);
  eval(sum(x), c);  // the threads are as they were
}

namespace {

/// Checks look-ups along dim Dim of `x`, at the indices `index` [shape of x] and `few` [N].
template <index_t Dim, expression X, expression Index, expression Few>
void check_look_ups(X x, Index index, Few few) {
  CAPTURE(Dim);
  const auto agrees = [&](const char* what, auto e, double error) {
    CAPTURE(what);
    CHECK(matches(eval(e), oracle::value(e), {.absolute = error}));
  };
  agrees("gather", gather<Dim>(x, index), 0);
  agrees("scatter_add", scatter_add<Dim>(x, index, x), 1e-4);
  agrees("index_select", index_select<Dim>(x, few), 0);
}

}  // namespace

TEST_CASE("look-ups along every dim of views of many elements") {
  constexpr index_t a = 61, b = 7, e = 167;  // operands are views of shape [a, b, e]; indices are below b
  const auto numbers = rand<float>(extents<dyn, dyn, dyn>{e, 2 * b, a}, {.seed = 3});
  const auto x = permute<2, 1, 0>(slice<1, 0, 2 * b, 2>(numbers));
  const auto check_type = [&]<class I>(I) {
    const auto index = generate<I>(extents<dyn, dyn, dyn>{b, a, e}, [](index_t i) { return i * i % 7; });
    const auto few = generate<I>(extents<dyn>{97}, [](index_t i) { return i * i % 7; });
    check_look_ups<0>(x, transpose<0, 1>(index), few);
    check_look_ups<1>(x, transpose<0, 1>(index), few);
    check_look_ups<2>(x, transpose<0, 1>(index), few);
  };
  check_type(std::int64_t{});
  check_type(std::int32_t{});
  check_type(std::uint8_t{});
}

TEST_CASE("rows of every length of views") {
  for (index_t n = 1; n < 67; ++n) {
    CAPTURE(n);
    const auto wide =
        generate<double>(extents<dyn, dyn>{3, 3 * n}, [](index_t i) { return i * 7919 % 1009 - 504; });
    const index_t columns = n < 19 ? n : 0, rows = n % 2 ? 1103 : 31;  // longer than a block, and not
    const auto narrow =
        generate<double>(extents<dyn, dyn, dyn>{2, columns, rows}, [](index_t i) { return i * 31 % 251; });
    const auto check_type = [&]<class T>(T) {
      const auto x = eval(cast<T>(wide));
      const auto y = eval(cast<T>(narrow));
      const auto agrees = [&](auto e) { CHECK(matches(eval(e), oracle::value(e), {})); };
      agrees(slice<1, 3>(x, 0, 3 * n));
      agrees(flip<1>(x));
      agrees(transpose(x));
      agrees(expand(slice<1, 0, 1>(x), extents<3, dyn>{3 * n}));
      agrees(permute<0, 2, 1>(y));
      agrees(permute<2, 0, 1>(flip<2>(y)));
    };
    check_type(double{});
    check_type(float{});
    check_type(bfloat16{});
    check_type(float16{});
    check_type(std::int64_t{});
    check_type(std::int32_t{});
    check_type(std::uint8_t{});
    check_type(bool{});
  }
}

TEST_CASE("the same bits on any number of threads") {
  using batch = tensor<float, extents<dyn, dyn, dyn>>;
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    const device where(std::make_shared<cpu::cpu_backend>(threads));
    net model{causal_self_attention<>::create(96, 3, where), feed_forward<>::create(96, 384, where),
              layer_normalization<>::create(96, where)};
    initialize(model, 5);
    adamw optimizer{.lr = 1e-2};
    context c(where);
    std::vector<float> seen;
    for (int step = 0; step < 3; ++step) {
      const batch x(randn<float>(extents<dyn, dyn, dyn>{4, 70, 96},
                                 {.seed = 7, .stream = static_cast<std::uint64_t>(step)}, where));
      tape steps(c);
      const auto loss = steps.eval(mean(dropout(model(x), 0.1f) * x));
      steps.backward(loss);
      seen.push_back(loss.item());
      seen.push_back(static_cast<float>(clip_grad_norm(model, 0.5, c)));
      optimizer.step(model, 1, c);
    }
    for (const auto& p : parameters_of(model)) {
      std::vector<float> v(static_cast<std::size_t>(p->extents.size()));
      detail::download_to(*p, v.data());
      seen.insert(seen.end(), v.begin(), v.end());
    }
    results.push_back(seen);
  }
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

// 6 GB, half a minute: tests/run.sh --full.
TEST_CASE("more than 2^31 elements" * doctest::skip(std::getenv("WEFT_TEST_LARGE") == nullptr)) {
  const index_t size = (index_t{1} << 31) + 11;
  using bytes = tensor<std::uint8_t, extents<dyn>>;
  const bytes x(generate<std::uint8_t>(extents<dyn>{size}, [](index_t i) { return i % 251; }));
  CHECK(eval(sum(cast<std::int64_t>(x))).item() ==
        size / 251 * (250 * 251 / 2) + (size % 251 - 1) * (size % 251) / 2);
  const bytes y = eval(slice<0>(x, 1, size));
  CHECK(y.extents()[0] == size - 1);
  const auto last = eval(cast<std::int64_t>(slice<0>(y, size - 3, size - 1))).to_vector();
  CHECK(last == std::vector<std::int64_t>{(size - 2) % 251, (size - 1) % 251});
  const index_t rows = index_t{1} << 16;
  const auto folded =
      eval(amax(reshape<1 << 16, (1 << 15)>(slice<0>(x, 0, rows << 15)), dims<0>)).to_vector();
  CHECK(folded == std::vector<std::uint8_t>(1 << 15, 250));
}
