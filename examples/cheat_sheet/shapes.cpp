// SPDX-License-Identifier: MIT
// Rows of the cheat sheets: shapes, slices, joining. x is [2, 3], t is [2, 3, 4], v is [3].
#include "expect.hpp"
using namespace weft;

int main() {
  auto x = from(extents<2, 3>{}, std::vector<float>{1, 2, 3, 4, 5, 6});
  auto v = from(extents<3>{}, std::vector<float>{7, 8, 9});
  auto t = eval(reshape<2, 3, 4>(arange<float>(24)));
  const std::vector list{v, v};
  const int i = 1, from_row = 0, to_row = 1;
  //| x.reshape(3, 2) | x.reshape({3, 2}) | x.reshape(3, 2) | x.reshaped<RowMajor>(3, 2)
  expect(reshape<3, 2>(x), {1, 2, 3, 4, 5, 6});
  //| x.reshape(-1) | x.reshape(-1) | x.reshape(-1) | x.reshaped<RowMajor>()
  expect(reshape<dyn>(x), {1, 2, 3, 4, 5, 6});
  //| x.T | x.t() | x.T | x.transpose()
  expect(transpose(x), {1, 4, 2, 5, 3, 6});
  //| t.transpose(0, 1) | t.transpose(0, 1) | t.swapaxes(0, 1) | - | transpose<0, 1>(t)
  expect(sum(transpose<0, 1>(t), dims<1, 2>), {60, 92, 124});
  //| t.permute(2, 0, 1) | t.permute({2, 0, 1}) | t.transpose(2, 0, 1) | - | permute<2, 0, 1>(t)
  expect(sum(permute<2, 0, 1>(t), dims<1, 2>), {60, 66, 72, 78});
  //| v.unsqueeze(0) | v.unsqueeze(0) | v[None] | v.transpose()
  expect(unsqueeze<0>(v), {7, 8, 9});
  //| v.unsqueeze(0).squeeze(0) | v.unsqueeze(0).squeeze(0) | v[None].squeeze(0) | - | squeeze<0>(unsqueeze<0>(v))
  expect(squeeze<0>(unsqueeze<0>(v)), {7, 8, 9});
  //| t.flatten(0, 1) | t.flatten(0, 1) | t.reshape(6, 4) | - | flatten<0, 1>(t)
  expect(sum(flatten<0, 1>(t), dims<1>), {6, 22, 38, 54, 70, 86});
  //| x.unflatten(1, (3, 1)) | x.unflatten(1, {3, 1}) | x.reshape(2, 3, 1) | -
  expect(unflatten<1, 3>(x), {1, 2, 3, 4, 5, 6});
  //| v.expand(2, 3) | v.expand({2, 3}) | np.broadcast_to(v, (2, 3)) | v.transpose().replicate(2, 1)
  expect(expand<2, 3>(v), {7, 8, 9, 7, 8, 9});
  //| v.repeat(2) | v.repeat({2}) | np.tile(v, 2) | v.replicate(2, 1)
  expect(flatten<0, 1>(expand<2, 3>(v)), {7, 8, 9, 7, 8, 9});
  //| v.repeat_interleave(2) | v.repeat_interleave(2) | np.repeat(v, 2) | -
  expect(flatten<0, 1>(expand<3, 2>(unsqueeze<1>(v))), {7, 7, 8, 8, 9, 9});
  //| torch.meshgrid(v, v, indexing="ij") | torch::meshgrid({v, v}, "ij") | np.meshgrid(v, v, indexing="ij") | -
  expect(expand<3, 3>(unsqueeze<1>(v)), {7, 7, 7, 8, 8, 8, 9, 9, 9});
  expect(expand<3, 3>(v), {7, 8, 9, 7, 8, 9, 7, 8, 9});
  //| x[i] | x[i] | x[i] | x.row(i)
  expect(x[i], {4, 5, 6});
  //| x[-1] | x[-1] | x[-1] | x.row(last)
  expect(x[-1], {4, 5, 6});
  //| x[:, i] | x.select(1, i) | x[:, i] | x.col(i)
  expect(select<1>(x, i), {2, 5});
  //| x[:, 1:3] | x.slice(1, 1, 3) | x[:, 1:3] | x.middleCols(1, 2)
  expect(slice<1, 1, 3>(x), {2, 3, 5, 6});
  //| x[from_row:to_row] | x.slice(0, from_row, to_row) | x[from_row:to_row] | x.middleRows(from_row, to_row - from_row)
  expect(slice<0>(x, from_row, to_row), {1, 2, 3});
  //| v[::2] | v.slice(0, 0, 3, 2) | v[::2] | v(seq(0, last, 2))
  expect(slice<0, 0, 3, 2>(v), {7, 9});
  //| v.flip(0) | v.flip(0) | v[::-1] | v.reverse()
  expect(flip<0>(v), {9, 8, 7});
  //| x.chunk(3, 1)[0] | x.chunk(3, 1)[0] | np.split(x, 3, 1)[0] | x.leftCols(1)
  expect(chunk<1, 3, 0>(x), {1, 4});
  //| torch.cat([v, v]) | torch::cat({v, v}) | np.concatenate([v, v]) | VectorXf y(6); y << v, v;
  expect(concat<0>(v, v), {7, 8, 9, 7, 8, 9});
  //| torch.stack([v, v], 1) | torch::stack({v, v}, 1) | np.stack([v, v], 1) | -
  expect(stack<1>(v, v), {7, 7, 8, 8, 9, 9});
  //| torch.cat(list), torch.stack(list) | torch::cat(list), torch::stack(list) | np.concatenate(list), np.stack(list) | -
  expect(concat<0>(list), {7, 8, 9, 7, 8, 9});
  //| F.pad(v, (1, 2)) | F::pad(v, F::PadFuncOptions({1, 2})) | np.pad(v, (1, 2)) | -
  expect(pad<0, 1, 2>(v), {0, 7, 8, 9, 0, 0});
}
