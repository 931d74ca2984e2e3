// SPDX-License-Identifier: MIT
// The layers of random models (models.py), and their training on one rank and on several.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/nn/mixture_of_experts.hpp>
#include <weft/nn/recurrent.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/optim/rmsprop.hpp>
#include <weft/parallel/context_parallel.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

#include "../elements.hpp"

namespace models {

using namespace weft;

// Layers that keep the shape [..., C]. C and hidden sizes are static, or given to `create` at run time.

template <class Inner>
struct residual {
  Inner inner;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + inner(h); });
  }
};
template <class Norm, class Inner>
struct normed {
  Norm norm;
  Inner inner;
  auto operator()(expression auto x) const { return inner(norm(x)); }
};
template <class First, class Second>
struct chain {
  First first;
  Second second;
  auto operator()(expression auto x) const { return second(first(x)); }
};
template <class Inner>
struct twice {  // one set of parameters, used twice
  Inner inner;
  auto operator()(expression auto x) const { return inner(tanh(inner(x))); }
};
template <class Inner>
struct frozen {  // parameters that never have a gradient
  Inner inner;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return h + detach(inner(h)); });
  }
};
template <index_t C, index_t H, class Activation>
struct mlp {
  linear<C, H, divided::columns<>> in;
  linear<H, C, divided::rows<>> out;
  auto operator()(expression auto x) const { return out(Activation{}(in(x))); }
};
template <index_t C, index_t H, class Activation>
struct mlp_of_run_time_sizes {
  linear<> in = linear<>::create(C, H), out = linear<>::create(H, C);
  auto operator()(expression auto x) const { return out(Activation{}(in(x))); }
};
template <index_t C, index_t H>
struct gated {
  linear_without_bias<C, H, divided::columns<>> gate, up;
  linear_without_bias<H, C, divided::rows<>> down;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) { return down(silu(gate(h)) * up(h)); });
  }
};
template <index_t C>
struct scaled {
  parameter<extents<C>> scale = make_parameter(extents<C>{}, init::constant(1));
  parameter<extents<C>> shift = make_parameter(extents<C>{}, init::normal(0.1));
  auto operator()(expression auto x) const { return x * scale + shift; }
};
template <index_t C>
struct mixing {
  parameter<extents<C, C>> weight = make_parameter(extents<C, C>{}, init::normal(0.3));
  auto operator()(expression auto x) const { return matmul(x, weight); }
};
template <index_t C, index_t Heads, bool Causal>
struct attending {
  linear<C, C, divided::columns<1>> q, k, v;
  linear<C, C, divided::rows<>> o;
  auto operator()(expression auto x) const {
    return let(x, [this](auto h) {
      const auto of = [](auto y) { return unflatten<-1>(y, Heads); };
      if constexpr (Causal) return o(flatten<-2, -1>(attention<causal>(of(q(h)), of(k(h)), of(v(h)))));
      else return o(flatten<-2, -1>(attention<!causal>(of(q(h)), of(k(h)), of(v(h)))));
    });
  }
};
template <index_t C, class Layer>
struct over_time {  // of [B, T, C]
  Layer layer;
  auto operator()(expression auto x) const { return transpose<0, 1>(layer(transpose<0, 1>(x))); }
};
template <index_t C>
struct convolved {  // of [B, T, C]
  convolution1d<C, C, 3, conv_options{.padding = 1}> layer;
  auto operator()(expression auto x) const { return transpose<1, 2>(layer(transpose<1, 2>(x))); }
};
struct self_gated {
  auto operator()(expression auto x) const {
    return let(x, [](auto h) { return h * softmax(h); });
  }
};
template <index_t C>
struct halves_swapped {
  auto operator()(expression auto x) const {
    return let(x, [](auto h) { return concat<-1>(slice<-1, C / 2, C>(h), slice<-1, 0, C / 2>(h)); });
  }
};
struct summed_up {  // of [B, T, C]
  auto operator()(expression auto x) const { return cumsum<1>(x) * 0.3f; }
};
struct dropped {
  auto operator()(expression auto x) const { return dropout(x, 0.2f); }
};
template <index_t C, class Expert, int N, int Each>
struct mixture {
  mixture_of_experts<C, Expert> layer =
      mixture_of_experts<C, Expert>::create(C, N, {.per_row = Each}, [] { return Expert(); });
  auto operator()(expression auto x) const { return layer(x); }
};
template <class Inner>
struct shared_by_two {
  Inner inner;
  auto operator()(expression auto x) const {
    auto h = shared(inner(x));
    return h * sigmoid(h);
  }
};
template <class Block, int N>
struct repeated {
  repeat<Block> blocks{std::vector<Block>(N)};
  auto operator()(expression auto x) const { return blocks(x); }
};

struct relu_fn { auto operator()(expression auto x) const { return relu(x); } };
struct gelu_fn { auto operator()(expression auto x) const { return gelu(x); } };
struct tanh_fn { auto operator()(expression auto x) const { return tanh(x); } };
struct silu_fn { auto operator()(expression auto x) const { return silu(x); } };

// Data: the numbers of a micro-batch, the same as in models.py.

inline std::int64_t hashed(index_t number, index_t i, index_t salt, index_t below) {
  const auto u = static_cast<std::uint64_t>(number * 7919 + i * 104729 + salt * 1299709 + 12345);
  return static_cast<std::int64_t>((u * 2654435761u >> 9) % static_cast<std::uint64_t>(below));
}
template <class E>
auto words_of(E e, index_t number, index_t below) {
  return generate<std::int64_t>(e, [=](index_t i) { return hashed(number, i, 1, below); });
}
template <class E>
auto labels_of(E e, index_t number, index_t below) {  // the first is not 0, which some losses ignore
  return generate<std::int64_t>(
      e, [=](index_t i) { return i ? hashed(number, i, 2, below) : 1 + hashed(number, i, 2, below - 1); });
}
template <class E>
auto real_numbers(E e, index_t number, index_t salt) {
  return generate<float>(
      e, [=](index_t i) { return static_cast<float>(hashed(number, i, salt, 2001) - 1000) / 500.0f; });
}

// Training.

struct setting {
  std::string name;
  int ranks = 1;
  parallel_options options{};
  int recompute = 0;
  bool deferred = false;
};
struct mesh_setting {
  std::string name;
  mesh_sizes sizes{};
  std::string schedule;
  bool deterministic = false;
  int recompute = 0;
};
struct outcome {
  std::vector<double> losses, norms;
  std::vector<float> parameters;
};

/// The loss of a micro-batch.
template <class Program>
auto loss_of(const typename Program::model& m, index_t number) {
  return Program::loss(m.back(m.front(Program::input(number))), Program::target(number));
}
/// The same for this rank's positions.
template <class Program, class Run>
auto loss_of_part(Run& run, const typename Program::model& m, index_t number) {
  const context_part own = run.part_of_context(Program::positions);
  return Program::loss(m.back(m.front(own.of(Program::input(number)))), own.of(Program::target(number)));
}
/// The value of the loss, from one statement or two.
template <class Program>
auto evaluated_loss(auto& steps, const typename Program::model& m, index_t number) {
  if constexpr (Program::statements == 2) {
    const auto h = steps.eval(m.front(Program::input(number)));
    return steps.eval(Program::loss(m.back(h), Program::target(number)));
  } else {
    return steps.eval(loss_of<Program>(m, number));
  }
}

/// The steps of a run: all, those up to a checkpoint in `folder`, or those after it.
struct part_of_run {
  int first = 0, last = 0;
  std::string folder{};
};

/// Trains a bound run; returns losses, norms and parameters.
template <class Program, bool DividesPositions, class Run>
outcome train(Run& run, typename Program::model& model, index_t data_ranks, int recompute,
              const part_of_run& part) {
  run.seed = 3;
  run.recompute_programs = recompute;
  outcome result;
  const index_t each = Program::total / data_ranks;
  const auto loss = [&](index_t number) {
    if constexpr (DividesPositions) return loss_of_part<Program>(run, model, number);
    else return loss_of<Program>(model, number);
  };
  std::optional<checkpointer<Run>> saves;
  if (!part.folder.empty()) {
    if constexpr (requires { run.prepare(loss(0), each); }) run.prepare(loss(0), each);
    saves.emplace(part.folder, run);
    if (saves->load().value_or(run_position{}).step != part.first) throw error("another position");
  }
  for (int s = part.first; s < part.last; ++s) {
    const auto number = [&](index_t j) { return s * Program::total + run.micro_batch(j, each); };
    const step_options o{.clip = Program::clip, .micro_batches = each};
    if constexpr (Program::statements == 0) {
      const auto r = run.step(
          each, [&](index_t j) { return loss(number(j)); }, o);
      result.losses.push_back(r.loss);
      result.norms.push_back(r.norm);
    } else {
      std::vector<double> losses(static_cast<std::size_t>(Program::total));
      for (index_t j = 0; j < each; ++j) {
        const index_t g = run.micro_batch(j, each);
        run.begin_micro_batch(static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(g));
        const auto quiet = run.no_sync(j + 1 < each);
        tape steps(run);
        if constexpr (DividesPositions) {
          const auto part = steps.eval(loss(number(j)));
          steps.backward(part);
          losses[static_cast<std::size_t>(g)] =
              run.loss_weight * part.item() * data_ranks / run.groups().data().size();
        } else {
          const auto whole = evaluated_loss<Program>(steps, model, number(j));
          steps.backward(whole);
          losses[static_cast<std::size_t>(g)] = whole.item();
        }
      }
      run.groups().data().all_reduce(losses, reduction::sum, {.control = true}).wait();
      double sum = 0;
      for (const double l : losses) sum += l;
      result.losses.push_back(sum / static_cast<double>(Program::total));
      result.norms.push_back(run.step(o));
    }
  }
  if (saves) {
    saves->save({.step = part.last});
    saves->finish();
  }
  result.parameters = test::elements_of(run.full());
  return result;
}

inline device another_device() { return device(std::make_shared<cpu::cpu_backend>(1)); }
inline std::string first_name(const std::string& parameter) {
  return parameter.substr(0, parameter.find('.'));
}

/// The outcome that all ranks agree on; `run_of(model, optimizer, ranks)` binds.
template <class Program, bool DividesPositions, class Bind>
outcome train_on_ranks(int n, index_t data_ranks, int recompute, bool deferred, const part_of_run& part,
                       Bind run_of) {
  std::vector<outcome> all(static_cast<std::size_t>(n));
  run_ranks(n, [&](communicator& ranks) {
    auto model = create<typename Program::model>(deferred ? default_device().deferred() : default_device());
    initialize(model, part.first == 0 ? 5 : 6);  // values that a checkpoint replaces
    auto optimizer = Program::optimizer();
    auto run = run_of(model, optimizer, ranks);
    all[static_cast<std::size_t>(ranks.rank())] =
        train<Program, DividesPositions>(run, model, data_ranks, recompute, part);
  });
  for (const outcome& o : all)
    if (o.losses != all[0].losses || o.parameters != all[0].parameters)
      throw error("ranks have different results");
  return all[0];
}
template <class Program>
outcome train_on(const setting& s, const part_of_run& part) {
  return train_on_ranks<Program, false>(s.ranks, s.ranks, s.recompute, s.deferred, part,
                                        [&](auto& model, auto& optimizer, communicator& ranks) {
                                          return bind<typename Program::precision>(model, optimizer, ranks,
                                                                                   s.options);
                                        });
}
/// Trains on a mesh with the axes of Plan.
template <class Program, class Plan>
outcome train_on_mesh(const mesh_setting& s, const part_of_run& part) {
  const int n = static_cast<int>(s.sizes.ranks());
  const index_t data_ranks = s.sizes.dp * s.sizes.fsdp * s.sizes.ep;
  constexpr bool divides_positions = Plan::strategy_type::has(mesh_axis::cp);
  return train_on_ranks<Program, divides_positions>(
      n, data_ranks, s.recompute, false, part, [&](auto& model, auto& optimizer, communicator& ranks) {
        if constexpr (Plan::strategy_type::has(mesh_axis::pp)) {
          parallel_options o = Plan::strategy_type::options(s.sizes);
          o.deterministic = s.deterministic;
          return bind<Plan>(model, optimizer, ranks, o,
                            pipeline_options{.schedule = [name = s.schedule](int p, int m) {
                              return pipeline::schedule_named(name, p, m);
                            }});
        } else {
          return bind<Plan>(model, optimizer, ranks, s.sizes);
        }
      });
}

/// Trains without bind: a tape, gradients of all micro-batches, an optimizer.
template <class Program>
outcome train_alone(const std::string& folder) {
  typename Program::model model;
  initialize(model, 5);
  if (!folder.empty()) io::save(folder + "/" + Program::name + ".before.safetensors", state_dict(model));
  auto optimizer = Program::optimizer();
  context_in<typename Program::precision> c;
  outcome result;
  for (int s = 0; s < Program::steps; ++s) {
    double sum = 0;
    for (index_t g = 0; g < Program::total; ++g) {
      tape steps(c);
      const auto loss = evaluated_loss<Program>(steps, model, s * Program::total + g);
      steps.backward(loss);
      sum += loss.item();
    }
    result.losses.push_back(sum / static_cast<double>(Program::total));
    const double n = static_cast<double>(Program::total);
    if (Program::clip > 0)  // the gradients are sums
      result.norms.push_back(clip_grad_norm(model, Program::clip * n) / n);
    optimizer.step(model, 1 / n);
  }
  result.parameters = test::elements_of(named_parameters(model));
  if (!folder.empty()) io::save(folder + "/" + Program::name + ".after.safetensors", state_dict(model));
  return result;
}

/// The largest relative difference, up to the point where training diverges.
inline double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.size() && !(std::abs(a[i]) > 100); ++i)
    most = std::max(most, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) / std::max(1.0, std::abs(a[i]))
                                              : INFINITY);
  return most;
}

inline void complain(const std::string& who, const std::string& what) {
  std::printf("%s wrong: %s\n", who.c_str(), what.c_str());
}

/// A way to train a model, and what it must have in common with one rank.
struct way {
  std::string name;
  bool same_bits = false;  // otherwise equal up to the order of sums
  bool rounds = false;     // rounds parameters or gradients for messages
  std::function<outcome(const part_of_run&)> train;
};

/// Prints the differences from the training on one rank.
template <class Program>
void compare(const way& w, const outcome& of, const outcome& one) {
  const double losses = difference(one.losses, of.losses), norms = difference(one.norms, of.norms);
  if (w.same_bits && (of.losses != one.losses || of.norms != one.norms || of.parameters != one.parameters))
    complain(Program::name, w.name + ": other bits than one rank: losses " + std::to_string(losses) +
                                ", norms " + std::to_string(norms));
  if (!(losses < (w.rounds ? 0.2 : Program::tolerance)))
    complain(Program::name, w.name + ": losses differ by " + std::to_string(losses));
}

template <class F>
void guarded(const std::string& program, const std::string& setting, F f) {
  try {
    f();
  } catch (const std::exception& e) {
    complain(program, setting + ": throws " + e.what());
  }
}

/// Takes the steps up to a checkpoint in one way, and the rest in another.
template <class Program>
way resumed(const way& before, const way& after, int at, const std::string& folder) {
  const auto train = [=](const part_of_run&) {
    const auto saved = std::filesystem::path(folder) / (std::string(Program::name) + ".saved");
    std::filesystem::remove_all(saved);
    outcome all = before.train({0, at, saved.string()});
    const outcome rest = after.train({at, Program::steps, saved.string()});
    all.losses.insert(all.losses.end(), rest.losses.begin(), rest.losses.end());
    all.norms.insert(all.norms.end(), rest.norms.begin(), rest.norms.end());
    all.parameters = rest.parameters;
    std::filesystem::remove_all(saved);
    return all;
  };
  return {before.name + ", then " + after.name, before.same_bits && after.same_bits,
          before.rounds || after.rounds, train};
}

template <class Program>
way way_of(const setting& s) {
  const parallel_options& o = s.options;
  return {s.name, o.deterministic && o.keeps_bits(s.ranks, Program::total / s.ranks),
          o.param_dtype != dtype::f32 || o.reduce_dtype != dtype::f32,
          [s](const part_of_run& part) { return train_on<Program>(s, part); }};
}
template <class Program, class Plan>
way way_of(const mesh_setting& s) {
  return {s.name, s.deterministic, false,
          [s](const part_of_run& part) { return train_on_mesh<Program, Plan>(s, part); }};
}

template <class Program, class Plan = void>
void check(const std::vector<setting>& settings, const std::vector<mesh_setting>& meshes,
           const std::string& folder) {
  const std::string name = Program::name;
  const part_of_run whole{0, Program::steps};
  const way by_one = way_of<Program>(setting{"one rank", 1, {.deterministic = true}});
  outcome one, alone;
  guarded(name, by_one.name, [&] { one = by_one.train(whole); });
  const auto verify = [&](const way& w) {
    guarded(name, w.name, [&] { compare<Program>(w, w.train(whole), one); });
  };
  std::optional<way> before;  // a checkpoint of each is loaded by the next
  for (const setting& s : settings) {
    const way w = way_of<Program>(s);
    verify(w);
    if (before) verify(resumed<Program>(*before, w, 1 + s.ranks % (Program::steps - 1), folder));
    before = w;
  }
  if constexpr (!std::is_void_v<Plan>)
    for (const mesh_setting& s : meshes) {
      const way w = way_of<Program, Plan>(s);
      verify(w);
      verify(resumed<Program>(w, by_one, 2, folder));
      verify(resumed<Program>(by_one, w, 1, folder));
    }
  guarded(name, "alone", [&] {
    alone = train_alone<Program>(folder);
    if (!Program::draws) compare<Program>({"alone"}, alone, one);
  });
  std::printf("%s losses", name.c_str());
  for (const double l : alone.losses) std::printf(" %.9g", l);
  std::printf("\n%s done\n", name.c_str());
  std::fflush(stdout);
}

}  // namespace models
