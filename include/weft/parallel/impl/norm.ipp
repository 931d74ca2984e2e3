// SPDX-License-Identifier: MIT
// Definitions of <weft/parallel/norm.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include <weft/base/config.hpp>
#include <weft/optim/clip.hpp>
#include <weft/parallel/norm.hpp>
#include <weft/run/joint_launch.hpp>

namespace weft {
namespace parallel {
namespace detail {

/// The sums of squares of all rows, of type T.
template <class T>
std::shared_ptr<tensor_state> all_row_sums_in(context& c, const tensor_list& gradients) {
  tensor_list all;
  index_t total = 0;
  for (const auto& g : gradients) {
    const index_t size = g->extents.size(), count = g->extents.order > 1 ? g->extents[0] : size;
    if (size == 0) continue;
    all.push_back(alias_of(*g));
    all.back()->extents = {2, {count, size / count}};
    total += count;
  }
  const auto joined = make_state(c.where(), {1, {total}}, dtype_of<T>);
  runtime::joint_launch together(c, "gradient norm");
  index_t first = 0;
  for (const auto& g : all) {
    auto e = sum(square(cast<T>(tensor<float, extents<dyn, dyn>>(g))), dims<-1>);
    const runtime::executable& p = runtime::executable_of<runtime::value_program<decltype(e)>>;
    const runtime::operands o = runtime::operands_of(e);
    tensor_list sums{part_of(*joined, first, {1, {g->extents[0]}})};
    runtime::execute(c, runtime::specialization_of(c, p, runtime::resolve_symbols(p.plan, o.leaves, o.sizes)),
                     o.leaves, o.numbers, sums, {}, {}, &together);
    first += g->extents[0];
  }
  together.launch();
  return joined;
}

WEFT_DEFINE std::shared_ptr<tensor_state> all_row_sums(context& c, const tensor_list& gradients) {
  return c.where()->has_f64() ? all_row_sums_in<double>(c, gradients) : all_row_sums_in<float>(c, gradients);
}

// The sum is an integer in units of 2^(exponent - 96), for the exponent of the largest number.
inline constexpr int sum_bits = 96;
inline constexpr std::int64_t no_exponent = -(1 << 19), not_finite = 1 << 20, no_values = no_exponent - 1;
__extension__ typedef unsigned __int128 wide_sum;
using sum_limbs = std::array<std::int64_t, 4>;  // limbs of 32 bits, which sums over ranks may exceed

inline std::int64_t largest_exponent(std::span<const double> values) {
  std::int64_t largest = no_exponent;
  for (double v : values) {
    int exponent = no_exponent;
    if (v > 0 && std::isfinite(v)) std::frexp(v, &exponent);
    largest = std::max<std::int64_t>(largest, std::isfinite(v) ? exponent : not_finite);
  }
  return largest;
}
inline sum_limbs limbs_of(std::span<const double> values, int lowest_bit) {
  wide_sum total = 0;
  for (double v : values) total += static_cast<wide_sum>(std::ldexp(v, -lowest_bit));
  sum_limbs limbs{};
  for (int k = 0; k < 4; ++k)
    limbs[static_cast<std::size_t>(k)] = static_cast<std::int64_t>(total >> (32 * k) & 0xffffffffu);
  return limbs;
}
inline double number_of(const sum_limbs& limbs, int lowest_bit) {
  wide_sum total = 0;
  for (int k = 4; k-- > 0;) total += static_cast<wide_sum>(limbs[static_cast<std::size_t>(k)]) << (32 * k);
  double sum = 0;
  for (int k = 4; k-- > 0;)
    sum += std::ldexp(static_cast<double>(static_cast<std::uint32_t>(total >> (32 * k))), 32 * k);
  return std::ldexp(sum, lowest_bit);
}

WEFT_DEFINE std::optional<double> exact_sum(std::span<const double> values, communicator& ranks,
                                            const comm_options& o) {
  std::int64_t largest = values.empty() ? no_values : largest_exponent(values);
  ranks.all_reduce(std::span(&largest, 1), reduction::maximum, o).wait();
  if (largest == not_finite) return std::nan("");
  const int lowest_bit = static_cast<int>(largest) - sum_bits;
  sum_limbs limbs = limbs_of(values, lowest_bit);
  ranks.all_reduce(std::span(limbs), reduction::sum, o).wait();
  if (largest == no_values) return {};
  return number_of(limbs, lowest_bit);
}

WEFT_DEFINE std::optional<double> norm_of_rows(context& c, const tensor_list& gradients, communicator& ranks,
                                               const comm_options& o) {
  const auto sums = all_row_sums(c, gradients);
  std::vector<double> rows(static_cast<std::size_t>(sums->extents.size()));
  if (sums->type == dtype::f64) {
    c.where()->download(rows.data(), sums->memory.data(), rows.size() * sizeof(double));
  } else {
    std::vector<float> narrow(rows.size());
    c.where()->download(narrow.data(), sums->memory.data(), narrow.size() * sizeof(float));
    std::copy(narrow.begin(), narrow.end(), rows.begin());
  }
  const std::optional<double> sum = exact_sum(rows, ranks, o);
  return sum ? std::optional(std::sqrt(*sum)) : std::nullopt;
}

/// The norm, and the factor for the update in f32 and f64, from the row sums. Attributes: the bits of the
/// factor of the mean, of the loss scale and of the limit of the norm.
inline void measure_on_cpu(const native_call& call) {
  const std::span values(call.in[0].data<const double>(), static_cast<std::size_t>(call.in[0].size()));
  const double mean = std::bit_cast<double>(call.at[0]), loss_scale = std::bit_cast<double>(call.at[1]),
               clip = std::bit_cast<double>(call.at[2]);
  const std::int64_t largest = largest_exponent(values);
  const int lowest_bit = static_cast<int>(largest) - sum_bits;
  const double sum =
      largest == not_finite ? std::nan("") : number_of(limbs_of(values, lowest_bit), lowest_bit);
  const double norm = std::sqrt(sum) / loss_scale * mean;
  const double scale = mean / loss_scale * (clip > 0 ? clip_factor(norm, clip) : 1.0);
  *call.out[0].data<double>() = norm;
  *call.out[1].data<float>() = static_cast<float>(scale);
  *call.out[2].data<double>() = scale;
}
inline constexpr const char* measure_text = R"(
NATIVE_KERNEL {
  SHARED_MEMORY long shared[GROUP_SIZE];
  GLOBAL const ulong* values = (GLOBAL const ulong*)in0_data;
  long n = in0_size, largest = -(1l << 19), not_finite = 1l << 20;
#define AT_ONCE 8 /* numbers on their way; 0, which adds nothing, where there are no more */
#define FOR_VALUES(x)                                                            \
  for (long i = LOCAL_ID; i < n; i += AT_ONCE * GROUP_SIZE) {                    \
    ulong next[AT_ONCE];                                                         \
    _Pragma("unroll") for (int k = 0; k < AT_ONCE; ++k)                          \
      next[k] = i + k * GROUP_SIZE < n ? values[i + k * GROUP_SIZE] : 0;         \
    _Pragma("unroll") for (int k = 0; k < AT_ONCE; ++k) {                        \
      ulong x = next[k];
#define END_OF_VALUES } }
  FOR_VALUES(x)
    ulong m = x << 12;
    long biased = (long)(x >> 52), e = biased - 1022;
    if (biased == 0) for (; m != 0 && !(m >> 63); m <<= 1) --e;
    if (biased >= 0x7ff) e = not_finite;
    if (x != 0 && e > largest) largest = e;
  END_OF_VALUES
  largest = fold_max_i64(largest, (SHARED i64*)shared);
  long limb0 = 0, limb1 = 0, limb2 = 0;
  if (largest >= not_finite) n = 0;
  FOR_VALUES(x)
    long biased = (long)(x >> 52);
    ulong m = x & 0xffffffffffffful, low = 0, high = 0;
    if (biased > 0) m |= 1ul << 52;
    long shift = (biased > 0 ? biased : 1) - 1075 + 96 - largest;
    if (shift >= 0) {
      low = m << shift;
      if (shift > 0) high = m >> (64 - shift);
    } else if (shift > -64) {
      low = m >> -shift;
    }
    limb0 += (long)(low & 0xfffffffful);
    limb1 += (long)(low >> 32);
    limb2 += (long)high;
  END_OF_VALUES
  limb0 = fold_sum_i64(limb0, (SHARED i64*)shared);
  limb1 = fold_sum_i64(limb1, (SHARED i64*)shared) + (limb0 >> 32);
  limb2 = fold_sum_i64(limb2, (SHARED i64*)shared) + (limb1 >> 32);
  if (LOCAL_ID == 0) {
    f64 mean = DOUBLE_OF_BITS(attribute(0)), loss_scale = DOUBLE_OF_BITS(attribute(1)),
        clip = DOUBLE_OF_BITS(attribute(2)), sum = DOUBLE_OF_BITS(0x7ff8000000000000ul), limit = 1;
    if (largest < not_finite) {
      sum = (f64)(limb2 >> 32) * DOUBLE_OF_BITS(1119ul << 52);
      sum += (f64)(limb2 & 0xffffffffl) * DOUBLE_OF_BITS(1087ul << 52);
      sum += (f64)(limb1 & 0xffffffffl) * DOUBLE_OF_BITS(1055ul << 52);
      sum += (f64)(limb0 & 0xffffffffl);
      if (sum > 0) {
        long part = (largest - 96) / 2, rest = largest - 96 - part;
        sum *= DOUBLE_OF_BITS((ulong)(part + 1023) << 52);
        sum *= DOUBLE_OF_BITS((ulong)(rest + 1023) << 52);
      }
    }
    volatile f64 norm = sqrt(sum) / loss_scale * mean;  // rounded before it is added to
    if (clip > 0) {
      limit = clip / (norm + 1e-6);
      if (limit > 1) limit = 1;
    }
    f64 scale = mean / loss_scale * limit;
    out0_store(0, norm);
    out1_store(0, scale);
    out2_store(0, scale);
  }
})";
inline constexpr native_code measure_code{.cpu = &measure_on_cpu,
                                          .text = measure_text,
                                          .items = [](const native_operands&) -> index_t { return 1; },
                                          .threads = 256};

/// A contiguous tensor as an operand of a native op.
inline strided operand_of(const tensor_state& t) {
  strided s;
  s.pointer = t.memory.data();
  s.type = t.type;
  s.extents = t.extents;
  set_contiguous(s);
  return s;
}

}  // namespace detail

WEFT_DEFINE gradient_measure measured_gradients(context& c, const tensor_list& gradients, communicator& ranks,
                                                const comm_options& o, double mean, double loss_scale,
                                                double clip) {
  if (ranks.size() > 1 || !c.where()->has_f64()) {
    const std::optional<double> sum = detail::norm_of_rows(c, gradients, ranks, o);
    const double norm = sum.value_or(0.0) / loss_scale * mean;
    return {norm, mean / loss_scale * (clip > 0 ? clip_factor(norm, clip) : 1.0), sum.has_value()};
  }
  const auto sums = detail::all_row_sums(c, gradients);
  const tensor<double, extents<>> norm(make_state(c.where(), {}, dtype::f64)),
      exact(make_state(c.where(), {}, dtype::f64));
  const tensor<float, extents<>> rounded(make_state(c.where(), {}, dtype::f32));
  const strided in = detail::operand_of(*sums);
  const strided out[] = {detail::operand_of(*norm.state()), detail::operand_of(*rounded.state()),
                         detail::operand_of(*exact.state())};
  attributes at;
  for (double x : {mean, loss_scale, clip}) at[at.count++] = std::bit_cast<index_t>(x);
  c.engine().call_native("gradient_norm", detail::measure_code, {{&in, 1}, out, at, 0});
  return {pending_number(norm.state()), gradient_scale(rounded, exact), !gradients.empty()};
}

WEFT_DEFINE double inf_norm_over_ranks(context& c, const tensor_list& gradients, communicator& ranks,
                                       const comm_options& o) {
  double largest = 0;
  for (const auto& g : gradients) {
    if (g->extents.size() == 0) continue;
    const double v = eval(amax(abs(flat_view<float>(g))), c).item();
    if (!(v <= largest) && !std::isnan(largest)) largest = v;  // NaN remains
  }
  ranks.all_reduce(std::span(&largest, 1), reduction::maximum, o).wait();
  return largest;
}

}  // namespace parallel
}  // namespace weft
