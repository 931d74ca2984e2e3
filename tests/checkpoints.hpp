// SPDX-License-Identifier: MIT
// A small model whose runs the checkpoint tests save, damage and resume.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

namespace weft::test {

namespace fs = std::filesystem;

struct folder {
  fs::path path;
  explicit folder(const std::string& name, const fs::path& in = fs::temp_directory_path())
      : path(in / (name + "-" + std::to_string(::getpid()))) {
    fs::remove_all(path);
  }
  ~folder() { fs::remove_all(path); }
  std::string name() const { return path.string(); }
};

inline std::string bytes_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// A model with rows that two ranks shard unevenly, and a buffer.
struct net {
  parameter<extents<3, 2>> table = make_parameter(extents<3, 2>{}, init::normal(1));
  parameter<extents<2>> bias = make_parameter(extents<2>{}, init::normal(1));
  tensor<float, extents<2>> seen = full<float>(extents<2>{}, 0.0f);
  auto operator()(expression auto x) const { return matmul(x, table) + bias; }
};

/// A run of `net` on a rank; its parameters after s steps are a function of s and the seed.
struct bound_net {
  net model;
  adamw optimizer{.lr = 0.05};
  bound_run<adamw> run;
  tensor<float, extents<4, 3>> x = tensor<float, extents<4, 3>>(shape{2, {4, 3}}, default_device());
  explicit bound_net(communicator& ranks, std::uint64_t seed = 3)
      : run(bound(model, optimizer, ranks, seed)) {
    std::vector<float> v(12);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.25f * static_cast<float>(i % 5) - 0.5f;
    x.copy_from(v);
  }
  static bound_run<adamw> bound(net& model, adamw& optimizer, communicator& ranks, std::uint64_t seed) {
    initialize(model, seed);
    parallel_options o{.divide = sharding::parameters, .deterministic = true};
    o.timeout = std::chrono::seconds(20);
    return bind(model, optimizer, ranks, o);
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      tape t(run);
      t.backward(t.eval(mean(square(model(x) - 1.0f))));
      update(run, {model.seen.state()}, model.seen * 0.5f + mean(model(x), dims<0>));
      run.step();
    }
  }
  /// Parameters, buffers and optimizer state. Collective.
  std::vector<float> values() {
    std::vector<float> all;
    for (const state_dict_t& tensors : {run.full(), run.full_optimizer()})
      for (const auto& [name, p] : tensors) {
        std::vector<float> v(static_cast<std::size_t>(p->extents.size()));
        weft::detail::download_to(*p, v.data());
        all.insert(all.end(), v.begin(), v.end());
      }
    all.push_back(static_cast<float>(optimizer.steps));
    return all;
  }
};

}  // namespace weft::test
