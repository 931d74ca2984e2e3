// SPDX-License-Identifier: MIT
// How long a save holds up a run: 124M parameters with AdamW's state, to a file at once and from a
// copy on a thread. checkpoint [FOLDER]
#include <cstdio>

#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

using namespace weft;

struct net {
  std::vector<linear<>> layers;  // GPT-2's 124M in matrices: an embedding and 12 times 4 C^2 + 8 C^2
};

int main(int count, char** values) {
  const std::string folder = count > 1 ? values[1] : "build/checkpoint-benchmark";
  net model;
  model.layers.push_back(linear<>::create(768, 50304));
  for (int i = 0; i < 12; ++i)
    for (index_t out : {3 * 768, 768, 4 * 768, 4 * 768}) model.layers.push_back(linear<>::create(768, out));
  adamw optimizer;
  for (const auto& [name, p] : state_dict(model)) {
    optimizer.state.get("exp_avg", name, *p);
    optimizer.state.get("exp_avg_sq", name, *p);
  }
  std::printf("%lld parameters\n", static_cast<long long>(parameter_count(model)));
  auto run = bind<policy<strategy::single>>(model, optimizer);
  checkpointer at_once(folder, run, {.asynchronous = false, .keep = 1}), aside(folder, run, {.keep = 1});
  for (int round = 0; round < 4; ++round)
    for (bool asynchronous : {false, true}) {
      auto& saves = asynchronous ? aside : at_once;
      const double first = saves.save({2 * round + asynchronous, 0});
      const auto start = std::chrono::steady_clock::now();
      saves.finish();
      const std::chrono::duration<double, std::milli> rest = std::chrono::steady_clock::now() - start;
      std::printf("%s: held up %.0f ms, written after %.0f ms more\n", asynchronous ? "from a copy" : "at once", first, rest.count());
    }
  std::filesystem::remove_all(folder);
}
