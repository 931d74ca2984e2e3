// SPDX-License-Identifier: MIT
// weft's calls of CUDA, observed by a fake driver, compiler and cuBLASLt (fake_*.cpp).
#include <doctest/doctest.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include <weft/gpu/open.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/comm/threads.hpp>
#include <weft/weft.hpp>

#include "fake_cuda.hpp"

using namespace weft;

namespace {

device nvidia(int ordinal = 0) { return device(std::make_shared<gpu::cuda_backend>(ordinal)); }

auto sample(const device& d, std::uint64_t seed) {
  return randn<float>(extents<dyn, dyn>{7, 7}, {.seed = seed}, d);
}

/// A chain with a matrix product, a look-up, and rows with scratch memory, on any device.
std::vector<float> chain(const device& d, std::uint64_t seed) {
  context c(d);
  const auto x = sample(d, seed), w = sample(d, seed + 1);
  const auto index = generate<std::int32_t>(extents<3>{}, [](index_t i) { return 2 * i; }, d);
  return eval(softmax(exp(tanh(embedding(matmul(x, w), index)))), c).to_vector();
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  bool all = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = std::abs(a[i] - b[i]) <= 1e-5f;  // false for NaN
  return all;
}

/// c = x w on a device, against the CPU. The second product allocates no memory and compiles no kernel.
struct a_product {
  device d;
  context c{d};
  tensor<float, extents<dyn, dyn>> x = sample(d, 1), w = sample(d, 2);
  std::vector<float> expected =
      eval(matmul(sample(default_device(), 1), sample(default_device(), 2))).to_vector();

  void check() {
    const auto y = eval(matmul(x, w), c);
    CHECK(close(y.to_vector(), expected));
  }
};
void check_product(const device& d) { a_product{d}.check(); }

/// The message of the exception that `f` throws.
template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing of the kind was thrown";
}

}  // namespace

TEST_CASE("libraries of CUDA: of versions that the driver supports, the newest first") {
  using names = std::vector<std::string>;
  const auto with_driver = [](const char* version) {
    setenv("FAKE_CUDA_VERSION", version, 1);
    const names found = gpu::cuda_libraries("nvrtc");
    unsetenv("FAKE_CUDA_VERSION");
    return found;
  };
  CHECK(with_driver("12080") == names{"libnvrtc.so.12"});
  CHECK(with_driver("13000") == names{"libnvrtc.so.13", "libnvrtc.so.12"});
  CHECK(with_driver("14010") == names{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  setenv("FAKE_CUDA_VERSION", "11080", 1);
  CHECK(message_of<device_error>([] { gpu::cuda_libraries("nvrtc"); }) ==
        "weft: cuda: the driver supports CUDA 11, but weft needs 12 or newer");
  unsetenv("FAKE_CUDA_VERSION");
}

TEST_CASE("an architecture that NVRTC does not know: PTX of the one before, or an error that names it") {
  CHECK(close(chain(nvidia(), 1), chain(default_device(), 1)));
  CHECK(fake_cuda::target() == "sm_90a");
  setenv("FAKE_NVRTC_ARCHITECTURES", "75 86 100", 1);
  CHECK(close(chain(nvidia(), 1), chain(default_device(), 1)));
  CHECK(fake_cuda::target() == "compute_86");
  setenv("FAKE_NVRTC_ARCHITECTURES", "100 120", 1);
  CHECK(message_of<device_error>([] { chain(nvidia(), 1); }) ==
        "weft: cuda: this NVRTC compiles for sm_100 and newer, not for sm_90a: use an older NVRTC");
  unsetenv("FAKE_NVRTC_ARCHITECTURES");
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE(
    "cuda: every call is made in the context of its device, with two devices in a thread and in threads of "
    "their own") {
  const device first = nvidia(0), second = nvidia(1);
  a_product on_first{first}, on_second{second};
  for (int round = 0; round < 2; ++round) {
    on_first.check();  // while the second is current
    on_second.check();
  }
  std::thread([&] { on_first.check(); }).join();  // while none is current
  CHECK(close(chain(first, 5), chain(default_device(), 5)));
  CHECK(close(chain(second, 5), chain(default_device(), 5)));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: errors of an allocation keep their names, and only want of memory is tried again") {
  const device d = nvidia();
  { const buffer cached = d.allocate(1 << 20); }
  const long before = fake_cuda::calls("cuMemAlloc");
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(message_of<device_error>([&] {
          (void)d.allocate(1 << 22);
        }).find("an illegal memory access was encountered") != std::string::npos);
  CHECK(fake_cuda::calls("cuMemAlloc") == before + 1);
  CHECK(d.memory().figures().reserved >= 1 << 20);

  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(d.allocate(1 << 22).data() != nullptr);
  CHECK(fake_cuda::calls("cuMemAlloc") == before + 3);

  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, -1);
  const std::string said = message_of<out_of_memory_error>([&] { (void)d.allocate(1 << 23); });
  fake_cuda::fail("cuMemAlloc", 0, 0);
  CHECK(said.starts_with("weft: cuda: out of memory: could not allocate 8388608 bytes\n"));
}

TEST_CASE("cuda: what cuBLASLt has no algorithm for is computed by the plain kernel, and asked once") {
  auto& products = fake_cuda::products_of();
  for (int answer : {1, 2}) {
    CAPTURE(answer);
    const device d = nvidia();
    const long questions = products.questions, done = products.products;
    products.answer = answer;
    CHECK_NOTHROW(check_product(d));
    CHECK_NOTHROW(check_product(d));
    products.answer = 0;
    CHECK(products.questions == questions + 1);
    CHECK(products.products == done);
  }
}

TEST_CASE(
    "cuda: algorithms depend on the alignment that vectors need alone, and never round partial sums to the "
    "result's type") {
  auto& products = fake_cuda::products_of();
  const device d = nvidia();
  context c(d);
  const auto rows = randn<float>(extents<dyn, 8>{48, 8}, {.seed = 1}, d);
  const auto w = randn<float>(extents<8, 4>{}, {.seed = 2}, d);
  eval(matmul(rows, w), c);
  for (unsigned aligned : products.alignment) CHECK(aligned == 16);
  CHECK(products.schemes == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const long questions = products.questions;
  for (index_t from : {0, 1, 2, 8, 16})
    eval(matmul(slice<0>(rows, from, from + 24), w), c);  // at 32, 64, 256, 512 bytes
  CHECK(products.questions == questions + 1);
}

TEST_CASE("cuda: contexts in threads of their own share a device") {
  const device d = nvidia();
  std::vector<std::vector<float>> expected, found(4);
  for (std::uint64_t t = 0; t < found.size(); ++t) expected.push_back(chain(default_device(), t));
  std::mutex mutex;
  std::string errors;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] {
      try {
        for (int round = 0; round < 20; ++round) found[t] = chain(d, t);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        errors += e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(errors == "");
  for (std::size_t t = 0; t < found.size(); ++t) CHECK(close(found[t], expected[t]));
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: what a device took from the driver goes back, also when it cannot be made") {
  const long before = fake_cuda::held(), descriptors = fake_cuda::products_of().descriptors;
  for (const char* call : {"cuStreamCreate", "cuMemAlloc"}) {
    fake_cuda::fail(call, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(message_of<device_error>([] { nvidia(); }).find("out of memory") != std::string::npos);
    CHECK(fake_cuda::held() == before);
  }
  chain(nvidia(1), 3);
  CHECK(fake_cuda::held() == before);
  CHECK(fake_cuda::products_of().descriptors == descriptors);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: the context that the caller made current is current again after every call") {
  const device first = nvidia(0);
  const auto set = fake_cuda::function<CUresult(CUcontext)>("libcuda.so.1", "cuCtxSetCurrent");
  const auto get = fake_cuda::function<CUresult(CUcontext*)>("libcuda.so.1", "cuCtxGetCurrent");
  const auto retain =
      fake_cuda::function<CUresult(CUcontext*, CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRetain");
  const auto let_go = fake_cuda::function<CUresult(CUdevice)>("libcuda.so.1", "cuDevicePrimaryCtxRelease_v2");
  CUcontext own = nullptr, now = nullptr;
  REQUIRE(retain(&own, 1) == CUDA_SUCCESS);
  for (const CUcontext callers : {own, CUcontext{}}) {
    set(callers);
    CHECK(close(chain(first, 5), chain(default_device(), 5)));
    get(&now);
    CHECK(now == callers);
    { const device another = nvidia(0); }
    get(&now);
    CHECK(now == callers);
  }
  let_go(1);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE(
    "cuda: what kernels of rows need for a while is counted, forecast, and asked for again without caches") {
  const auto job = [](const device& d) {
    context c(d);
    // exp is kept in scratch memory between the sum and the division
    const auto y = eval(softmax(randn<float>(extents<dyn, dyn>{6, 9000}, {.seed = 1}, d)), c);
    return d.memory().figures();
  };
  const device d = nvidia();
  const std::size_t forecast = peak_bytes([&](const device& nowhere) { job(nowhere); }, false);
  const long before = fake_cuda::calls("cuMemAlloc");
  const memory_figures used = job(d);
  CHECK(used.peak == forecast);
  CHECK(used.peak >= 3 * 6 * 9000 * 4);  // operand, result, and scratch memory of the same size
  CHECK(fake_cuda::calls("cuMemAlloc") - before == static_cast<long>(used.requests));

  const device full = nvidia();
  { const buffer cached = full.allocate(1 << 22); }
  context c(full);
  const auto x = randn<float>(extents<dyn, dyn>{6, 9000}, {.seed = 1}, full);
  { const auto y = zeros<float>(extents<dyn, dyn>{6, 9000}, full); }  // the result gets its memory
  fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK_NOTHROW(eval(softmax(x), c));
  CHECK(full.memory().figures().reserved < 1 << 22);
  kernel_call wide;
  wide.scratch_rows = 2;
  wide.args.order = 2;
  wide.args.extent[0] = 1 << 20;
  wide.args.extent[1] = 1 << 16;
  CHECK(row_groups(wide).groups == 128);
  CHECK(row_groups(wide).items == 1024);
  CHECK(row_groups(wide, 700).items == 512);
  wide.args.extent[1] = 8192;
  CHECK(row_groups(wide).items == 256);
  CHECK(row_groups(wide).scratch_bytes == 0);
  CHECK_FALSE(row_groups(wide, 128).in_registers);
  wide.args.extent[1] = 2048;
  CHECK(row_groups(wide).items == 64);
  wide.args.extent[1] = 1 << 16;
  CHECK(row_groups(wide).scratch_bytes == row_groups::most_scratch);
  wide.args.extent[1] = 1 << 27;
  CHECK(row_groups(wide).groups == 1);
}

TEST_CASE("cuda: what sums of rows by index need for a while is forecast, and asked for once") {
  const auto job = [](const device& d) {
    context c(d);
    const auto index = generate<std::int32_t>(extents<dyn>{5000}, [](index_t i) { return i % 7; }, d);
    const auto table = variable<float, extents<7, 3>>(randn<float>(extents<7, 3>{}, {.seed = 1}, d));
    for (int step = 0; step < 2; ++step) {
      tape steps(c);
      steps.backward(steps.eval(sum(embedding(table, index))));
    }
    return d.memory().figures();
  };
  const device d = nvidia();
  const std::size_t forecast = peak_bytes([&](const device& nowhere) { job(nowhere); }, false);
  const memory_figures used = job(d);
  CHECK(used.peak == forecast);
  CHECK(used.peak >= 5000 * (16 + 4));  // keys, and the indices
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: a kernel that fails is named where launches are checked, and otherwise how to find it") {
  const device d = nvidia();
  context c(d);
  const auto x = sample(d, 1);
  eval(exp(x) * 2.0f, c);
  fake_cuda::fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  std::string said = message_of<device_error>([&] { eval(exp(x) * 2.0f, c).to_vector(); });
  CHECK(said.find("an illegal memory access was encountered") != std::string::npos);
  CHECK(said.find("WEFT_CHECK_LAUNCHES=1") != std::string::npos);
  setenv("WEFT_CHECK_LAUNCHES", "1", 1);
  const device careful = nvidia();
  unsetenv("WEFT_CHECK_LAUNCHES");
  context checked(careful);
  const auto y = sample(careful, 1);
  const auto index = generate<std::int32_t>(extents<3>{}, [](index_t i) { return i; }, careful);
  eval(exp(y) * 2.0f, checked);
  const auto named = [&](const auto& e) {
    fake_cuda::fail("cuStreamSynchronize", CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    return message_of<device_error>([&] { eval(e, checked); });
  };
  CHECK(named(exp(y) * 2.0f).find("in the fused kernel of exp, multiply just launched") != std::string::npos);
  CHECK(named(sum(y)).find("fused kernel of sum") != std::string::npos);
  CHECK(named(embedding(y, index)).find("in the ") != std::string::npos);
}

TEST_CASE("cuda: products of ever new sizes do not pile up descriptors") {
  auto& products = fake_cuda::products_of();
  const device d = nvidia();
  const buffer memory = d.allocate(1 << 20);
  const long before = products.descriptors;
  const auto multiply = [&](index_t m) {
    strided t[3];
    const index_t rows[] = {m, 1, m};
    for (int i = 0; i < 3; ++i) {
      t[i].pointer = memory.data();
      t[i].extents = {2, {rows[i], 1}};
      set_contiguous(t[i]);
    }
    d->multiply({}, t[0], t[1], t[2]);
  };
  const auto most = static_cast<long>(gpu::cublaslt::most_setups);
  for (long m = 1; m <= most + 10; ++m) multiply(m);
  CHECK(products.descriptors - before == 4 * 10);
  const long questions = products.questions;
  multiply(most + 10);
  CHECK(products.questions == questions);
}

TEST_CASE("cuda: libraries of pip's packages are found where the loader does not look") {
  const std::filesystem::path at =
      std::filesystem::temp_directory_path() / ("weft_packages." + std::to_string(getpid()));
  const auto folder = at / "lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib";
  std::filesystem::create_directories(folder);
  void* const loaded = dlopen("libnvrtc.so.13", RTLD_NOW);
  char origin[4096];
  REQUIRE(dlinfo(loaded, RTLD_DI_ORIGIN, origin) == 0);
  std::filesystem::create_symlink(std::filesystem::path(origin) / "libnvrtc.so.13",
                                  folder / "libweft_of_pip.so.12");
  CHECK_THROWS_AS(gpu::library({"libweft_of_pip.so.13", "libweft_of_pip.so.12"}, &gpu::cuda_folders),
                  device_error);
  setenv("VIRTUAL_ENV", at.c_str(), 1);
  const gpu::library found({"libweft_of_pip.so.13", "libweft_of_pip.so.12"}, &gpu::cuda_folders);
  unsetenv("VIRTUAL_ENV");
  CHECK(found.folder() == folder.string());
  CHECK_NOTHROW(found.function<void (*)()>("nvrtcGetErrorString"));
  std::filesystem::remove_all(at);
}

namespace {
struct classifier {
  linear<7, 5> hidden;
  linear<5, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
/// The losses of three steps of a model that was created on the CPU.
template <class Plan, class... Arguments>
std::vector<float> losses(std::string& device_name, const Arguments&... arguments) {
  classifier model;
  initialize(model, 3);
  adamw optimizer{.lr = 0.1f};
  auto run = bind<Plan>(model, optimizer, arguments...);
  device_name = run.where()->name();
  const auto x = randn<float>(extents<dyn, 7>{4, 7}, {.seed = 2}, run.where());
  const auto labels = generate<std::int32_t>(extents<dyn>{4}, [](index_t i) { return i % 3; }, run.where());
  std::vector<float> all;
  for (int s = 0; s < 3; ++s) {
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(model(x), labels));
    steps.backward(loss);
    run.step();
    all.push_back(loss.item());
  }
  return all;
}
}  // namespace

TEST_CASE(
    "policies choose devices: one word moves the model, and ranks take the GPUs of their machine in turn") {
  std::string where;
  const std::vector<float> expected = losses<policy<on<host>>>(where);
  CHECK(where == "cpu");
  CHECK(close(losses<policy<on<cuda>>>(where), expected));
  CHECK(where == "cuda");
  CHECK(close(losses<policy<on<cuda>>>(where, device_options{.device = 1}), expected));
  CHECK(message_of<device_error>([&] {
          losses<policy<on<cuda>>>(where, device_options{.device = 2});
        }) == "weft: there is no device cuda:2: this machine has 2");
  CHECK_THROWS_AS(losses<policy<precision::f32>>(where, device_options{.device = 1}), usage_error);

  context_in<on<cuda>, precision::bf16> second({.device = 1});
  CHECK(second.where() == on<cuda>::where({.device = 1}));
  CHECK(second.where() != on<cuda>::where());
  CHECK(std::is_same_v<decltype(second)::programs, program_options<dtype::bf16>>);

  using plan = policy<strategy::fully_sharded<3>, on<cuda>, precision::f32>;
  int taken[3]{};
  run_ranks(3, [&](communicator& ranks) {
    classifier model;
    adamw optimizer;
    const auto run = bind<plan>(model, optimizer, ranks);
    for (int n = 0; n < 2; ++n)
      if (run.where() == on<cuda>::where({.device = n})) taken[ranks.rank()] = n;
  });
  CHECK(taken[0] == 0);
  CHECK(taken[1] == 1);
  CHECK(taken[2] == 0);
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", "1", 1);
  {
    self_communicator alone;
    classifier model;
    adamw optimizer;
    const auto run = bind<policy<on<cuda>>>(model, optimizer, alone);
    CHECK(run.where() == on<cuda>::where({.device = 1}));
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) unsetenv(name);
}

TEST_CASE("devices by name and number: what cannot be had is said, with the reason") {
  CHECK(message_of<device_error>([] { open_device("cuda:2"); }) ==
        "weft: there is no device cuda:2: this machine has 2");
  for (const char* name : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "gpu", ""})
    CHECK(message_of<device_error>([&] { open_device(name); }).find("there is no device named") !=
          std::string::npos);
  CHECK(open_device("cuda:1")->name() == std::string("cuda"));
  std::string why;
  const auto note = [&](const std::string& message) { why = message; };
  CHECK(open_device("auto", {}, note)->name() == std::string("cuda"));
  CHECK(why == "");
  fake_cuda::fail("cuInit", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(open_device("auto", {}, note)->name() == std::string("cpu"));
  CHECK(why == "weft: device auto: using the CPU: weft: cuda: cuInit: out of memory");

  std::vector<listed_device> all = list_devices();
  REQUIRE(all.size() >= 3);
  CHECK(all[1].name == "cuda:1");
  CHECK(all[1].facts.memory_bytes == std::size_t{1} << 30);
  CHECK(all[1].facts.version == "compute capability 9.0");
  CHECK(all[1].unusable == "");
  CHECK(all.back().name == "cpu:0");
  fake_cuda::fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY, 1);
  all = list_devices();
  CHECK(all[0].unusable == "weft: cuda: cuStreamCreate: out of memory");
  CHECK(devices_text(all).find("cuda:0  a CPU that plays a GPU, 1024 MiB, compute capability 9.0  cannot be "
                               "used: weft: cuda: cuStreamCreate: out of memory\n") == 0);
}

namespace {
struct gpt_block {
  layer_normalization<> before, between;
  causal_self_attention<> attend;
  feed_forward<> mlp;
  static gpt_block create(const device& where) {
    return {layer_normalization<>::create(8, where), layer_normalization<>::create(8, where),
            causal_self_attention<>::create(8, 2, where), feed_forward<>::create(8, 16, where)};
  }
  auto operator()(expression auto x) const {
    return let(x + attend(before(x)), [this](auto y) { return y + mlp(between(y)); });
  }
};
struct small_gpt {
  embedding_table<> tokens;
  repeat<gpt_block> blocks;
  auto operator()(expression auto x) const { return matmul(blocks(tokens(x)), transpose(tokens.weight)); }
};

/// The driver calls of one steady-state step of a model with `blocks` blocks, on `batch` sequences.
struct step_calls {
  long launches, of_update, waits, allocations;  // launches: forward and backward; norm and update
};
step_calls steady_step(int blocks, index_t batch = 2) {
  const device d = nvidia();
  small_gpt model{embedding_table<>::create(11, 8, d), {}};
  for (int b = 0; b < blocks; ++b) model.blocks.blocks.push_back(gpt_block::create(d));
  adamw optimizer;
  self_communicator alone;
  auto run = bind<>(model, optimizer, alone, {});
  const auto launches = [] { return fake_cuda::calls("cuLaunchKernel") + fake_cuda::products_of().products; };
  step_calls seen{};
  const auto all_waits = [] { return fake_cuda::calls("cuStreamSynchronize"); };
  for (int s = 0; s < 4; ++s) {
    const long waits = all_waits(), blocks_of_memory = fake_cuda::calls("cuMemAlloc");
    const auto x = full<std::int32_t>(extents<dyn, dyn>{batch, 5}, s, d);
    const auto y = full<std::int32_t>(extents<dyn>{batch * 5}, 1, d);
    run.begin_step(static_cast<std::uint64_t>(s));
    const long before = launches();
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(flatten<0, 1>(model(x)), y));
    steps.backward(loss);
    seen.launches = launches() - before;
    run.step({.clip = 1.0});
    seen.of_update = launches() - before - seen.launches;
    (void)loss.item();
    seen.waits = all_waits() - waits;
    seen.allocations = fake_cuda::calls("cuMemAlloc") - blocks_of_memory;
  }
  return seen;
}
}  // namespace

namespace {
/// The losses and norms of three steps, then the parameters.
std::vector<double> trained_on(const device& d) {
  small_gpt model{embedding_table<>::create(11, 8, d), {}};
  for (int b = 0; b < 3; ++b) model.blocks.blocks.push_back(gpt_block::create(d));
  std::uint64_t seed = 0;
  for (const auto& p : parameters_of(model))
    flat_view<float>(p).copy_from(
        randn<float>(extents<dyn>{p->extents.size()}, {.seed = ++seed}).to_vector());
  sgd optimizer{.lr = 1e-2, .momentum = 0.9};  // adamw turns rounding errors of zeros into steps
  self_communicator alone;
  auto run = bind<>(model, optimizer, alone, {});
  std::vector<double> all;
  for (int s = 0; s < 3; ++s) {
    const auto x =
        generate<std::int32_t>(extents<dyn, dyn>{20, 5}, [&](index_t i) { return (i + s) % 11; }, d);
    const auto y = generate<std::int32_t>(extents<dyn>{100}, [&](index_t i) { return i * i % 11; }, d);
    tape steps(run);
    const auto loss = steps.eval(cross_entropy(flatten<0, 1>(model(x)), y));
    steps.backward(loss);
    all.push_back(run.step({.clip = 1.0}));
    all.push_back(loss.item());
  }
  for (const auto& p : parameters_of(model))
    for (float x : flat_view<float>(p).to_vector()) all.push_back(x);
  return all;
}

/// Parameters of several types.
struct several_types {
  parameter<extents<dyn, dyn>, float> a, b;
  parameter<extents<dyn>, double> c;
  parameter<extents<dyn>, bfloat16> d;

  template <class Optimizer>
  static std::vector<double> updated_on(const device& where, Optimizer optimizer) {
    const auto initial = init::constant(0.5);
    several_types m{make_parameter(extents<dyn, dyn>{70, 3}, initial, where),
                    make_parameter(extents<dyn, dyn>{5, 7}, initial, where),
                    make_parameter<double>(extents<dyn>{11}, initial, where),
                    make_parameter<bfloat16>(extents<dyn>{100}, initial, where)};
    context c(where);
    for (int s = 0; s < 3; ++s) {
      const auto set = [&]<class T>(const auto& p, T) {
        p.state()->grad =
            generate<T>(extents<dyn>{p.size()}, [](index_t i) { return 0.1 * double(i % 7); }, where).state();
        p.state()->grad->extents = p.state()->extents;
      };
      set(m.a, 0.f), set(m.b, 0.f), set(m.c, 0.0), set(m.d, bfloat16{});
      optimizer.step(m, 0.5, c);
    }
    std::vector<double> all;
    for (const auto& x : {m.a.to_vector(), m.b.to_vector()}) all.insert(all.end(), x.begin(), x.end());
    for (double x : m.c.to_vector()) all.push_back(x);
    for (bfloat16 x : m.d.to_vector()) all.push_back(static_cast<float>(x));
    return all;
  }
};

bool close(const std::vector<double>& a, const std::vector<double>& b, double by) {
  bool all = a.size() == b.size() && !a.empty();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = std::abs(a[i] - b[i]) <= by * (1 + std::abs(b[i]));
  return all;
}
}  // namespace

TEST_CASE("cuda: what is launched together computes what the CPU computes one by one") {
  const device d = nvidia();
  const std::vector<double> there = trained_on(d);
  CHECK(close(there, trained_on(default_device()), 2e-4));
  CHECK(there == trained_on(d));
  const auto same = [&](auto optimizer, double by) {
    const auto on_d = several_types::updated_on(d, optimizer);
    CHECK(close(on_d, several_types::updated_on(default_device(), optimizer), by));
  };
  same(adamw{.lr = 0.1}, 1e-6);
  same(sgd{.lr = 0.1}, 1e-6);
  same(sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}, 1e-6);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: launches of a block, waits of a step, and no allocation in a steady one") {
  const step_calls two = steady_step(2), four = steady_step(4);
  CHECK((four.launches - two.launches) / 2 == 24);
  CHECK(two.of_update == 3);  // all rows for the norm, the norm and the clipping factor, all parameters
  CHECK(four.of_update == 3);
  CHECK(two.waits == 1);  // the loss, together with errors of native ops
  CHECK(four.waits == 1);
  // The columns of many rows are folded in blocks, with a second launch after each launch that folds columns.
  // One more is for the bias before gelu, which the kernel of gelu's derivative sums.
  CHECK((steady_step(4, 20).launches - steady_step(2, 20).launches) / 2 == 25);
  CHECK(two.allocations == 0);
  CHECK(four.allocations == 0);
  CHECK(fake_cuda::misuse() == "");
}

namespace {
/// The value of f(x w + ...), and the calls of cuBLASLt for it.
struct product_and_more {
  std::vector<float> values;
  long launches, products, with_epilogue, added;
};
template <class Options, class F>
product_and_more computed(const device& d, F f) {
  context_for<Options> c(d);
  const auto& p = fake_cuda::products_of();
  const auto once = [&] { return eval(f(d), c); };
  once();  // compiles kernels
  const long launches = fake_cuda::calls("cuLaunchKernel");
  const auto before = p;
  const auto y = once();
  const product_and_more made{{}, fake_cuda::calls("cuLaunchKernel") - launches, p.products - before.products,
                              p.with_epilogue - before.with_epilogue, p.added - before.added};
  return {y.to_vector(), made.launches, made.products, made.with_epilogue, made.added};
}
}  // namespace

TEST_CASE("cuda: bias, residual and gelu_tanh after a product are computed by cuBLASLt with it") {
  const device d = nvidia();
  using three = extents<dyn, dyn, dyn>;
  const auto x = [](const device& on) { return randn<float>(three{2, 5, 8}, {.seed = 1}, on); };
  const auto w = [](const device& on) { return randn<float>(extents<dyn, dyn>{6, 8}, {.seed = 2}, on); };
  const auto b = [](const device& on) { return randn<float>(extents<dyn>{6}, {.seed = 3}, on); };
  const auto y = [](const device& on) { return randn<float>(three{2, 5, 6}, {.seed = 4}, on); };
  const auto product = [=](const device& on) { return matmul(x(on), transpose(w(on))); };
  // `narrow`: the tolerance of bf16; `has_f32_result`: as the bias, also then.
  const auto check = [&](auto f, long epilogues, long added, float tolerance = 2e-6f, float narrow = 0.02f,
                         bool has_f32_result = true) {
    auto& p = fake_cuda::products_of();
    const auto compare = [&]<class Options>(Options, float by, long expected_epilogues) {
      const product_and_more with = computed<Options>(d, f);
      CHECK(with.with_epilogue == expected_epilogues);
      CHECK(with.added == added);
      p.answer = 3;  // no algorithm with an epilogue: separate steps
      const product_and_more without = computed<Options>(nvidia(), f);
      p.answer = 0;
      CHECK(without.with_epilogue == 0);
      if (expected_epilogues > 0) CHECK(without.launches == with.launches + 1);
      const auto expected = computed<Options>(default_device(), f).values;
      REQUIRE(with.values.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(std::abs(with.values[i] - expected[i]) <= by * (1 + std::abs(expected[i])));
        CHECK(std::abs(with.values[i] - without.values[i]) <= by * (1 + std::abs(expected[i])));
      }
    };
    compare(program_options<>(), tolerance, epilogues);
    // The intermediate product is not rounded to bf16.
    compare(program_options<dtype::bf16>(), narrow, has_f32_result ? epilogues : 0);
  };
  check([=](const device& on) { return product(on) + b(on); }, 1, 0);
  check([=](const device& on) { return y(on) + (product(on) + b(on)); }, 1, 1);
  check([=](const device& on) { return (b(on) + product(on)) + y(on); }, 1, 1);
  check([=](const device& on) { return gelu_tanh(product(on) + b(on)); }, 1, 0);
  check([=](const device& on) { return gelu_tanh(product(on)); }, 1, 0);
  // The result must not take over the memory of the left operand, although nothing else reads it.
  const auto v = [](const device& on) { return randn<float>(extents<dyn, dyn>{6, 6}, {.seed = 7}, on); };
  check([=](const device& on) {
    return matmul(matmul(tanh(x(on)), transpose(w(on))) + b(on), v(on));
  }, 1, 0, 1e-5f, 0.2f, false);
  // cuBLASLt cannot compute these:
  check([=](const device& on) { return gelu(product(on) + b(on)); }, 0, 0);
  check([=](const device& on) { return product(on) * b(on); }, 0, 0);
  check([=](const device& on) {
    return cast<float>(matmul(cast<double>(x(on)), cast<double>(transpose(w(on))))) + b(on);
  }, 0, 0);
  check([=](const device& on) { return y(on) + y(on) + product(on); }, 0, 0);
  check([=](const device& on) { return product(on) - b(on); }, 0, 0);
  check([=](const device& on) { return product(on) + b(on) + b(on); }, 0, 0);
  check([=](const device& on) { return let(product(on), [&](auto p) { return p + p + b(on); }); }, 0, 0);
  check([=](const device& on) { return let(product(on), [](auto p) { return gelu_tanh(p + p); }); }, 0, 0,
        1e-5f);
  // The product is read again, by a row of itself or a later kernel.
  check([=](const device& on) {
    return let(matmul(v(on), v(on)), [](auto p) { return p + slice<0, 0, 1>(p); });
  }, 0, 0, 1e-5f, 0.2f);
  check([=](const device& on) {
    return let(product(on), [&](auto p) { return matmul(gelu_tanh(p + b(on)), v(on)) * p; });
  }, 0, 0, 1e-5f);
  const auto turned = [](const device& on) { return randn<float>(three{2, 6, 5}, {.seed = 5}, on); };
  const auto column = [](const device& on) {
    return randn<float>(extents<dyn, dyn, 1>{2, 5, 1}, {.seed = 6}, on);
  };
  check([=](const device& on) { return product(on) + transpose(turned(on)); }, 0, 0);
  check([=](const device& on) { return product(on) + b(on) + transpose(turned(on)); }, 0, 0);
  check([=](const device& on) { return product(on) + column(on); }, 0, 0);
  check([=](const device& on) {
    return let(product(on), [&](auto p) { return gelu_tanh(p + b(on)) + p; });
  }, 0, 0, 1e-5f);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: bias gradients are computed by cuBLASLt with the gradients of weights") {
  const device d = nvidia();
  const auto gradients = [](const device& on) {
    linear<dyn, dyn> layer = linear<dyn, dyn>::create(7, 5, on);
    initialize(layer, 3);
    const auto x = randn<float>(extents<dyn, dyn>{40, 7}, {.seed = 2}, on);
    context c(on);
    const auto seed = eval(randn<float>(extents<dyn, dyn>{40, 5}, {.seed = 4}, on) * 0.01f, c);
    std::vector<float> all;
    for (int round = 0; round < 2; ++round) {  // the second round adds to the gradients of the first
      tape steps(c);
      steps.backward(steps.eval(layer(x)), seed);  // which no kernel computes that could sum its columns
    }
    for (const auto& p : parameters_of(layer))
      for (float g : flat_view<float>(p->grad).to_vector()) all.push_back(g);
    return all;
  };
  auto& p = fake_cuda::products_of();
  const long before = p.with_epilogue;
  const auto with = gradients(d);
  CHECK(p.with_epilogue - before >= 2);
  p.answer = 3;
  const auto without = gradients(nvidia());
  p.answer = 0;
  const auto expected = gradients(default_device());
  REQUIRE(with.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::abs(with[i] - expected[i]) <= 1e-6f * (1 + std::abs(expected[i])));
    CHECK(std::abs(without[i] - expected[i]) <= 1e-6f * (1 + std::abs(expected[i])));
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: TF32 is used where it was asked for, for f32 alone") {
  const device d = nvidia();
  context c(d);
  auto& p = fake_cuda::products_of();
  const auto x = sample(d, 1);
  const auto compute_of = [&](const auto& e) {
    eval(e, c);
    return p.compute;
  };
  CHECK(compute_of(matmul(x, x)) == CUBLAS_COMPUTE_32F);
  d->allow_tf32(true);
  CHECK(compute_of(matmul(x, x)) == CUBLAS_COMPUTE_32F_FAST_TF32);
  const auto half = eval(cast<bfloat16>(x), c);
  CHECK(compute_of(matmul(half, half)) == CUBLAS_COMPUTE_32F);
  const auto wide = eval(cast<double>(x), c);
  CHECK(compute_of(matmul(wide, wide)) == CUBLAS_COMPUTE_64F);
  d->allow_tf32(false);
  const long questions = p.questions;
  eval(matmul(x, x), c);
  CHECK(p.questions == questions);  // its algorithm is still known
  default_device()->allow_tf32(true);
}

TEST_CASE("cuda: the norm that the device computes has the bits of the host's, and waits when it is read") {
  const device d = nvidia();
  // Gradients whose squares differ widely, are subnormal, zero, infinite, or NaN.
  for (const float special : {1.f, 0.f, 1e-30f, 1e-42f, 3e38f, INFINITY, NAN}) {
    CAPTURE(special);
    const auto measured_on = [&](const device& where, double clip) {
      context c(where);
      tensor_list gradients;
      for (std::uint64_t seed : {1, 2}) {
        std::vector<float> values = randn<float>(extents<dyn>{700}, {.seed = seed}).to_vector();
        for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= std::ldexp(1.f, -int(i % 60));
        if (special == 0.f) std::fill(values.begin(), values.end(), 0.f);
        else values[seed * 5] = special;
        gradients.push_back(from(extents<dyn, dyn>{100, 7}, values, where).state());
        gradients.push_back(from(extents<dyn>{700}, values, where).state());
      }
      self_communicator alone;
      const long waits = fake_cuda::calls("cuStreamSynchronize");
      auto m = parallel::measured_gradients(c, gradients, alone, {}, 0.25, 8, clip);
      CHECK(fake_cuda::calls("cuStreamSynchronize") == waits);
      const double host = parallel::norm_over_ranks(c, gradients, alone, {}) / 8 * 0.25;
      std::vector<double> all{m.norm, m.scale.as<float>(where).item(), m.scale.as<double>(where).item()};
      const bool same = all[0] == host || (std::isnan(all[0]) && std::isnan(host));
      CHECK(same);
      const double expected = 0.25 / 8 * (clip > 0 ? clip_factor(host, clip) : 1.0);
      const bool same_scale = all[2] == expected || (std::isnan(all[2]) && std::isnan(expected));
      CHECK(same_scale);
      const bool rounded = all[1] == static_cast<float>(expected) || std::isnan(expected);
      CHECK(rounded);
      return all;
    };
    for (const double clip : {0.0, 1e-3, 1e30}) {
      CAPTURE(clip);
      const auto there = measured_on(d, clip), here = measured_on(default_device(), clip);
      for (std::size_t i = 0; i < there.size(); ++i) {
        const bool same = there[i] == here[i] || (std::isnan(there[i]) && std::isnan(here[i]));
        CHECK(same);
      }
    }
  }
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: a step in one call waits once, whatever the number of micro-batches") {
  const device d = nvidia();
  classifier model = create<classifier>(d);
  initialize(model, 3);
  adamw optimizer;
  self_communicator alone;
  auto run = bind<>(model, optimizer, alone, {});
  const auto x = randn<float>(extents<dyn, 7>{4, 7}, {.seed = 2}, d);
  const auto labels = generate<std::int32_t>(extents<dyn>{4}, [](index_t i) { return i % 3; }, d);
  const auto step = [&](index_t m, const step_options& o) {
    const long before = fake_cuda::calls("cuStreamSynchronize");
    run.step(m, [&](index_t) { return cross_entropy(model(x), labels); }, o);
    return fake_cuda::calls("cuStreamSynchronize") - before;
  };
  step(1, {});
  CHECK(step(1, {.clip = 1}) == 1);
  CHECK(step(3, {.clip = 1}) == 1);
  CHECK(step(3, {.finite = true}) == 2);  // the losses, before parameters change; the norm
}

TEST_CASE("cuda: uploads are not waited for, and the host may change what was uploaded") {
  const device d = nvidia();
  const long before = fake_cuda::calls("cuStreamSynchronize");
  std::vector<float> values(1000);
  const auto sum = full<float>(extents<dyn>{1000}, 0, d);
  context c(d);
  auto x = empty<float>(extents<dyn>{1000}, d);
  const auto upload = [&](int i) {
    std::fill(values.begin(), values.end(), static_cast<float>(i));
    x.copy_from(values);
    update(sum, sum + x, c);
  };
  for (int i = 0; i < 100; ++i) upload(i);
  CHECK(fake_cuda::calls("cuStreamSynchronize") == before);
  CHECK(sum.to_vector() == std::vector<float>(1000, 4950));
  CHECK(fake_cuda::calls("cuStreamSynchronize") == before + 1);
  for (int i = 0; i < 2500; ++i) upload(1);  // more than fits in staging memory
  CHECK(sum.to_vector() == std::vector<float>(1000, 7450));
  CHECK(fake_cuda::calls("cuStreamSynchronize") <= before + 5);
  const std::vector<float> large(std::size_t{3} << 19, 5);  // at once
  CHECK(from(extents<dyn>{3 << 19}, large, d).to_vector() == large);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: threads that share a device upload and read through the same staging memory") {
  const device d = nvidia();
  std::atomic<int> wrong{0};
  const auto work = [&](int of) {
    for (int i = 0; i < 50; ++i) {
      const std::vector<int> values(static_cast<std::size_t>(100 + of), 1000 * of + i);
      wrong += from<std::int32_t>(extents<dyn>{100 + of}, values, d).to_vector() != values;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  }
  CHECK(wrong == 0);
  CHECK(fake_cuda::misuse() == "");
}

TEST_CASE("cuda: few columns of many rows are folded in blocks side by side, and the blocks in their order") {
  const device d = nvidia();
  const auto folded_on = [](const device& on_device) {
    context c(on_device);
    const auto x = randn<float>(extents<dyn, dyn>{1003, 5}, {.seed = 6}, on_device);
    const auto y = randn<float>(extents<dyn, dyn, dyn>{3, 130, 7}, {.seed = 7}, on_device);
    std::vector<float> all;
    for (const auto& some :
         {eval(sum(x * x + 1.0f, dims<0>), c).to_vector(), eval(amax(x, dims<0>), c).to_vector(),
          eval(amin(exp(y), dims<1>), c).to_vector(), eval(sum(y, dims<1>), c).to_vector()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  };
  const long before = fake_cuda::calls("cuLaunchKernel");
  const auto there = folded_on(d), again = folded_on(d), expected = folded_on(default_device());
  CHECK(fake_cuda::calls("cuLaunchKernel") - before == 16);  // two texts each
  REQUIRE(there.size() == expected.size());
  for (std::size_t i = 0; i < there.size(); ++i)
    CHECK(std::abs(there[i] - expected[i]) <= 1e-5f * (1 + std::abs(expected[i])));
  CHECK(there == again);
  kernel_call call;
  call.division = kernel_division::columns;
  call.column_folds = 1;
  call.args.order = 2;
  call.args.folded = 1;
  call.args.extent[0] = 32768;
  call.args.extent[1] = 768;
  CHECK(column_blocks(call).blocks == 1024);
  CHECK(group_scratch_bytes(call) == 1024 * 768 * 8);
  call.args.extent[1] = 1 << 20;  // enough columns, but long ones
  CHECK(column_blocks(call).blocks == 16);
  CHECK(group_scratch_bytes(call) == column_blocks::most_scratch);
  call.args.extent[0] = 500;
  CHECK(column_blocks(call).blocks == 1);
  CHECK(group_scratch_bytes(call) == 0);
  CHECK(fake_cuda::misuse() == "");
}
