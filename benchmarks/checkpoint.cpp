// SPDX-License-Identifier: MIT
// How long a save blocks a run: 124M parameters with AdamW's state, written directly to a file, or copied and
// then written by a thread while steps go on. checkpoint [FOLDER]
#include <cstdio>
#include <filesystem>

#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct net {
  std::vector<linear<>> layers;  // GPT-2's 124M as matrices: an embedding and 12 times 4 C^2 + 8 C^2
};

int main(int count, char** values) {
  const std::string folder = count > 1 ? values[1] : "build/checkpoint-benchmark";
  net model;
  model.layers.push_back(linear<>::create(768, 50304));
  for (int i = 0; i < 12; ++i)
    for (index_t out : {3 * 768, 768, 4 * 768, 4 * 768}) model.layers.push_back(linear<>::create(768, out));
  adamw optimizer;
  std::printf("%lld parameters\n", static_cast<long long>(parameter_count(model)));
  auto run = bind<policy<strategy::single>>(model, optimizer);
  const auto x = randn<float>(extents<dyn, dyn>{256, 768});
  const auto step = [&] {  // milliseconds
    const auto start = std::chrono::steady_clock::now();
    for (const auto& layer : model.layers) {
      tape steps(run);
      steps.backward(steps.eval(mean(square(layer(x)))));
    }
    run.step();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  for (int i = 0; i < 2; ++i) step();
  std::printf("a step takes %.0f ms\n", step());
  checkpointer at_once(folder + "/at-once", run, {.asynchronous = false, .keep = 1}),
      aside(folder + "/aside", run, {.keep = 1});
  for (int round = 0; round < 4; ++round)
    for (bool asynchronous : {false, true}) {
      auto& saves = asynchronous ? aside : at_once;
      const double before = saves.held_up_ms();
      saves.save({2 * round + asynchronous, 0});
      const double at_save = saves.held_up_ms() - before, next = step();
      std::printf("%s: held up %.0f ms in save, %.0f ms in the next step, which took %.0f ms\n",
                  asynchronous ? "aside" : "at once", at_save, saves.held_up_ms() - before - at_save, next);
      saves.finish();
    }
  const std::string bytes(std::size_t{1} << 28, 'x');
  const auto gigabytes_per_second = [](std::size_t n, auto f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return 1e-9 * static_cast<double>(n) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::uint64_t sum = 0;
  const double hashed = gigabytes_per_second(8 * bytes.size(), [&] {
    for (std::uint64_t i = 0; i < 8; ++i) sum += xxh64(bytes, i);
  });
  const std::size_t saved = 12 * static_cast<std::size_t>(parameter_count(model));
  const double loaded = gigabytes_per_second(saved, [&] { at_once.load(); });
  const double written = gigabytes_per_second(
      bytes.size(), [&] { io::replace_file(io::system_calls(), folder + "/plain", {bytes}); });
  std::printf("GB/s: checksums %.1f (%016llx), loading %.2f, writing and syncing a file %.2f\n", hashed,
              static_cast<unsigned long long>(sum), loaded, written);
  std::filesystem::remove_all(folder);
}
