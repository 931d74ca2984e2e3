// SPDX-License-Identifier: MIT
// The bits of a result element depend only on its operands' elements: a tensor computed as a whole and one
// computed in pieces of every length at every offset are bitwise identical, and only the pieces are read and
// written.
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <weft/weft.hpp>

using namespace weft;

namespace {
constexpr index_t whole_size = 79, longest = 33;

template <class T>
using line = tensor<T, extents<dyn>>;

/// Numbers of both signs between 2^-7 and 2^3 with all fraction bits in use, and 0.
template <class T>
line<T> sample(std::uint64_t seed, index_t size = whole_size) {
  return generate<T>(extents<dyn>{size}, [seed](index_t i) {
    const std::uint64_t bits = mix(seed, static_cast<std::uint64_t>(i));
    const double fraction = 1 + static_cast<double>(bits >> 12) * 0x1p-52;
    return i == 40 ? 0.0
                   : (bits & 1 ? -fraction : fraction) * std::exp2(static_cast<double>(bits >> 1 & 7) - 5);
  });
}
template <class T>
line<T> part(const line<T>& t, index_t first, index_t count) {
  return line<T>(part_of(*t.state(), first, {1, {count}}));
}

/// All NaNs count as equal: the compiler chooses which of two operands' NaN bits the result has.
template <class T>
bool same(const T& a, const T& b) {
  if constexpr (!std::is_integral_v<T>)
    if (a != a && b != b) return true;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// How many elements of the `Count` values of `f`, of element type Out, differ if they are computed in
/// pieces.
template <class Out, int Count, class T, class F>
index_t differences(F f) {
  const line<T> x = sample<T>(1), y = sample<T>(2), z = sample<T>(3);
  const Out untouched = static_cast<Out>(37.0f);
  std::vector<line<Out>> right, got;
  tensor_list targets;
  for (int i = 0; i < Count; ++i) {
    right.push_back(full<Out>(extents<dyn>{whole_size}, untouched));
    got.push_back(full<Out>(extents<dyn>{whole_size}, untouched));
    targets.push_back(right.back().state());
  }
  update(default_context(), targets, f(x, y, z));
  index_t wrong = 0;
  for (index_t count = 1; count <= longest; ++count)
    for (index_t first = 0; first + count <= whole_size; ++first) {
      targets.clear();
      for (int i = 0; i < Count; ++i) {
        std::fill_n(got[static_cast<std::size_t>(i)].mutable_data(), whole_size, untouched);
        targets.push_back(part(got[static_cast<std::size_t>(i)], first, count).state());
      }
      update(default_context(), targets,
             f(part(x, first, count), part(y, first, count), part(z, first, count)));
      for (std::size_t i = 0; i < Count; ++i)
        for (index_t k = 0; k < whole_size; ++k)
          wrong += !same(got[i].data()[k], k >= first && k < first + count ? right[i].data()[k] : untouched);
    }
  return wrong;
}
}  // namespace

TEST_CASE_TEMPLATE("pieces: primitives", T, float, double, bfloat16, float16) {
  CHECK(differences<T, 9, T>([](auto x, auto, auto) {
          return bundled(exp(x), log(x), log1p(x), expm1(x), sqrt(x), rsqrt(x), tanh(x), erf(x), atan(x));
        }) == 0);
  CHECK(differences<T, 7, T>([](auto x, auto, auto) {
          return bundled(sin(x), cos(x), abs(x), sign(x), floor(x), round(x), -x);
        }) == 0);
  CHECK(differences<T, 8, T>([](auto x, auto y, auto z) {
          return bundled(x + y, x - y, x * y, x / y, maximum(x, y), minimum(x, y), pow(x, y),
                         where(logical_or(x < y, logical_not(y <= z)), x, z));
        }) == 0);
}

TEST_CASE_TEMPLATE("pieces: activations", T, float, double, bfloat16, float16) {
  CHECK(differences<T, 8, T>([](auto x, auto y, auto) {
          return bundled(relu(x), sigmoid(x), silu(x), gelu_tanh(x), softplus(x), leaky_relu(x, y), elu(x, y),
                         square(x));
        }) == 0);
  CHECK(differences<T, 1, T>([](auto x, auto, auto) { return gelu(x); }) == 0);
}

TEST_CASE_TEMPLATE("pieces: products and sums, which compilers contract", T, float, double, bfloat16,
                   float16) {
  CHECK(differences<T, 1, T>([](auto x, auto y, auto z) { return x * y + sqrt(z); }) == 0);
  CHECK(differences<T, 1, T>([](auto x, auto y, auto z) { return cast<T>(pow(x, 2) - log1p(y) * z); }) == 0);
  CHECK(differences<T, 4, T>([](auto x, auto y, auto z) {
          return bundled(x * y - z * y, tanh(x) * y + z, erf(x) - exp(y) * z, where(x < y, x * y, z) + x * z);
        }) == 0);
}

TEST_CASE_TEMPLATE("pieces: casts", T, float, double, bfloat16, float16) {
  const auto cast_twice = [](auto x, auto, auto) {
    return cast<T>(cast<std::int32_t>(x)) + cast<T>(cast<bool>(x));
  };
  CHECK(differences<T, 1, T>(cast_twice) == 0);
  CHECK(differences<float, 1, T>([](auto x, auto, auto) { return cast<float>(x); }) == 0);
  CHECK(differences<double, 1, T>([](auto x, auto, auto) { return cast<double>(x); }) == 0);
  CHECK(differences<bfloat16, 1, T>([](auto x, auto, auto) { return cast<bfloat16>(x); }) == 0);
  CHECK(differences<float16, 1, T>([](auto x, auto, auto) { return cast<float16>(x); }) == 0);
  CHECK(differences<std::int64_t, 1, T>([](auto x, auto, auto) { return cast<std::int64_t>(x); }) == 0);
  CHECK(differences<std::int32_t, 1, T>([](auto x, auto, auto) { return cast<std::int32_t>(x); }) == 0);
  CHECK(differences<std::uint8_t, 1, T>([](auto x, auto, auto) { return cast<std::uint8_t>(abs(x)); }) == 0);
  CHECK(differences<bool, 1, T>([](auto x, auto y, auto) { return x < y; }) == 0);
}

TEST_CASE_TEMPLATE("pieces: operands read by strides", T, float, double, bfloat16, float16) {
  const auto matrix = [](const line<T>& t, index_t first, index_t count) {
    return tensor<T, extents<dyn, 3>>(part_of(*t.state(), 3 * first, {2, {count, 3}}));
  };
  const auto across = [](auto x, auto y) { return transpose(x) * transpose(y) + gelu(transpose(x)); };
  const line<T> x = sample<T>(1, 3 * longest), y = sample<T>(2, 3 * longest);
  const auto right = eval(across(matrix(x, 0, longest), matrix(y, 0, longest))).to_vector();
  for (index_t count = 1; count <= longest; ++count)
    for (index_t first = 0; first + count <= longest; ++first) {
      const auto got = eval(across(matrix(x, first, count), matrix(y, first, count))).to_vector();
      bool equal = true;
      for (index_t row = 0; row < 3; ++row)
        for (index_t i = 0; i < count; ++i)
          equal = equal && same(got[static_cast<std::size_t>(row * count + i)],
                                right[static_cast<std::size_t>(row * longest + first + i)]);
      REQUIRE(equal);
    }
}

TEST_CASE_TEMPLATE("pieces: rows of every length, whatever rows stand beside them", T, float, double,
                   bfloat16, float16) {
  constexpr index_t rows = 5;
  const auto f = [](auto x) {
    return softmax(x) +
           apply<op::standardize, attr<number_bits(1e-5)[0]>>(x) * logsumexp(x, dims<1>, keepdim) -
           amax(x * x, dims<1>, keepdim);
  };
  for (index_t columns = 1; columns <= 2 * longest; ++columns) {
    const line<T> x = sample<T>(4, rows * columns);
    const auto matrix = [&](index_t first, index_t count) {
      return tensor<T, extents<dyn, dyn>>(part_of(*x.state(), first * columns, {2, {count, columns}}));
    };
    const auto right = eval(f(matrix(0, rows))).to_vector();
    for (index_t first = 0; first < rows; ++first) {
      const auto got = eval(f(matrix(first, rows - first))).to_vector();
      bool equal = true;
      for (std::size_t i = 0; i < got.size(); ++i)
        equal = equal && same(got[i], right[static_cast<std::size_t>(first * columns) + i]);
      REQUIRE(equal);
    }
  }
}

namespace {
/// The parameter and state after `steps` steps with different gradients, from element `first` on.
template <class Optimizer>
std::vector<float> trained(Optimizer optimizer, index_t first, index_t count,
                           std::initializer_list<const char*> kinds) {
  const auto taken = [&](std::uint64_t seed) {
    const auto all = sample<float>(seed, 3840);
    return part(all, first, count).to(default_device());
  };
  const auto p = taken(1);
  const line<float> own = eval(p + 0.0f);
  for (std::uint64_t step = 0; step < 3; ++step) {
    own.state()->grad = taken(10 + step).state();
    update_parameters(optimizer, state_dict_t{{"p", own.state()}}, 0.25, default_context());
  }
  std::vector<float> all = own.to_vector();
  for (const char* kind : kinds) {
    const auto more = line<float>(optimizer.state.find(kind, "p")).to_vector();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

template <class Optimizer>
index_t optimizer_differences(const Optimizer& optimizer, std::initializer_list<const char*> kinds) {
  constexpr index_t all = 3840;
  const auto right = trained(optimizer, 0, all, kinds);
  index_t wrong = 0;
  for (const index_t piece : {7, 15, 16, 33, 240})
    for (index_t first = 0; first < all; first += piece) {
      const index_t count = std::min(piece, all - first);
      const auto got = trained(optimizer, first, count, kinds);
      for (std::size_t i = 0; i < got.size(); ++i)
        wrong += !same(got[i], right[i / static_cast<std::size_t>(count) * all +
                                     static_cast<std::size_t>(first) + i % static_cast<std::size_t>(count)]);
    }
  return wrong;
}
}  // namespace

TEST_CASE("pieces: three steps of every optimiser") {
  CHECK(optimizer_differences(sgd{.lr = 0.1, .weight_decay = 0.01}, {}) == 0);
  CHECK(optimizer_differences(sgd{.lr = 0.1, .momentum = 0.9}, {"momentum"}) == 0);
  CHECK(optimizer_differences(sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}, {"momentum"}) == 0);
  CHECK(optimizer_differences(adam{.lr = 0.01}, {"exp_avg", "exp_avg_sq"}) == 0);
  CHECK(optimizer_differences(adamw{.lr = 0.01}, {"exp_avg", "exp_avg_sq"}) == 0);
  CHECK(optimizer_differences(amsgrad{adamw{.lr = 0.01}}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) == 0);
}

namespace {
/// Memory between two inaccessible pages.
class guarded_page {
 public:
  guarded_page() : bytes_(sysconf(_SC_PAGESIZE)) {
    pages_ = static_cast<char*>(
        mmap(nullptr, static_cast<std::size_t>(3 * bytes_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(pages_ != MAP_FAILED);
    REQUIRE(mprotect(begin(), static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE) == 0);
  }
  guarded_page(const guarded_page&) = delete;
  guarded_page& operator=(const guarded_page&) = delete;
  ~guarded_page() { munmap(pages_, static_cast<std::size_t>(3 * bytes_)); }
  char* begin() { return pages_ + bytes_; }
  char* end() { return begin() + bytes_; }

 private:
  index_t bytes_;
  char* pages_;
};

/// y = -x and the largest element, for the elements [begin, end) of a row.
template <dtype T>
using negating = lower::cpu_kernel<
    lower::instruction{lower::sweep}.encoded(), lower::instruction{lower::load, T, 0, 1}.encoded(),
    lower::instruction{op::number_of_op<op::negate>, lower::register_type(T), 1}.encoded(),
    lower::instruction{lower::store, T, 1, 2}.encoded(),
    lower::instruction{lower::fold_max, lower::register_type(T), 2}.encoded(),
    lower::instruction{lower::end}.encoded(), lower::instruction{lower::store_row, T, 2, 4}.encoded()>;

template <class T>
void run_beside_guards(index_t count, index_t stride, bool at_end) {
  guarded_page in, out;
  const index_t span = (count - 1) * (stride < 0 ? -stride : stride) + 1;
  T* const x = (at_end ? reinterpret_cast<T*>(in.end()) - span : reinterpret_cast<T*>(in.begin())) +
               (stride < 0 ? span - 1 : 0);
  T* const y = at_end ? reinterpret_cast<T*>(out.end()) - count : reinterpret_cast<T*>(out.begin());
  T largest{};
  for (index_t i = 0; i < count; ++i) x[i * stride] = static_cast<T>(static_cast<float>(i + 3));
  kernel_args args{};
  args.arguments = 3;
  args.extent[0] = count;
  args.pointer[0] = x;
  args.stride[0][0] = stride;
  args.pointer[1] = y;
  args.pointer[2] = &largest;
  negating<dtype_of<T>>::run(args, {0, 1, 0, count, nullptr});
  bool right = same(largest, static_cast<T>(-3.0f));
  for (index_t i = 0; i < count; ++i) right = right && same(y[i], static_cast<T>(-static_cast<float>(i + 3)));
  CHECK_MESSAGE(right, count << " elements, stride " << stride);
}
}  // namespace

TEST_CASE_TEMPLATE("pieces: memory beside the operands is not touched", T, float, double, bfloat16, float16,
                   std::int32_t, std::int64_t) {
  for (const bool at_end : {false, true})
    for (const index_t stride : {1, 3, -1, -2})
      for (index_t count = 1; count <= longest; ++count) run_beside_guards<T>(count, stride, at_end);
}
