// SPDX-License-Identifier: MIT
// Rows of the cheat sheets: reductions, indices, products. x is [2, 3], v is [3], many is [4, 2, 3].
#include "expect.hpp"
using namespace weft;

int main() {
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto v = from(extents<3>{}, std::vector<float>{1, 0, 2});
  auto index = from(extents<2>{}, std::vector<std::int64_t>{2, 0});
  auto source = from(extents<2>{}, std::vector<float>{10, 20});
  auto many = ones<float>(extents<4, 2, 3>{});
  //| x.sum() | x.sum() | x.sum() | x.sum()
  expect(sum(x), {21});
  //| x.sum(0) | x.sum(0) | x.sum(0) | x.colwise().sum()
  expect(sum(x, dims<0>), {5, 7, 9});
  //| x.sum((0, 1)) | x.sum({0, 1}) | x.sum((0, 1)) | x.sum()
  expect(sum(x, dims<0, 1>), {21});
  //| x.mean(-1, keepdim=True) | x.mean(-1, true) | x.mean(-1, keepdims=True) | x.rowwise().mean()
  expect(mean(x, dims<-1>, keepdim), {2, 5});
  //| x.amax(1), x.amin(1) | x.amax(1), x.amin(1) | x.max(1), x.min(1) | x.rowwise().maxCoeff(), x.rowwise().minCoeff()
  expect(amax(x, dims<1>), {3, 6});
  expect(amin(x, dims<1>), {1, 4});
  //| x.argmax(1), x.argmin() | x.argmax(1), x.argmin() | x.argmax(1), x.argmin() | -
  expect(argmax<1>(x), {2, 2});
  expect(argmin(x), {0});
  //| x.argmax(1, keepdim=True) | x.argmax(1, true) | x.argmax(1, keepdims=True) | -
  expect(argmax<1>(x, keepdim), {2, 2});
  //| x.sort(1, descending=True)[0], x.argsort(1) | std::get<0>(x.sort(1, true)), x.argsort(1) | -np.sort(-x, 1), x.argsort(1) | -
  expect(sort<1, descending>(x), {3, 2, 1, 6, 5, 4});
  expect(argsort<1>(x), {0, 1, 2, 0, 1, 2});
  //| values, indices = x.topk(2) | auto [values, indices] = x.topk(2) | - | - | auto [values, indices] = topk<-1, 2>(x)
  auto [values, indices] = topk<-1, 2>(x);
  expect(values, {3, 2, 6, 5});
  expect(indices, {2, 1, 2, 1});
  //| v.median() | v.median() | - | - | sort<0>(v)[1]
  expect(sort<0>(v)[1], {1});
  //| x.cumsum(1) | x.cumsum(1) | x.cumsum(1) | -
  expect(cumsum<1>(x), {1, 3, 6, 4, 9, 15});
  //| x.cumprod(1) | x.cumprod(1) | x.cumprod(1) | -
  expect(cumprod<1>(x), {1, 2, 6, 4, 20, 120});
  //| x.logsumexp(1) | x.logsumexp(1) | - | -
  expect(logsumexp(x, dims<1>), {3.40761, 6.40761});
  //| x.var(1, correction=0) | x.var(1, 0) | x.var(1) | -
  expect(variance<0>(x, dims<1>), {0.666667, 0.666667});
  //| x.std() | x.std() | x.std(ddof=1) | -
  expect(stddev(x), {1.870829});
  //| x.norm() | x.norm() | np.linalg.norm(x) | x.norm()
  expect(vector_norm(x), {9.53939});
  //| F.normalize(x, dim=1) | torch::nn::functional::normalize(x) | - | x.rowwise().normalized()
  expect(normalize<1>(x), {0.267261, 0.534522, 0.801784, 0.455842, 0.569803, 0.683763});
  //| (x > 3).any(), (x > 3).all() | (x > 3).any(), (x > 3).all() | (x > 3).any(), (x > 3).all() | (x > 3).any(), (x > 3).all()
  expect(any(x > 3), {1});
  expect(all(x > 3), {0});
  //| (x > 3).sum() | (x > 3).sum() | (x > 3).sum() | (x > 3).count()
  expect(sum(x > 3), {3});
  //| x @ x.T | x.mm(x.t()) | x @ x.T | x * x.transpose()
  expect(matmul(x, transpose(x)), {14, 32, 32, 77});
  //| x @ v | x.mv(v) | x @ v | x * v
  expect(matmul(x, v), {7, 16});
  //| v @ v | v.dot(v) | v @ v | v.dot(v)
  expect(matmul(v, v), {5});
  //| torch.outer(v, v) | torch::outer(v, v) | np.outer(v, v) | v * v.transpose()
  expect(unsqueeze<1>(v) * v, {1, 0, 2, 0, 0, 0, 2, 0, 4});
  //| torch.cdist(x, x) | torch::cdist(x, x) | - | -
  expect(vector_norm(unsqueeze<1>(x) - x, dims<2>), {0, 5.19615, 5.19615, 0});
  //| torch.diag(v) | torch::diag(v) | np.diag(v) | v.asDiagonal().toDenseMatrix()
  expect(v * one_hot<3>(arange<std::int64_t>(3)), {1, 0, 0, 0, 0, 0, 0, 0, 2});
  //| many @ x.T | torch::matmul(many, x.t()) | many @ x.T | -
  expect(matmul(many, transpose(x)), {6, 15, 6, 15, 6, 15, 6, 15, 6, 15, 6, 15, 6, 15, 6, 15});
  //| torch.einsum("ij,kj->ik", x, x) | torch::einsum("ij,kj->ik", {x, x}) | np.einsum("ij,kj->ik", x, x) | - | einsum<"ij,kj->ik">(x, x)
  expect(einsum<"ij,kj->ik">(x, x), {14, 32, 32, 77});
  //| v[index] | v.index({index}) | v[index] | v(index)
  expect(index_select<0>(v, index), {2, 1});
  //| x.index_select(1, index) | x.index_select(1, index) | x[:, index] | x(all, index)
  expect(index_select<1>(x, index), {3, 1, 6, 4});
  //| F.embedding(index, x.T) | torch::embedding(x.t(), index) | x.T[index] | -
  expect(embedding(transpose(x), index), {3, 6, 1, 4});
  //| F.embedding(index, x.T, padding_idx=0) | F::embedding(index, x.t(), options) | - | - | embedding<0>(transpose(x), index)
  expect(embedding<0>(transpose(x), index), {3, 6, 1, 4});
  //| x.gather(1, index.unsqueeze(1)) | x.gather(1, index.unsqueeze(1)) | np.take_along_axis(x, index[:, None], 1) | -
  expect(gather<1>(x, unsqueeze<1>(index)), {3, 4});
  //| v.scatter_add(0, index, source) | v.scatter_add(0, index, source) | np.add.at(v, index, source) | -
  expect(scatter_add<0>(v, index, source), {21, 0, 12});
  //| x.T.index_add(0, index, torch.ones(2, 2)) | x.t().index_add(0, index, torch::ones({2, 2})) | np.add.at(x.T, index, np.ones((2, 2))) | -
  expect(scatter_add<0>(transpose(x), expand<2, 2>(unsqueeze<1>(index)), ones<float>(extents<2, 2>{})),
         {2, 5, 2, 5, 4, 7});
  //| F.one_hot(index, 3) | torch::one_hot(index, 3) | np.eye(3)[index] | -
  expect(one_hot<3>(index), {0, 0, 1, 1, 0, 0});
  //| torch.bincount(index, minlength=3) | torch::bincount(index, {}, 3) | np.bincount(index, minlength=3) | -
  expect(sum(one_hot<3>(index), dims<0>), {1, 0, 1});
}
