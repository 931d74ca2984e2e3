// SPDX-License-Identifier: MIT
// Element types: the result of each op for each type, whether it reaches memory or stays in a kernel.
// Compared bitwise with plain loops, on every back end that the machine has.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include <weft/gpu/open.hpp>
#include <weft/lower/reference.hpp>
#include <weft/run/convert.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

using i64 = std::int64_t;
using i32 = std::int32_t;
using u8 = std::uint8_t;

/// The CPU, the reference back end, and OpenCL if available.
template <class F>
void on_every_device(F f) {
  static const std::vector<device> devices = [] {
    std::vector<device> all{default_device(), device(std::make_shared<lower::reference_backend>())};
    try {
      all.push_back(open_device("opencl"));
    } catch (const device_error& e) { MESSAGE("without opencl: ", e.what()); }
    return all;
  }();
  for (const device& d : devices) {
    CAPTURE(d->name());
    context c(d);
    f(c, d);
  }
}

template <class T>
std::vector<unsigned char> bytes_of(const std::shared_ptr<tensor_state>& t) {
  std::vector<unsigned char> bytes(t->bytes());
  t->where->download(bytes.data(), t->memory.data(), bytes.size());
  return bytes;
}
/// Checks that `t` and `expected` are bitwise identical; all NaNs are equal.
template <class T, class E>
bool same(const tensor<T, E>& t, const std::vector<T>& expected) {
  const std::vector<unsigned char> bytes = bytes_of<T>(t.state());
  if (bytes.size() != expected.size() * sizeof(T)) return false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const T want = expected[i];
    if (std::memcmp(&bytes[i * sizeof(T)], &want, sizeof(T)) == 0) continue;
    T got;
    if constexpr (std::is_same_v<T, bool>) {
      MESSAGE("element ", i, ": byte ", int(bytes[i]), ", not ", int(want));
      return false;
    } else {
      std::memcpy(&got, &bytes[i * sizeof(T)], sizeof(T));
      if (got != got && want != want) continue;
      MESSAGE("element ", i, ": ", double(got), ", not ", double(want));
      return false;
    }
  }
  return true;
}

// A model of the element types that shares only the bits of bfloat16 and float16 with the library.

template <class T>
inline constexpr bool narrow = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;
/// The type in which a T is computed: exact for products of i32, modular for i64.
template <class T>
using wide =
    std::conditional_t<narrow<T>, float, std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>>;

template <class T>
T rounded(wide<T> x) {
  if constexpr (std::is_same_v<T, bool>) return x != 0;
  else return static_cast<T>(x);
}
template <class T>
bool is_less(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return !a && b;
  else if constexpr (narrow<T>) return static_cast<float>(a) < static_cast<float>(b);
  else return a < b;
}
template <class T>
T larger(T a, T b) {
  return a != a || is_less(b, a) ? a : b;
}
template <class T>
T smaller(T a, T b) {
  return a != a || is_less(a, b) ? a : b;
}

template <class T>
std::vector<T> samples() {
  if constexpr (std::is_same_v<T, bool>) return {false, true, true, false, true};
  else if constexpr (std::is_same_v<T, u8>) return {0, 1, 2, 100, 128, 200, 254, 255};
  else if constexpr (std::is_integral_v<T>)
    return {0,
            1,
            -1,
            2,
            77,
            -100,
            std::numeric_limits<T>::max(),
            std::numeric_limits<T>::min(),
            std::numeric_limits<T>::max() - 1};
  else {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<T> v;
    for (float x :
         {0.0f, -0.0f, 1.0f, -1.0f, 0.1f, 1.0009765f, -3.14159f, 250.6f, 65504.0f, 2e-5f, inf, -inf, NAN})
      v.push_back(T(x));
    return v;
  }
}

/// The elements of [rows, columns]: samples of which two seeds give all pairs.
template <class T>
std::vector<T> elements(index_t count, index_t seed) {
  const std::vector<T> s = samples<T>();
  std::vector<T> v;
  for (index_t i = 0; i < count; ++i)
    v.push_back(s[static_cast<std::size_t>((seed ? i : i / static_cast<index_t>(s.size())) %
                                           static_cast<index_t>(s.size()))]);
  return v;
}
template <class T, class Extents>
tensor<T, Extents> tensor_on(const device& d, const Extents& e, const std::vector<T>& v) {
  tensor<T, Extents> t(e, d);
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<u8> bytes(v.begin(), v.end());
    d->upload(t.state()->memory.data(), bytes.data(), bytes.size());
  } else {
    t.copy_from(v);
  }
  return t;
}

constexpr index_t count = 13 * 13 + 4;  // all pairs, and no multiple of a vector
using line = extents<dyn>;

template <class T, class F>
std::vector<T> each(const std::vector<T>& a, const std::vector<T>& b, F f) {
  std::vector<T> y;
  for (std::size_t i = 0; i < a.size(); ++i) y.push_back(f(a[i], b[i]));
  return y;
}

template <class T>
void check_arithmetic(context& c, const device& d) {
  CAPTURE(name_of(dtype_of<T>));
  const auto a = elements<T>(count, 0), b = elements<T>(count, 1);
  const auto x = tensor_on<T>(d, line{count}, a), y = tensor_on<T>(d, line{count}, b);
  tensor<T, line> sum(line{count}, d), product(line{count}, d), chain(line{count}, d), high(line{count}, d),
      low(line{count}, d);
  tensor<bool, line> less_than(line{count}, d), at_most(line{count}, d), same_as(line{count}, d);
  update(c,
         {sum.state(), product.state(), chain.state(), high.state(), low.state(), less_than.state(),
          at_most.state(), same_as.state()},
         bundled(x + y, x * y, (x + y) * y + y, maximum(x, y), minimum(x, y), x < y, less_equal(x, y),
                 equal(x, y)));
  const auto add = [](T p, T q) { return rounded<T>(static_cast<wide<T>>(p) + static_cast<wide<T>>(q)); };
  const auto multiply = [](T p, T q) {
    return rounded<T>(static_cast<wide<T>>(p) * static_cast<wide<T>>(q));
  };
  CHECK(same(sum, each(a, b, add)));
  CHECK(same(product, each(a, b, multiply)));
  // Each value of a chain is one of T: f32 and f64 may contract, so their chains are not compared bit by bit.
  if constexpr (!std::is_floating_point_v<T>)
    CHECK(same(chain, each(a, b, [&](T p, T q) { return add(multiply(add(p, q), q), q); })));
  CHECK(same(high, each(a, b, larger<T>)));
  CHECK(same(low, each(a, b, smaller<T>)));
  std::vector<bool> less_bits, most_bits, equal_bits;
  for (std::size_t i = 0; i < a.size(); ++i) {
    less_bits.push_back(is_less<T>(a[i], b[i]));
    most_bits.push_back(is_less<T>(a[i], b[i]) || a[i] == b[i]);
    equal_bits.push_back(a[i] == b[i]);
  }
  CHECK(same(less_than, less_bits));
  CHECK(same(at_most, most_bits));
  CHECK(same(same_as, equal_bits));
  if constexpr (!std::is_same_v<T, bool>) {
    const auto subtract = [](T p, T q) {
      return rounded<T>(static_cast<wide<T>>(p) - static_cast<wide<T>>(q));
    };
    const auto negate = [](T p, T) { return rounded<T>(-static_cast<wide<T>>(p)); };
    const auto size = [](T p, T) {
      const bool below = is_less(p, T(0)) || (p == T(0) && std::signbit(static_cast<double>(p)));
      return below ? rounded<T>(-static_cast<wide<T>>(p)) : p;
    };
    update(c, {sum.state(), high.state(), low.state()}, bundled(x - y, -x, abs(x)));
    CHECK(same(sum, each(a, b, subtract)));
    CHECK(same(high, each(a, b, negate)));
    CHECK(same(low, each(a, b, size)));
  }
}

/// A type with all values of T.
template <class T>
using as_seen = std::conditional_t<std::is_integral_v<T>, i64, double>;

template <class To, class From>
To cast_of(From from) {
  const auto x = [&] {
    if constexpr (narrow<From>) return static_cast<float>(from);
    else return from;
  }();
  using X = std::remove_const_t<decltype(x)>;
  if constexpr (std::is_same_v<To, bool>) return x != X{};
  else if constexpr (narrow<To>) return To(static_cast<float>(x));
  else if constexpr (std::is_floating_point_v<X> && std::is_integral_v<To>) {
    if (x != x) return 0;
    if (static_cast<long double>(x) >= static_cast<long double>(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    if (static_cast<long double>(x) <= static_cast<long double>(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    return static_cast<To>(x);
  } else return static_cast<To>(x);
}

/// The results of `cast`: in memory, and through a wider type without going through memory.
template <class From, class... To>
void check_casts(context& c, const device& d, const std::vector<From>& a) {
  CAPTURE(name_of(dtype_of<From>));
  const auto size = static_cast<index_t>(a.size());
  const auto x = tensor_on<From>(d, line{size}, a);
  const tensor_list stored{make_state(d, line{size}, dtype_of<To>)...},
      seen{make_state(d, line{size}, dtype_of<as_seen<To>>)...};
  update(c, stored, bundled(cast<To>(x)...));
  update(c, seen, bundled(cast<as_seen<To>>(cast<To>(x))...));
  std::size_t at = 0;
  const auto check = [&]<class T>(T) {
    CAPTURE(name_of(dtype_of<T>));
    std::vector<T> to;
    std::vector<as_seen<T>> wider;
    for (From v : a) {
      to.push_back(cast_of<T>(v));
      wider.push_back(static_cast<as_seen<T>>(cast_of<T>(v)));
    }
    CHECK(same(tensor<T, line>(stored[at]), to));
    CHECK(same(tensor<as_seen<T>, line>(seen[at++]), wider));
  };
  (check(To{}), ...);
}
template <class From>
void check_all_casts(context& c, const device& d) {
  std::vector<From> a = samples<From>();
  if constexpr (!std::is_integral_v<From>)
    for (double v : {255.9, 256.0, -0.9, 1e10, -1e10, 2147483647.0, 2147483648.0, 9.3e18, -9.3e18, 1e300})
      a.push_back(From(static_cast<wide<From>>(v)));
  check_casts<From, double, float, bfloat16, float16, i64, i32, u8, bool>(c, d, a);
}

/// Extrema and sums over rows, and over columns, of finite elements.
template <class T>
void check_folds(context& c, const device& d) {
  CAPTURE(name_of(dtype_of<T>));
  constexpr index_t rows = 5, columns = 19;
  std::vector<T> v;
  for (index_t i = 0; i < rows * columns; ++i)
    v.push_back(T(std::is_same_v<T, bool> ? i % 19 == 3 || i / 19 == 2
                                          : (i * 7) % 23 + (std::is_same_v<T, u8> ? 200 : 0)));
  const auto x = tensor_on<T>(d, extents<dyn, columns>{rows, columns}, v);
  using S = std::conditional_t<std::is_integral_v<T>, i64, T>;
  std::vector<T> row_high, row_low, high(columns, v[0]), low(columns, v[0]);
  std::vector<double> sums(columns, 0.0), row_sums;
  for (index_t r = 0; r < rows; ++r) {
    T most = v[static_cast<std::size_t>(r * columns)], least = most;
    double sum = 0;
    for (index_t k = 0; k < columns; ++k) {
      const T e = v[static_cast<std::size_t>(r * columns + k)];
      most = larger(most, e);
      least = smaller(least, e);
      sum += static_cast<double>(e);
      auto column = static_cast<std::size_t>(k);
      sums[column] += static_cast<double>(e);
      high[column] = r == 0 ? e : larger<T>(high[column], e);
      low[column] = r == 0 ? e : smaller<T>(low[column], e);
    }
    row_high.push_back(most);
    row_low.push_back(least);
    row_sums.push_back(sum);
  }
  const auto as_sum = [](const std::vector<double>& from) {
    std::vector<S> to;
    for (double s : from) to.push_back(S(static_cast<wide<S>>(s)));
    return to;
  };
  using values = tensor<T, line>;
  const values of_rows[] = {values(line{rows}, d), values(line{rows}, d)};
  const values of_columns[] = {values(line{columns}, d), values(line{columns}, d)};
  tensor<S, line> row_sum(line{rows}, d), column_sum(line{columns}, d);
  update(c, {of_rows[0].state(), of_rows[1].state(), row_sum.state()},
         bundled(amax(x, dims<1>), amin(x, dims<1>), sum(x, dims<1>)));
  update(c, {of_columns[0].state(), of_columns[1].state(), column_sum.state()},
         bundled(amax(x, dims<0>), amin(x, dims<0>), sum(x, dims<0>)));
  CHECK(same(of_rows[0], row_high));
  CHECK(same(of_rows[1], row_low));
  CHECK(same(of_columns[0], high));
  CHECK(same(of_columns[1], low));
  CHECK(same(row_sum, as_sum(row_sums)));
  CHECK(same(column_sum, as_sum(sums)));
}

template <class F>
void for_each_type(F f) {
  f(double{});
  f(float{});
  f(bfloat16{});
  f(float16{});
  f(i64{});
  f(i32{});
  f(u8{});
  f(bool{});
}

/// op(x) on narrow elements: the result for the same numbers in f32, rounded once.
template <class T, class F>
void check_rounded_once(context& c, const device& d, F f) {
  std::vector<T> v;
  for (int i = 0; i < 7 * 37; ++i) v.push_back(T(static_cast<float>(i % 31) * 0.37f - 4.0f));
  const auto x = tensor_on<T>(d, extents<dyn, 37>{7, 37}, v);
  CHECK(same(eval(f(x), c), eval(cast<T>(f(eval(cast<float>(x), c))), c).to_vector()));
}

}  // namespace

TEST_CASE("types: arithmetic, extrema and comparisons of every type") {
  on_every_device(
      [](context& c, const device& d) { for_each_type([&]<class T>(T) { check_arithmetic<T>(c, d); }); });
}

TEST_CASE("types: casts between all types, also of values that no memory holds") {
  on_every_device(
      [](context& c, const device& d) { for_each_type([&]<class T>(T) { check_all_casts<T>(c, d); }); });
}

TEST_CASE("types: folds of rows and columns of every type") {
  on_every_device(
      [](context& c, const device& d) { for_each_type([&]<class T>(T) { check_folds<T>(c, d); }); });
}

TEST_CASE("types: the value of a narrow expression is the same fused and in steps") {
  on_every_device([](context& c, const device& d) {
    const auto check = [&]<class T>(T) {
      const auto x = tensor_on<T>(d, line{count}, elements<T>(count, 0)),
                 y = tensor_on<T>(d, line{count}, elements<T>(count, 1));
      const auto sum = eval(x + y, c), square = eval(sum * sum, c), root = eval(sqrt(abs(square)), c);
      CHECK(same(eval(sqrt(abs(let(x + y, [](auto s) { return s * s; }))), c), root.to_vector()));
    };
    check(bfloat16{});
    check(float16{});
  });
}

TEST_CASE("types: a formula of narrow operands is computed in f32 and rounded once") {
  on_every_device([](context& c, const device& d) {
    check_rounded_once<bfloat16>(c, d, [](auto x) { return gelu(x); });
    check_rounded_once<float16>(c, d, [](auto x) { return softmax(x); });
    check_rounded_once<bfloat16>(c, d, [](auto x) { return logsumexp(x, dims<0, 1>); });
    check_rounded_once<float16>(c, d, [](auto x) { return mse_loss(x, flip<0>(x)); });
    check_rounded_once<bfloat16>(c, d,
                                 [](auto x) { return layer_norm(x, slice<0, 0, 1>(x), slice<0, 1, 2>(x)); });
    check_rounded_once<bfloat16>(c, d, [](auto x) { return rms_norm(x, slice<0, 0, 1>(x)); });
  });
}

TEST_CASE("types: sums and means of more than f16 can hold") {
  on_every_device([](context& c, const device& d) {
    const auto x = full<float16>(extents<dyn, 3>{70000, 3}, float16(1.0f), d);
    CHECK(static_cast<float>(eval(mean(x), c).item()) == 1);
    CHECK(static_cast<float>(eval(mse_loss(x, x * x + x), c).item()) == 1);
    CHECK(std::isinf(static_cast<float>(eval(sum(x), c).item())));
    const auto labels = full<i32>(extents<dyn>{70000}, 1, d);
    CHECK(std::abs(static_cast<float>(eval(cross_entropy(x, labels), c).item()) - std::log(3.0f)) < 1e-3f);
    const auto b =
        full<bfloat16>(extents<dyn, 3>{1000, 3}, bfloat16(1.0f), d);  // ones added in bf16 stop at 256
    CHECK(static_cast<float>(eval(sum(b, dims<0>), c).to_vector()[1]) == 1000);
    CHECK(static_cast<float>(eval(sum(transpose(b), dims<1>), c).to_vector()[2]) == 1000);
  });
}

TEST_CASE("types: integers beside numbers are exact") {
  on_every_device([](context& c, const device& d) {
    const i64 large = (i64{1} << 53) + 1;
    const auto x = tensor_on<i64>(d, line{3}, {0, 1, large});
    CHECK(eval(x + large, c).to_vector() == std::vector<i64>{large, large + 1, 2 * large});
    CHECK(same(eval(equal(x, large), c), {false, false, true}));
    CHECK(same(eval(x < large, c), {true, true, false}));
    const i64 lowest = std::numeric_limits<i64>::min();
    CHECK(eval(maximum(x * 0 + lowest, lowest + 1), c).to_vector() == std::vector<i64>(3, lowest + 1));
  });
}

TEST_CASE("types: an integer beside a number of a formula is that number") {
  on_every_device([](context& c, const device& d) {
    const auto x = tensor_on<i32>(d, line{3}, {-1, 0, 2});
    CHECK(same(eval(relu(x), c), {0, 0, 2}));
    CHECK(same(eval(square(x), c), {1, 0, 4}));
    static_assert(std::is_same_v<typename decltype(eval(gelu(x), c))::value_type, float>);
    CHECK(eval(gelu(x), c).to_vector() == eval(gelu(cast<float>(x)), c).to_vector());
    CHECK(eval(sigmoid(x), c).to_vector() == eval(sigmoid(cast<float>(x)), c).to_vector());
    const auto bytes = tensor_on<u8>(d, line{2}, {3, 200});
    CHECK(same(eval(square(bytes), c), {9, static_cast<u8>(200 * 200)}));
    // An ignored label outside of the type equals no label.
    const auto labels = tensor_on<u8>(d, line{2}, {156, 1});
    const auto logits = randn<float>(extents<2, 200>{}, {.seed = 1}, d);
    CHECK(eval(cross_entropy<reduction_kind::none>(logits, labels), c).to_vector()[0] > 0);
  });
}

TEST_CASE("types: gradients of narrow leaves") {
  on_every_device([](context& c, const device& d) {
    const auto check = [&]<class T>(T) {
      std::vector<T> v;
      for (int i = 0; i < 37; ++i) v.push_back(T(static_cast<float>(i) * 0.25f));
      variable<T, line> x(tensor_on<T>(d, line{37}, v));
      tape steps(c);
      const auto once = steps.eval(sum(square(x)));
      const auto twice = steps.eval(sum(x * 3.0f));
      const auto both = steps.eval(cast<T>(once + twice));
      steps.backward(both);
      REQUIRE(x.state()->grad->type == dtype_of<T>);
      std::vector<T> expected;
      for (T e : v) expected.push_back(T(static_cast<float>(T(2 * static_cast<float>(e))) + 3.0f));
      CHECK(same(x.grad(), expected));
    };
    check(bfloat16{});
    check(float16{});
  });
}

TEST_CASE("types: rows that an index names often are added in f32") {
  on_every_device([](context& c, const device& d) {
    variable<bfloat16, extents<2, 3>> table(full<bfloat16>(extents<2, 3>{}, bfloat16(1.0f), d));
    const auto index = full<i32>(extents<dyn>{600}, 1, d);
    tape steps(c);
    steps.backward(steps.eval(sum(embedding(table, index))));
    CHECK(same(table.grad(), {bfloat16(0.f), bfloat16(0.f), bfloat16(0.f), bfloat16(600.f), bfloat16(600.f),
                              bfloat16(600.f)}));
    const auto zeros = full<float16>(extents<2>{}, float16(0.0f), d);
    const auto ones = full<float16>(extents<3000>{}, float16(1.0f), d);
    const auto places = full<i64>(extents<3000>{}, 1, d);
    CHECK(same(eval(scatter_add<0>(zeros, places, ones), c), {float16(0.f), float16(3000.f)}));
  });
}

TEST_CASE("types: gradients of what is broadcast are added up over a batch in f32") {
  on_every_device([](context& c, const device& d) {
    // 1.0078125^2 - 1.015625 is 2^-14, of products that bf16 rounds to the same number
    const auto check = [&]<class Images, class Weight>(Images images, Weight weight, auto f) {
      const auto of = [&](std::vector<float> v) {
        std::vector<bfloat16> repeated;
        const index_t size = static_cast<shape>(images).size();
        for (index_t i = 0; i < size; ++i) repeated.emplace_back(v[static_cast<std::size_t>(2 * i / size)]);
        return tensor_on<bfloat16>(d, images, repeated);
      };
      const auto x = of({1.0078125f, -1.0f}), g = of({1.0078125f, 1.015625f});
      variable<bfloat16, Weight> w(full<bfloat16>(weight, bfloat16(1.0f), d));
      tape steps(c);
      steps.backward(steps.eval(f(w, x)), g);
      CHECK(same(w.grad(),
                 std::vector<bfloat16>(static_cast<std::size_t>(w.extents().size()), bfloat16(0x1p-14f))));
    };
    using weight = extents<1, 1, 1, 1>;
    check(extents<2, 1, 1, 1>{}, weight{}, [](auto w, auto x) { return conv2d(x, w); });
    check(extents<2, 1, 1, 1>{}, weight{}, [](auto w, auto x) { return conv_transpose2d(x, w); });
    check(extents<2, 4, 1, 1>{}, extents<4, 2, 1, 1>{},
          [](auto w, auto x) { return conv2d<conv_options{.groups = 2}>(x, w); });
    check(extents<2, 1, 1>{}, extents<1, 1>{}, [](auto w, auto x) { return matmul(w, x); });
    check(extents<2, 1, 1>{}, extents<1, 1>{}, [](auto w, auto x) { return matmul(x, w); });
    check(extents<2, 1, 1>{}, extents<1, 1, 1>{}, [](auto w, auto x) { return matmul(x, w); });
  });
}

using bits = tensor<bool, line>;
static_assert(!accepts<op::subtract, attr<>, bits, bits> && !accepts<op::negate, attr<>, bits> &&
              !accepts<op::abs, attr<>, bits>);
static_assert(!accepts<op::relu, attr<>, bits> && !accepts<op::square, attr<>, bits> &&
              !accepts<op::arg_extremum, attr<0, 0>, bits>);
static_assert(accepts<op::subtract, attr<>, bits, tensor<i32, line>> && accepts<op::sign, attr<>, bits>);

TEST_CASE("types: a handle of another element type is refused by name") {
  const auto floats = full<float>(extents<4>{}, 1.0f);
  using doubles = tensor<double, extents<4>>;
  CHECK_THROWS_WITH_AS(doubles(floats.state()),
                       "weft: a tensor of f64 cannot have the elements of a tensor of f32", value_error);
  CHECK_THROWS_AS(flat_view<bfloat16>(floats.state()), value_error);
  CHECK_THROWS_AS(row_view<double>(floats.state()), value_error);
  CHECK_THROWS_WITH_AS(doubles(std::shared_ptr<tensor_state>()),
                       "weft: a tensor of type f64 [4] is used before it has elements, or after it was moved",
                       value_error);
  CHECK_THROWS_AS(flat_view<float>(nullptr), value_error);
}

TEST_CASE("types: sums of gradients name types and shapes that do not fit") {
  const auto f = full<float>(extents<4>{}, 1.0f);
  const auto shorter = full<float>(extents<3>{}, 1.0f);
  const auto b = full<bfloat16>(extents<4>{}, bfloat16(1.0f));
  backend& cpu = *default_device();
  CHECK_THROWS_WITH_AS(runtime::add(cpu, *f.state(), *b.state(), *f.state()),
                       "weft: add: elements of f32 and bf16", value_error);
  CHECK_THROWS_AS(runtime::add(cpu, *f.state(), *shorter.state(), *f.state()), shape_error);
  const auto whole = full<i32>(extents<4>{}, 1);
  CHECK_THROWS_AS(runtime::add(cpu, *whole.state(), *whole.state(), *whole.state()), value_error);
  CHECK_THROWS_AS(runtime::convert(cpu, *whole.state(), *f.state()), value_error);
  CHECK_THROWS_AS(runtime::scale(cpu, *b.state(), *full<bfloat16>(extents<>{}, bfloat16(2.0f)).state(), 1.5),
                  value_error);
  const auto two = full<float>(extents<>{}, 2.0f);
  runtime::scale(cpu, *b.state(), *two.state(), 1.5);
  CHECK(same(b, std::vector<bfloat16>(4, bfloat16(3.0f))));
}
