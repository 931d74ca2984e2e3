// SPDX-License-Identifier: MIT
// Named ranges, as received by a profiler through NVTX and by a custom sink.
#include <doctest/doctest.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/gpu/open.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {

template <class F>
F* of_tool(const char* name) {
  void* const tool = dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
  REQUIRE(tool);
  return reinterpret_cast<F*>(dlsym(tool, name));
}
std::string ranges() { return of_tool<const char*()>("fake_nvtx_ranges")(); }
int depth() { return of_tool<int()>("fake_nvtx_depth")(); }

struct classifier {
  linear<7, 5> hidden;
  linear<5, 3> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};

/// Text in the format of the tool.
class text_sink final : public range_sink {
 public:
  void begin(const char* name, std::int64_t) noexcept override {
    text += std::string(depth++, ' ') + name + '\n';
  }
  void end() noexcept override { --depth; }
  std::string text;
  std::size_t depth = 0;
};

/// Steps of a rank, with a custom range.
void train(const device& d, communicator& ranks) {
  classifier model = create<classifier>(d);
  sgd optimizer{.lr = 0.1};
  auto run = bind<policy<strategy::data_parallel>>(model, optimizer, ranks, parallel_options{});
  const auto x = randn<float>(extents<dyn, 7>{4, 7}, {.seed = 2}, d);
  const auto labels = generate<std::int32_t>(extents<dyn>{4}, [](index_t i) { return i % 3; }, d);
  for (int s = 0; s < 2; ++s) {
    const record_function range([&] { return "batch " + std::to_string(s); });
    run.step(1, [&](index_t) { return cross_entropy(model(x), labels); });
  }
}
const std::string alone =
    "batch 0\n step\n  forward\n  backward\n  gradient norm\n  optimizer step\n"
    "batch 1\n step\n  forward\n  backward\n  gradient norm\n  optimizer step\n";

/// The lines of `text` that begin, after spaces, with one of these words.
std::string lines(const std::string& text, std::initializer_list<std::string_view> words) {
  std::string found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at), word = text.find_first_not_of(' ', at);
    if (std::any_of(words.begin(), words.end(), [&](auto w) { return text.compare(word, w.size(), w) == 0; }))
      found += text.substr(at, end + 1 - at);
    at = end + 1;
  }
  return found;
}
const std::initializer_list<std::string_view> own{
    "batch", "step", "forward", "recompute", "backward", "gradient norm", "optimizer step", "eval"};

}  // namespace

TEST_CASE("ranges: nothing is sent before a device of CUDA is open, nor built") {
  bool built = false;
  {
    const record_function range([&] {
      built = true;
      return "unseen";
    });
  }
  CHECK(!built);
  CHECK(ranges() == "");
}

TEST_CASE("ranges: a sink of the program's own gets those of all, and NVTX nothing then") {
  text_sink sink;
  REQUIRE(set_range_sink(&sink) == nullptr);
  self_communicator ranks;
  const device d(std::make_shared<gpu::cuda_backend>(0));
  train(d, ranks);
  CHECK(set_range_sink(nullptr) == &sink);
  CHECK(lines(sink.text, own) == alone);
  CHECK(sink.depth == 0);
  CHECK(ranges() == "");
}

TEST_CASE("ranges: NVTX gets steps, passes and updates, nested") {
  self_communicator ranks;
  const device d(std::make_shared<gpu::cuda_backend>(0));
  ranges();
  train(d, ranks);
  CHECK(lines(ranges(), own) == alone);
  CHECK(depth() == 0);
}

TEST_CASE("ranges: operations of ranks have their kind, size and label; an error ends its ranges") {
  ranges();
  run_ranks(2, [&](communicator& ranks) {
    train(default_device(), ranks);
    CHECK(depth() == 0);
  });
  const std::string all = ranges();
  CHECK(all.find("all_reduce") != std::string::npos);
  CHECK(all.find("losses") != std::string::npos);
  self_communicator ranks;
  classifier model = create<classifier>(default_device());
  sgd optimizer{.lr = 0.1};
  auto run = bind<policy<strategy::data_parallel>>(model, optimizer, ranks, parallel_options{});
  CHECK_THROWS(run.step(1, [&](index_t) {
    throw value_error("weft: no batch");
    return cross_entropy(model(zeros<float>(extents<dyn, 7>{4, 7})), full<std::int32_t>(extents<dyn>{4}, 0));
  }));
  CHECK(depth() == 0);
}
