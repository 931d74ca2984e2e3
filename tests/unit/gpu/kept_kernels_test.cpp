// SPDX-License-Identifier: MIT
// A device's kernels in the cache on disk: the next process compiles none of them and computes the same.
// WEFT_TEST_DEVICE=cuda selects CUDA; otherwise the device is OpenCL's. Every use of a device is in a
// separate process.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <weft/gpu/jit_backend.hpp>
#include <weft/gpu/open.hpp>
#include <weft/weft.hpp>

#include "../../skip.hpp"

using namespace weft;
namespace fs = std::filesystem;

namespace {

/// How a test changes the device.
struct changes {
  std::string driver{};     // another version
  std::string code{};       // returned by the driver in place of machine code
  bool in_reverse = false;  // the ops in the opposite order
};

/// The counts of a process.
struct outcome {
  int compiled = 0;
  std::vector<float> values;
  std::string error;
};

template <class Backend>
class counted : public Backend {
 public:
  explicit counted(const changes& c) : changes_(c) {}
  std::atomic<int> compiled = 0;

 protected:
  std::shared_ptr<gpu::compiled_kernel> compile(const std::string& text) override {
    ++compiled;
    return Backend::compile(text);
  }
  std::string code_identity() const override { return Backend::code_identity() + changes_.driver; }
  std::vector<char> code_of(gpu::compiled_kernel& kernel) const override {
    const std::vector<char> code = Backend::code_of(kernel);
    return changes_.code.empty() ? code : std::vector<char>(changes_.code.begin(), changes_.code.end());
  }

 private:
  changes changes_;
};

/// Fused kernels over elements, rows and columns, a matrix product, a copy, look-ups; then an index out of
/// range.
void compute(const device& d, bool in_reverse, outcome& o) {
  context c(d);
  const auto append = [&](const auto& e) {
    for (const float x : eval(e, c).to_vector()) o.values.push_back(x);
  };
  const auto x = randn<float>(extents<dyn, dyn>{7, 5}, {.seed = 1}, d),
             y = randn<float>(extents<dyn, dyn>{5, 7}, {.seed = 2}, d);
  const auto index = [&](int times) {
    return generate<std::int32_t>(extents<3>{}, [=](index_t i) { return times * static_cast<int>(i); }, d);
  };
  const std::function<void()> ops[] = {[&] { append(exp(x) * 2.0f); },
                                       [&] { append(matmul(x, y)); },
                                       [&] { append(softmax(x)); },
                                       [&] { append(sum(x, dims<0>)); },
                                       [&] { append(concat<0>(x, x)); },
                                       [&] { append(embedding(x, index(2))); },
                                       [&] { append(cumsum<0>(x)); }};
  const std::size_t count = std::size(ops);
  for (std::size_t i = 0; i < count; ++i) ops[in_reverse ? count - 1 - i : i]();
  try {
    eval(embedding(x, index(5)), c).to_vector();
  } catch (const value_error& e) {
    o.error = e.what();
  }
}

template <class Backend>
outcome outcome_on(const changes& c) {
  const auto backend = std::make_shared<counted<Backend>>(c);
  const device d(backend);
  outcome o;
  compute(d, c.in_reverse, o);
  o.compiled = backend->compiled;
  return o;
}

const std::string& kind() {
  const char* const set = std::getenv("WEFT_TEST_DEVICE");
  static const std::string name = set && std::strncmp(set, "cuda", 4) == 0 ? "cuda" : "opencl";
  return name;
}

outcome outcome_here([[maybe_unused]] const changes& c) {
#if WEFT_WITH_OPENCL
  if (kind() == "opencl") return outcome_on<gpu::opencl_backend>(c);
#endif
#if WEFT_WITH_CUDA
  if (kind() == "cuda") return outcome_on<gpu::cuda_backend>(c);
#endif
  throw device_error("not part of this build");
}

/// Runs a process on the device with the cache in `folder`; compiled is -1 without a device.
outcome in_process(const fs::path& folder, const changes& c = {}) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("WEFT_KERNEL_CACHE", folder.c_str(), 1);
    setenv("POCL_KERNEL_CACHE", "0", 1);  // a cache of PoCL's own
    outcome o;
    try {
      o = outcome_here(c);
    } catch (const std::exception& e) {
      o.compiled = -1;
      o.error = e.what();
    }
    std::ofstream to("/proc/self/fd/" + std::to_string(ends[1]));
    to << o.compiled << ' ' << o.values.size();
    for (const float x : o.values) to << ' ' << std::bit_cast<std::uint32_t>(x);
    to << ' ' << o.error << std::flush;
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  std::istringstream from(text);
  outcome o;
  std::size_t count = 0;
  from >> o.compiled >> count;
  for (std::uint32_t bits; count > 0 && from >> bits; --count) o.values.push_back(std::bit_cast<float>(bits));
  std::getline(from >> std::ws, o.error, '\0');
  return o;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// A folder for kernels; without a device the test is skipped.
struct kernels {
  kernels() {
    std::string name = (fs::temp_directory_path() / "weft_kept.XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    at = name;
    first = in_process(at);
    if (first.compiled < 0) test::skip(kind(), first.error);
  }
  ~kernels() {
    std::error_code ignored;
    fs::remove_all(at, ignored);
  }
  fs::path at;
  outcome first;
};

}  // namespace

TEST_CASE(
    "kernels of a device are compiled once: other processes load them and compute the same, whatever their "
    "order, and compile those again that are damaged, of another driver, or refused") {
  const kernels kept;
  const outcome& first = kept.first;
  if (first.compiled < 0) return;
  const int count = first.compiled;
  CHECK(count >= 6);
  CHECK(files_in(kept.at) == static_cast<std::size_t>(count));
  const auto check = [&](const outcome& o, int compiled) {
    CHECK(o.compiled == compiled);
    CHECK(same_bits(o.values, first.values));
    CHECK(o.error == first.error);
  };
  CHECK(first.error.find("embedding") != std::string::npos);
  outcome cpu;
  compute(default_device(), false, cpu);
  REQUIRE(cpu.values.size() == first.values.size());
  for (std::size_t i = 0; i < cpu.values.size(); ++i)
    CHECK(std::abs(cpu.values[i] - first.values[i]) <= 1e-5f);

  check(in_process(kept.at), 0);
  const outcome in_reverse = in_process(kept.at, {.in_reverse = true});
  CHECK(in_reverse.compiled == 0);
  CHECK(in_reverse.error == first.error);

  int damaged = 0;
  for (const fs::directory_entry& e : fs::directory_iterator(kept.at)) {
    if (damaged == 3) break;
    std::fstream file(e.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1 - 100 * damaged++, std::ios::end);
    const int byte = file.get();
    file.seekp(-1, std::ios::cur);
    file.put(static_cast<char>(byte ^ 1));
  }
  check(in_process(kept.at), 3);
  check(in_process(kept.at), 0);

  const changes other{.driver = "of another version"};
  changes refusing = other;
  refusing.code = "no machine code at all";
  check(in_process(kept.at, refusing), count);  // the driver's version is another
  CHECK(files_in(kept.at) == static_cast<std::size_t>(2 * count));
  check(in_process(kept.at, other), count);  // the driver refuses the cached code
  check(in_process(kept.at, other), 0);
  CHECK(files_in(kept.at) == static_cast<std::size_t>(2 * count));
  check(in_process(""), count);  // nothing is kept
}
