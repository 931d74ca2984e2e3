// SPDX-License-Identifier: MIT
// Rows of the cheat sheets: making tensors, asking them, moving elements in and out.
#include <filesystem>

#include <weft/io/tensor_files.hpp>

#include "expect.hpp"
using namespace weft;

int main() {
  const int n = 2;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  auto x = from(extents<2, 3>{}, values);

  //| torch.zeros(2, 3) | torch::zeros({2, 3}) | np.zeros((2, 3), np.float32) | MatrixXf::Zero(2, 3)
  expect(zeros<float>(extents<2, 3>{}), {0, 0, 0, 0, 0, 0});
  //| torch.ones(n, 3) | torch::ones({n, 3}) | np.ones((n, 3), np.float32) | MatrixXf::Ones(n, 3)
  expect(ones<float>(extents<dyn, 3>{n}), {1, 1, 1, 1, 1, 1});
  //| torch.full((2,), 2.5) | torch::full({2}, 2.5) | np.full(2, 2.5, np.float32) | VectorXf::Constant(2, 2.5f)
  expect(full<float>(extents<2>{}, 2.5f), {2.5, 2.5});
  //| torch.tensor([1., 2, 3]) | torch::tensor({1.f, 2.f, 3.f}) | np.array([1, 2, 3], np.float32) | Vector3f{1, 2, 3}
  expect(from(extents<3>{}, std::vector<float>{1, 2, 3}), {1, 2, 3});
  //| torch.arange(4) | torch::arange(4) | np.arange(4) | ArrayXi::LinSpaced(4, 0, 3)
  expect(arange<std::int64_t>(4), {0, 1, 2, 3});
  //| torch.linspace(0, 1, 3) | torch::linspace(0, 1, 3) | np.linspace(0, 1, 3) | ArrayXf::LinSpaced(3, 0, 1)
  expect(generate<float>(extents<3>{}, [](index_t i) { return 0.5f * float(i); }), {0, 0.5, 1});
  //| torch.eye(2) | torch::eye(2) | np.eye(2) | Matrix2f::Identity()
  expect(one_hot<2>(arange<std::int32_t>(2)), {1, 0, 0, 1});
  //| torch.empty(2, 3) | torch::empty({2, 3}) | np.empty((2, 3)) | MatrixXf(2, 3)
  compiles(empty<float>(extents<2, 3>{}));
  //| torch.rand(2, 3) | torch::rand({2, 3}) | rng.random((2, 3)) | MatrixXf::Random(2, 3), in [-1, 1]
  compiles(rand<float>(extents<2, 3>{}, {.seed = 1}));
  //| torch.randint(10, (3,)) | torch::randint(10, {3}) | rng.integers(10, size=3) | -
  compiles(cast<std::int64_t>(rand<double>(extents<3>{}) * 10.0));
  //| torch.randperm(4) | torch::randperm(4) | rng.permutation(4) | -
  compiles(argsort<0>(rand<float>(extents<4>{})));
  //| torch.multinomial(p, 1) | torch::multinomial(p, 1) | rng.choice(3, p=p) | -
  compiles(multinomial(full<float>(extents<3>{}, 0.5f)));
  //| torch.randn(2, 3) | torch::randn({2, 3}) | rng.standard_normal((2, 3)) | -
  compiles(randn<float>(extents<2, 3>{}, {.seed = 1}));
  //| torch.rand_like(x), torch.randn_like(x) | torch::rand_like(x), torch::randn_like(x) | rng.random(x.shape), rng.standard_normal(x.shape) | - | rand_like(x, {.seed = 1}), randn_like(x, {.seed = 1})
  compiles(std::pair(rand_like(x, {.seed = 1}), randn_like(x, {.seed = 1})));
  //| torch.normal(x, 2.0) | at::normal(x, 2.0) | rng.normal(x, 2.0) | - | x + 2.0f * normal_like(x)
  compiles(eval(x + 2.0f * normal_like(x)));
  //| torch.empty_like(x).uniform_(-1, 1) | torch::empty_like(x).uniform_(-1, 1) | rng.uniform(-1, 1, x.shape) | - | uniform_like(x) * 2.0f - 1.0f
  compiles(eval(uniform_like(x) * 2.0f - 1.0f));
  //| torch.zeros_like(x) | torch::zeros_like(x) | np.zeros_like(x) | -
  compiles(zeros_like(x));
  //| x.clone() | x.clone() | x.copy() | MatrixXf y = x;
  compiles(clone(x));

  //| x.shape | x.sizes() | x.shape | -
  compiles(x.extents());
  //| x.shape[0], x.size(-1) | x.size(0), x.size(-1) | x.shape[0], x.shape[-1] | x.rows(), x.cols()
  expect(x.extent(0), 2);
  expect(x.extent(-1), 3);
  //| x.numel() | x.numel() | x.size | x.size()
  expect(x.size(), 6);
  //| x.ndim | x.dim() | x.ndim | -
  expect(x.static_shape.order, 2);
  //| x.dtype | x.dtype() | x.dtype | Scalar | decltype(x)::value_type
  static_assert(std::is_same_v<decltype(x)::value_type, float>);
  //| x.to(torch.int32) | x.to(torch::kInt) | x.astype(np.int32) | x.cast<int>()
  expect(cast<std::int32_t>(x), {1, 2, 3, 4, 5, 6});
  //| x.tolist() | - | x.tolist() | -
  compiles(x.to_vector());
  //| x.sum().item() | x.sum().item<float>() | float(x.sum()) | x.sum()
  expect(eval(sum(x)).item(), 21);
  //| x[1, 2].item() | x[1][2].item<float>() | x[1, 2] | x(1, 2)
  expect(x(1, 2), 6);
  //| x[1, 2] = 7 | x[1][2] = 7 | x[1, 2] = 7 | x(1, 2) = 7
  x.mutable_data()[1 * 3 + 2] = 7;
  //| x.copy_(torch.tensor(values).view(2, 3)) | x.copy_(...) | x[:] = np.reshape(values, (2, 3)) | x = Map<...>(values)
  x.copy_from(values);
  //| x.data_ptr() | x.data_ptr<float>() | x.ctypes.data | x.data() | x.data()
  expect(x.data()[0], 1);
  const std::string file = std::filesystem::temp_directory_path() / "weft_cheat_sheet.npy";
  //| - | - | np.save(file, x) | -
  io::save(file, x);
  //| - | - | np.load(file) | - | io::load<float, extents<dyn, 3>>(file)
  expect(io::load<float, extents<dyn, 3>>(file), {1, 2, 3, 4, 5, 6});
  std::filesystem::remove(file);
}
