// SPDX-License-Identifier: MIT
// Rows of the cheat sheets: arithmetic, functions, comparisons. In Eigen's column a, b and v are arrays.
#include "expect.hpp"
using namespace weft;

int main() {
  auto a = from(extents<3>{}, std::vector<float>{1, -2, 3});
  auto b = from(extents<3>{}, std::vector<float>{2, 2, 2});
  auto m = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto column = from(extents<2, 1>{}, std::vector<float>{10, 20});
  //| a + b, a - b, -a | a + b, a - b, -a | a + b, a - b, -a | a + b, a - b, -a
  expect(a + b, {3, 0, 5});
  expect(a - b, {-1, -4, 1});
  expect(-a, {-1, 2, -3});
  //| a * b, a / b | a * b, a / b | a * b, a / b | a * b, a / b
  expect(a * b, {2, -4, 6});
  expect(a / b, {0.5, -1, 1.5});
  //| 2 * a + 1 | 2 * a + 1 | 2 * a + 1 | 2 * a + 1
  expect(2 * a + 1, {3, -3, 7});
  //| m + a | m + a | m + a | m.rowwise() + a.transpose()
  expect(m + a, {2, 0, 6, 5, 3, 9});
  //| m + column | m + column | m + column | m.colwise() + column
  expect(m + column, {11, 12, 13, 24, 25, 26});
  //| a ** b | torch::pow(a, b) | a ** b | a.pow(b)
  expect(pow(a, b), {1, 4, 9});
  //| a.square() | a.square() | np.square(a) | a.square()
  expect(square(a), {1, 4, 9});
  //| a.exp(), b.log(), b.sqrt() | same | np.exp(a), np.log(b), np.sqrt(b) | a.exp(), b.log(), b.sqrt()
  expect(exp(a), {2.71828, 0.135335, 20.0855});
  expect(log(b), {0.693147, 0.693147, 0.693147});
  expect(sqrt(b), {1.41421, 1.41421, 1.41421});
  //| b.rsqrt() | b.rsqrt() | 1 / np.sqrt(b) | b.rsqrt()
  expect(rsqrt(b), {0.707107, 0.707107, 0.707107});
  //| b.log1p(), b.expm1() | same | np.log1p(b), np.expm1(b) | b.log1p(), b.expm1()
  expect(log1p(b), {1.09861, 1.09861, 1.09861});
  expect(expm1(b), {6.38906, 6.38906, 6.38906});
  //| a.sin(), a.cos(), a.tanh() | same | np.sin(a), np.cos(a), np.tanh(a) | a.sin(), a.cos(), a.tanh()
  expect(sin(a), {0.841471, -0.909297, 0.14112});
  expect(cos(a), {0.540302, -0.416147, -0.989992});
  expect(tanh(a), {0.761594, -0.964028, 0.995055});
  //| a.atan() | a.atan() | np.arctan(a) | a.atan()
  expect(atan(a), {0.785398, -1.10715, 1.24905});
  //| torch.atan2(a, b) | torch::atan2(a, b) | np.arctan2(a, b) | -
  expect(atan2(a, b), {0.463648, -0.785398, 0.982794});
  //| (a / 4).asin(), (a / 4).acos() | same | np.arcsin(a / 4), np.arccos(a / 4) | (a / 4).asin(), (a / 4).acos()
  expect(asin(a / 4), {0.25268, -0.523599, 0.848062});
  expect(acos(a / 4), {1.31812, 2.0944, 0.722734});
  //| a.erf() | a.erf() | scipy.special.erf(a) | a.erf()
  expect(erf(a), {0.842701, -0.995322, 0.999978});
  //| a.abs(), a.sign() | a.abs(), a.sign() | np.abs(a), np.sign(a) | a.abs(), a.sign()
  expect(abs(a), {1, 2, 3});
  expect(sign(a), {1, -1, 1});
  //| a.floor(), a.round() | a.floor(), a.round() | np.floor(a), np.round(a) | a.floor(), a.rint()
  expect(floor(a), {1, -2, 3});
  expect(round(a), {1, -2, 3});
  //| torch.maximum(a, b), torch.minimum(a, b) | same | np.maximum(a, b), np.minimum(a, b) | a.max(b), a.min(b)
  expect(maximum(a, b), {2, 2, 3});
  expect(minimum(a, b), {1, -2, 2});
  //| a.clamp(-1, 2) | a.clamp(-1, 2) | np.clip(a, -1, 2) | a.cwiseMax(-1).cwiseMin(2)
  expect(clamp(a, -1, 2), {1, -1, 2});
  //| a.clamp(min=0), a.clamp(max=2) | a.clamp_min(0), a.clamp_max(2) | np.maximum(a, 0), np.minimum(a, 2) | a.cwiseMax(0), a.cwiseMin(2)
  expect(clamp_min(a, 0), {1, 0, 3});
  expect(clamp_max(a, 2), {1, -2, 2});
  //| a > b, a <= b, a == b, a != b | same | a > b, a <= b, a == b, a != b | a > b, a <= b, a == b, a != b
  expect(a > b, {0, 0, 1});
  expect(a <= b, {1, 1, 0});
  expect(a == b, {0, 0, 0});
  expect(a != b, {1, 1, 1});
  //| (a > 0) & (a < 2) | (a > 0) & (a < 2) | (a > 0) & (a < 2) | (a > 0) && (a < 2)
  expect((a > 0) & (a < 2), {1, 0, 0});
  //| (a > 0) \| (a < 2), ~(a > 0) | same | (a > 0) \| (a < 2), ~(a > 0) | (a > 0) \|\| (a < 2), !(a > 0)
  expect(logical_or(a > 0, a < 2), {1, 1, 1});
  expect(logical_not(a > 0), {0, 1, 0});
  //| torch.where(a > 0, a, 0) | torch::where(a > 0, a, 0) | np.where(a > 0, a, 0) | (a > 0).select(a, 0)
  expect(where(a > 0, a, 0), {1, 0, 3});
  //| a.masked_fill(a < 0, 9) | a.masked_fill(a < 0, 9) | np.where(a < 0, 9, a) | (a < 0).select(9, a)
  expect(where(a < 0, 9, a), {1, 9, 3});
  //| a.isnan(), a.isfinite() | a.isnan(), a.isfinite() | np.isnan(a), np.isfinite(a) | a.isNaN(), a.isFinite()
  expect(isnan(a), {0, 0, 0});
  expect(isfinite(a), {1, 1, 1});
  //| F.relu(a), F.gelu(a), F.silu(a) | torch::relu(a), torch::gelu(a), torch::silu(a) | - | -
  expect(relu(a), {1, 0, 3});
  expect(gelu(a), {0.841345, -0.0455003, 2.99595});
  expect(silu(a), {0.731059, -0.238406, 2.85772});
  //| F.leaky_relu(a), F.elu(a) | torch::leaky_relu(a), torch::elu(a) | - | -
  expect(leaky_relu(a), {1, -0.02, 3});
  expect(elu(a), {1, -0.864665, 3});
  //| a.sigmoid(), F.softplus(a) | torch::sigmoid(a), torch::softplus(a) | - | -
  expect(sigmoid(a), {0.731059, 0.119203, 0.952574});
  expect(softplus(a), {1.31326, 0.126928, 3.04859});
  //| F.softmax(m, -1), F.log_softmax(m, 0) | torch::softmax(m, -1), torch::log_softmax(m, 0) | - | -
  expect(softmax(m), {0.0900306, 0.244728, 0.665241, 0.0900306, 0.244728, 0.665241});
  expect(log_softmax<0>(m), {-3.04859, -3.04859, -3.04859, -0.0485874, -0.0485874, -0.0485874});
  auto h = from(extents<3>{}, std::vector<float>{0.5f, -1, 1.5f});
  //| h.ceil(), h.trunc() | same | np.ceil(h), np.trunc(h) | h.ceil(), h.trunc()
  expect(-floor(-h), {1, -1, 2});
  expect(sign(h) * floor(abs(h)), {0, -1, 1});
  //| h % b | h.remainder(b) | h % b | -
  expect(h % b, {0.5, 1, 1.5});
  //| h // b | h.floor_divide(b) | h // b | -
  expect(floor_divide(h, b), {0, -1, 0});
  //| a.tan(), a.sinh() | same | np.tan(a), np.sinh(a) | a.tan(), a.sinh()
  expect(sin(a) / cos(a), {1.557408, 2.185040, -0.142547});
  expect((exp(a) - exp(-a)) * 0.5f, {1.175201, -3.626860, 10.017875});
  //| F.logsigmoid(a), F.prelu(a, w) | same | - | -
  auto w = from(extents<1>{}, std::vector<float>{0.25f});
  expect(-softplus(-a), {-0.313262, -2.126928, -0.048587});
  expect(where(a > 0, a, w * a), {1, -0.5, 3});
  //| F.cosine_similarity(a, b, 0) | torch::cosine_similarity(a, b, 0) | - | a.matrix().normalized().dot(b.matrix().normalized())
  expect(cosine_similarity(a, b), {0.308607});
  //| a.isinf() | a.isinf() | np.isinf(a) | a.isInf()
  expect(abs(a) == INFINITY, {0, 0, 0});
  //| m.tril() | m.tril() | np.tril(m) | -
  expect(where(unsqueeze<1>(arange<int>(2)) >= arange<int>(3), m, 0), {1, 0, 0, 4, 5, 0});
  //| m.prod(1) | m.prod(1) | m.prod(1) | m.rowwise().prod()
  expect(select<1, 2>(cumprod<1>(m)), {6, 120});
  //| m.roll(1, 1) | m.roll(1, 1) | np.roll(m, 1, 1) | -
  expect(concat<1>(slice<1, 2, 3>(m), slice<1, 0, 2>(m)), {3, 1, 2, 6, 4, 5});
  //| a += b | a += b | a += b | a += b
  update(a, a + b);

  expect(a, {3, 0, 5});
}
