// SPDX-License-Identifier: MIT
// Checkpoints from any number of ranks and strategy to any other, and the treatment of bad checkpoints.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <weft/comm/threads.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/hook.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/weft.hpp>

using namespace weft;
namespace fs = std::filesystem;

namespace {

/// Parameters that 1 to 6 ranks shard in every way, with 7, 5 and 2 rows and a scalar, and an unsharded
/// buffer.
struct net {
  parameter<extents<7, 3>> table = make_parameter(extents<7, 3>{}, init::normal(1));
  linear<3, 5> in;
  parameter<extents<2, 5>> out = make_parameter(extents<2, 5>{}, init::normal(1));
  parameter<extents<>> scale = make_parameter(extents<>{}, init::constant(2));
  tensor<float, extents<7>> seen = full<float>(extents<7>{}, 0.0f);
  auto operator()(expression auto x) const {
    return matmul(relu(in(matmul(x, table))), transpose(out)) * scale;
  }
};

struct folder {
  fs::path path;
  explicit folder(const char* name) : path(fs::temp_directory_path() / name) { fs::remove_all(path); }
  ~folder() { fs::remove_all(path); }
  std::string name() const { return path.string(); }
};

void train(net& model, auto& run, int steps) {
  const auto x = tensor<float, extents<4, 7>>(shape{2, {4, 7}}, default_device());
  std::vector<float> v(28);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.1f * static_cast<float>(i % 9) - 0.3f;
  x.state()->where->upload(x.state()->memory.data(), v.data(), 28 * sizeof(float));
  for (int i = 0; i < steps; ++i) {
    tape t(run);
    t.backward(t.eval(mean(square(model(x) - 1.0f))));
    update(run, {model.seen.state()}, model.seen * 0.5f + mean(x, dims<0>));
    run.step();
  }
}

std::vector<float> all_of(auto& run) {
  std::vector<float> values;
  for (const auto& [name, p] : run.full()) {
    std::vector<float> v(static_cast<std::size_t>(p->extents.size()));
    detail::download_to(*p, v.data());
    values.insert(values.end(), v.begin(), v.end());
  }
  return values;
}

/// Takes three steps on n ranks and saves; returns the parameters after three more steps.
std::vector<float> saved_by(const std::string& at, int n, const parallel_options& o) {
  std::vector<float> later;
  run_ranks(n, [&](communicator& ranks) {
    net model;
    initialize(model, 3);
    adamw optimizer{.lr = 0.05};
    auto run = bind(model, optimizer, ranks, o);
    checkpointer saves(at, run);
    train(model, run, 3);
    saves.save({3, 12});
    train(model, run, 3);  // while it is written
    saves.finish();
    const auto values = all_of(run);
    if (ranks.rank() == 0) later = values;
  });
  return later;
}

/// Resumes from the saved checkpoint.
std::vector<float> resumed_by(const std::string& at, int n, const parallel_options& o) {
  std::vector<float> later;
  run_ranks(n, [&](communicator& ranks) {
    net model;
    initialize(model, 99);
    adamw optimizer{.lr = 0.05};
    auto run = bind(model, optimizer, ranks, o);
    checkpointer saves(at, run);
    const auto position = saves.load();
    REQUIRE(position.has_value());
    CHECK(position->step == 3);
    CHECK(position->samples == 12);
    CHECK(optimizer.steps == 3);
    train(model, run, 3);
    const auto values = all_of(run);
    if (ranks.rank() == 0) later = values;
  });
  return later;
}

/// The error of loading a checkpoint into a run with an Optimizer; empty if it is loaded.
template <class Optimizer = adamw>
std::string failure(const std::string& at) {
  net model;
  Optimizer optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer);
  try {
    checkpointer(at, run).load();
  } catch (const io_error& e) { return e.what(); }
  return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

namespace {
/// A mesh, and what its ranks shard.
struct mesh_case {
  int ranks;
  sharding divide;
  int shard_ranks;  // 0: all
  parallel_options options() const {
    return {.divide = divide, .shard_ranks = shard_ranks, .deterministic = true};
  }
  std::string text() const {
    return std::to_string(ranks) + " ranks, stage " + std::to_string(static_cast<int>(divide)) +
           ", groups of " + std::to_string(shard_ranks);
  }
  bool is_power_of_two() const { return (ranks & (ranks - 1)) == 0; }
};

/// dp and fsdp of every size from 1 to 4, also together, with every stage; and more ranks than rows.
std::vector<mesh_case> meshes() {
  std::vector<mesh_case> all;
  for (int dp = 1; dp <= 4; ++dp)
    for (int fsdp = 1; dp * fsdp <= 4; ++fsdp)
      for (int stage = 0; stage <= 3; ++stage)
        if ((stage == 0) == (fsdp == 1))
          all.push_back({dp * fsdp, static_cast<sharding>(stage), stage ? fsdp : 0});
  all.push_back({6, sharding::parameters, 0});
  all.push_back({6, sharding::optimizer, 3});
  return all;
}

/// All contents of a checkpoint: parameters, buffers, optimizer state. Collective.
std::vector<float> state_of(auto& run) {
  std::vector<float> values = all_of(run);
  for (const auto& [name, p] : run.full_optimizer()) {
    std::vector<float> v(static_cast<std::size_t>(p->extents.size()));
    detail::download_to(*p, v.data());
    values.insert(values.end(), v.begin(), v.end());
  }
  return values;
}
}  // namespace

TEST_CASE("from any mesh and stage to any other: the bits that were saved, and the same run from there") {
  const folder f("weft_checkpoint_meshes");
  int pairs = 0;
  for (const mesh_case& from : meshes()) {
    fs::remove_all(f.path);
    std::vector<float> saved, straight;
    run_ranks(from.ranks, [&](communicator& ranks) {
      net model;
      initialize(model, 3);
      adamw optimizer{.lr = 0.05};
      auto run = bind(model, optimizer, ranks, from.options());
      checkpointer saves(f.name(), run);
      train(model, run, 3);
      const auto now = state_of(run);
      saves.save({3, 12});
      train(model, run, 2);  // while it is written
      const auto later = state_of(run);
      if (ranks.rank() == 0) saved = now, straight = later;
    });
    for (const mesh_case& to : meshes()) {
      run_ranks(to.ranks, [&](communicator& ranks) {
        INFO(from.text() << " to " << to.text());
        net model;
        initialize(model, 99);
        adamw optimizer{.lr = 0.05};
        auto run = bind(model, optimizer, ranks, to.options());
        const auto position = checkpointer(f.name(), run, {.read_only = true}).load();
        REQUIRE(position);
        CHECK(position->samples == 12);
        CHECK(optimizer.steps == 3);
        CHECK(state_of(run) == saved);
        train(model, run, 2);
        const auto later = state_of(run);
        // All ranks have the same batch: the mean over a power of two of ranks is exact.
        if (from.is_power_of_two() && to.is_power_of_two()) CHECK(later == straight);
        else
          for (std::size_t i = 0; i < later.size(); ++i)
            CHECK(later[i] == doctest::Approx(straight[i]).epsilon(1e-4));
      });
      ++pairs;
    }
  }
  CHECK(pairs == 18 * 18);
}

TEST_CASE("groups that hold copies write one") {
  const folder f("weft_checkpoint_hybrid");
  const std::vector<float> straight =
      saved_by(f.name(), 4, {.divide = sharding::parameters, .shard_ranks = 2, .deterministic = true});
  CHECK(std::distance(fs::directory_iterator(f.path / "step-3.1"), {}) == 3);  // two ranks and the index
  CHECK(resumed_by(f.name(), 1, {.deterministic = true}) == straight);
}

namespace {
struct with_dropout {
  linear<4, 6> in;
  linear<6, 2> out;
  auto operator()(expression auto x) const { return out(dropout(relu(in(x)), 0.5f)); }
};
}  // namespace

TEST_CASE("random numbers go on where they were, also in loops that begin no steps") {
  const folder f("weft_checkpoint_random");
  const auto steps = [](with_dropout& model, auto& run, int from, int to) {
    for (int i = from; i < to; ++i)
      for (int pass = 0; pass < 1 + i % 2; ++pass) {
        tape t(run);
        const auto x = randn<float>(extents<3, 4>{}, {.seed = static_cast<std::uint64_t>(i)});
        t.backward(t.eval(mean(square(model(x) - 1.0f))));
        if (pass == i % 2) run.step();
      }
  };
  for (const int n : {1, 3}) {
    CAPTURE(n);
    fs::remove_all(f.path);
    std::vector<float> straight, resumed, elsewhere;
    const auto on_ranks = [&](int count, std::uint64_t seed, std::vector<float>& parameters, auto body) {
      run_ranks(count, [&](communicator& ranks) {
        with_dropout model;
        initialize(model, seed);
        adamw optimizer{.lr = 0.05};
        auto run = bind(model, optimizer, ranks, {.deterministic = true});
        body(model, run);
        const auto values = all_of(run);
        if (ranks.rank() == 0) parameters = values;
      });
    };
    on_ranks(n, 3, straight, [&](with_dropout& model, auto& run) {
      checkpointer saves(f.name(), run);
      steps(model, run, 0, 3);
      saves.save({3, 0});
      steps(model, run, 3, 6);
    });
    const auto load = [&](with_dropout& model, auto& run) {
      REQUIRE(checkpointer(f.name(), run, {.read_only = true}).load());
      CHECK(run.randomness().seed == 0);
      steps(model, run, 3, 6);
    };
    on_ranks(n, 9, resumed, load);
    CHECK(resumed == straight);
    on_ranks(n + 1, 9, elsewhere, [&](with_dropout&, auto& run) {  // other numbers, those of step 3
      REQUIRE(checkpointer(f.name(), run, {.read_only = true}).load());
      const auto drawn = run.randomness();
      run.begin_step(3);
      CHECK(drawn.step == run.randomness().step);
      CHECK(drawn.programs == 0);
    });
  }
}

TEST_CASE("what is damaged or of another model is refused by name, a half-written one does not count") {
  const folder f("weft_checkpoint_bad");
  CHECK(failure(f.name()) == "");  // nothing there: nothing loaded
  CHECK(!fs::exists(f.path / "step-3.1"));
  saved_by(f.name(), 2, {.divide = sharding::parameters});
  const fs::path file = f.path / "step-3.1" / "rank-1.safetensors";
  std::ifstream in(file, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  const auto put = [&](const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; };

  std::string flipped = good;
  flipped[flipped.size() - 3] = static_cast<char>(flipped[flipped.size() - 3] ^ 1);
  put(flipped);
  CHECK(has(failure(f.name()), "is damaged: its checksum does not match"));
  for (std::size_t cut : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
    put(good.substr(0, cut));
    CHECK(has(failure(f.name()), "rank-1.safetensors"));
  }
  put(good);
  CHECK(failure(f.name()) == "");

  fs::create_directories(f.path / "step-9.2.partial");  // killed while it was written
  std::ofstream(f.path / "step-9.2.partial" / "rank-0.safetensors.partial") << "half";
  CHECK(failure(f.name()) == "");
  CHECK(!fs::exists(f.path / "step-9.2.partial"));

  linear<3, 2> other;
  adamw optimizer;
  auto run = bind<policy<strategy::single>>(other, optimizer);
  CHECK_THROWS_WITH_AS(checkpointer(f.name(), run).load(),
                       doctest::Contains("belongs to another model: it has 6 parameters and buffers, but "
                                         "this one has 2: this one has "
                                         "no in.bias"),
                       io_error);
  const std::string later = detail::sealed(", \"version\": 99");
  std::ofstream(f.path / "step-3.1" / "index.json") << later;
  CHECK(has(failure(f.name()), "is not the index that `latest` names") ==
        false);  // the version is looked at first
  CHECK(has(failure(f.name()), "later version of weft: format 99"));
  for (const char* name :
       {"../elsewhere", "step-3", "step-3.1.partial", "step--1.1", "step-3.1/../step-3.1"}) {
    std::ofstream(f.path / "latest") << detail::sealed(std::string(", \"folder\": \"") + name +
                                                       "\", \"index_xxh64\": \"0123456789abcdef\"");
    CHECK(has(failure(f.name()), "latest: does not name a folder of this place"));
  }
  for (const char* text : {"", "step-3\n", "{}"}) {
    std::ofstream(f.path / "latest") << text;
    CHECK(has(failure(f.name()), "latest: is damaged, or of another version of weft"));
  }
}

TEST_CASE("a full disk is an error, and the last good state stays") {
  const folder f("weft_checkpoint_full");
  const std::vector<float> later = saved_by(f.name(), 1, {});
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {  // files cannot grow, as if the disk were full
    ::signal(SIGXFSZ, SIG_IGN);
    net model;
    adamw optimizer;
    auto run = bind<policy<strategy::single>>(model, optimizer);
    checkpointer saves(f.name(), run, {.asynchronous = false});
    const rlimit none{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &none);
    std::string text;
    try {
      saves.save({9, 9});
    } catch (const io_error& e) { text = e.what(); }
    ::_exit(has(text, "step-9.2.partial/rank-0.safetensors.partial: writing failed: ") &&
                    has(text, "; is the disk full?")
                ? 0
                : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(!fs::exists(f.path / "step-9.2"));
  CHECK(!fs::exists(f.path / "step-9.2.partial"));
  CHECK(resumed_by(f.name(), 1, {}) == later);
}

TEST_CASE("a folder that cannot be written is an error at once, older checkpoints are deleted") {
  net model;
  adamw optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer);
  CHECK_THROWS_WITH_AS(checkpointer("/proc/weft", run), doctest::Contains("/proc/weft: cannot be created: "),
                       io_error);
  CHECK_THROWS_AS(checkpointer("/dev/null", run), io_error);
  CHECK_THROWS_AS(checkpointer("/tmp", run, {.keep = 0}), usage_error);
  CHECK_THROWS_WITH_AS(checkpointer("", run), "weft: checkpointer: the path of the folder is empty",
                       usage_error);
  const folder f("weft_checkpoint_keep");
  checkpointer saves(f.name(), run, {.keep = 2});
  for (int step = 1; step <= 4; ++step) saves.save({step, step});
  saves.finish();
  CHECK(!fs::exists(f.path / "step-2.2"));
  CHECK(fs::exists(f.path / "step-3.3"));
  CHECK(saves.load()->step == 4);
  for (const run_position& wrong :
       {run_position{-1, 0}, run_position{0, -1}, run_position{(std::int64_t{1} << 53) + 1, 0}})
    CHECK_THROWS_AS(saves.save(wrong), value_error);
  checkpointer reads(f.name(), run, {.read_only = true});  // while another job holds the folder
  CHECK(reads.load()->step == 4);
  CHECK_THROWS_AS(reads.save({5, 5}), usage_error);
}

TEST_CASE("what must happen before an update happens, all of it and once") {
  net model;
  adamw optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer);
  int first = 0, second = 0;
  run.before_update([&] { ++first; });
  run.before_update([&] { ++second; });
  train(model, run, 2);
  CHECK(first == 1);
  CHECK(second == 1);
}

TEST_CASE("the scale of the loss is saved") {
  folder f("weft-checkpoint-scale");
  const auto bound = [](net& model, adamw& optimizer, auto use) {
    auto run = bind<policy<precision::f16>>(model, optimizer);
    use(run);
  };
  {
    net model;
    adamw optimizer;
    bound(model, optimizer, [&](auto& run) {
      train(model, run, 2);
      run.set_scaler({.scale = 4096, .growth_tracker = 77});
      checkpointer saves(f.name(), run);
      saves.save({2, 0});
      saves.finish();
    });
  }
  net model;
  adamw optimizer;
  bound(model, optimizer, [&](auto& run) {
    checkpointer saves(f.name(), run);
    CHECK(saves.load()->step == 2);
    CHECK(run.loss_scale == 4096);
    CHECK(run.scaler().growth_tracker == 77);
  });
}

TEST_CASE("a scale of the loss that a checkpoint cannot hold is refused when it is set") {
  net model;
  adamw optimizer;
  auto run = bind<policy<precision::f16>>(model, optimizer);
  for (const loss_scaler& wrong :
       {loss_scaler{.scale = 1000}, loss_scaler{.scale = 0x1p-30}, loss_scaler{.scale = 0x1p101},
        loss_scaler{.growth_tracker = -5}, loss_scaler{.growth_interval = 10, .growth_tracker = 10}})
    CHECK_THROWS_AS(run.set_scaler(wrong), value_error);
  CHECK(run.scaler().scale == 65536);
  const folder f("weft_checkpoint_scales");
  for (const loss_scaler& edge : {loss_scaler{.scale = loss_scaler::least},
                                  loss_scaler{.scale = loss_scaler::most, .growth_tracker = 1999}}) {
    run.set_scaler(edge);
    checkpointer saves(f.name(), run);
    saves.save({1, 1});
    run.set_scaler({});
    saves.load();
    CHECK(run.scaler().scale == edge.scale);
    CHECK(run.scaler().growth_tracker == edge.growth_tracker);
  }
}

TEST_CASE("optimizer state that would not be saved as it is, is refused by name") {
  const folder f("weft_checkpoint_state");
  net model;
  adamw optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer);
  checkpointer saves(f.name(), run);
  const auto refused = [&](const char* words) {
    CHECK_THROWS_WITH_AS(saves.save({1, 0}), doctest::Contains(words), value_error);
    optimizer.state.clear();
  };
  optimizer.state.set("global", "d", zeros<float>(extents<2>{}).state());
  refused("optimizer state global.d belongs to no parameter of this rank");
  optimizer.state.set("average", "seen", zeros<float>(extents<7>{}).state());
  refused("average.seen belongs to no parameter");
  optimizer.state.set("row", "in.weight", zeros<float>(extents<2>{}).state());
  CHECK_THROWS_WITH_AS(run.full_optimizer(), doctest::Contains("[2] cannot be state of parameter in.weight"),
                       value_error);
  refused("optimizer state row.in.weight is [2], but this rank's part of the parameter is [5, 3]");
  optimizer.state.set("row", "in.weight", zeros<float>(extents<50, 30>{}).state());
  CHECK_THROWS_AS(run.full_optimizer(), value_error);
  refused("row.in.weight is [50, 30]");
  optimizer.steps = -1;
  refused("the optimizer's steps, -1, are not between 0 and 2^53");
  optimizer.steps = 0;
  saves.save({1, 0});
  saves.finish();
  CHECK(saves.load()->step == 1);
}

namespace {
/// A custom optimizer without a name.
struct unnamed {
  optimizer_state state{};
  std::int64_t steps = 0;
  template <element T>
  void update(const parameter_update<T>& u) const {
    u.assign(u.value() - sign(u.gradient()) * u.number(0.01));
  }
};
struct named_otherwise : unnamed {
  static constexpr const char* saved_as = "other \"steps\"";
};

template <class Optimizer>
void save_with(const std::string& at) {
  net model;
  Optimizer optimizer;
  auto run = bind<policy<strategy::single>>(model, optimizer);
  train(model, run, 1);
  checkpointer saves(at, run);
  saves.save({1, 1});
  saves.finish();
}
}  // namespace

TEST_CASE("a checkpoint of another optimizer is refused by name") {
  const folder f("weft_checkpoint_optimizer");
  save_with<adamw>(f.name());
  CHECK(failure<adamw>(f.name()) == "");
  CHECK(failure<unnamed>(f.name()) == "");
  CHECK(has(failure<sgd>(f.name()), "has the state of optimizer adamw, but this run has sgd"));
  save_with<sgd>(f.name());
  CHECK(has(failure<adamw>(f.name()), "has the state of optimizer sgd, but this run has adamw"));
  save_with<named_otherwise>(f.name());
  CHECK(failure<named_otherwise>(f.name()) == "");
  CHECK(has(failure<adamw>(f.name()), "of optimizer other \"steps\","));
  save_with<unnamed>(f.name());  // as by an earlier version of weft: the index has no name
  CHECK(failure<adamw>(f.name()) == "");
}

TEST_CASE("runs that cannot resume to the same bits are refused before a step, unless that is wanted") {
  const folder f("weft_checkpoint_exact");
  const auto with = [](const gradient_hook& hook, int local_steps = 1) {
    parallel_options o;
    o.hook = hook;
    o.local_steps = local_steps;
    return o;
  };
  gradient_hook own = bf16_compress();
  own.remembers = true;
  const std::pair<parallel_options, const char*> inexact[] = {
      {with(power_sgd({.rank = 1})), ": hook: "},
      {with(power_sgd({.error_feedback = false, .warm_start = false})), ": hook: "},
      {with(top_k(0.1)), ": hook: "},
      {with(own), ": hook: "},
      {with(nullptr, 4), ": local_steps: "}};
  for (const auto& [o, words] : inexact) {
    run_ranks(2, [&](communicator& ranks) {
      net model;
      adamw optimizer;
      auto run = bind(model, optimizer, ranks, o);
      CHECK_THROWS_WITH_AS(checkpointer(f.name(), run), doctest::Contains(words), usage_error);
      checkpointer saves(f.name(), run, {.exact = false});
      train(model, run, 1);
      saves.save({1, 0});
      saves.finish();
      CHECK(checkpointer(f.name(), run, {.read_only = true}).load()->step == 1);
    });
    net model;
    adamw optimizer;
    self_communicator alone;
    auto run = bind<>(model, optimizer, alone, o);
    checkpointer saves(f.name(), run);  // a rank alone has nothing to send
  }
  run_ranks(2, [&](communicator& ranks) {
    net model;
    adamw optimizer;
    auto run = bind(model, optimizer, ranks, with(bf16_compress()));
    checkpointer saves(f.name(), run);
  });
}

TEST_CASE("a run that goes back to its checkpoint keeps nothing that its gradient hook has kept since") {
  const folder f("weft_checkpoint_hook");
  std::vector<std::vector<float>> ends;
  run_ranks(2, [&](communicator& ranks) {
    for (const bool goes_back : {true, false}) {
      parallel_options o;
      o.hook = power_sgd({.rank = 1});
      net model;
      initialize(model, 1);
      adamw optimizer;
      auto run = bind(model, optimizer, ranks, o);
      checkpointer saves(f.name(), run, {.exact = false});
      if (goes_back) {
        train(model, run, 2);
        saves.save({2, 0});
        saves.finish();
        train(model, run, 2);
      }
      CHECK(saves.load()->step == 2);
      train(model, run, 2);
      if (ranks.rank() == 0) ends.push_back(model.table.to_vector());
    }
  });
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("of buffers that are not broadcast, those of rank 0 are saved") {
  const folder f("weft_checkpoint_buffers");
  run_ranks(2, [&](communicator& ranks) {
    net model;
    adamw optimizer;
    parallel_options o;
    o.broadcast_buffers = false;
    auto run = bind(model, optimizer, ranks, o);
    model.seen.copy_from(std::vector<float>(7, 1.0f + static_cast<float>(ranks.rank())));
    checkpointer saves(f.name(), run);
    saves.save({1, 0});
    CHECK(saves.load()->step == 1);
    CHECK(model.seen.to_vector() == std::vector<float>(7, 1.0f));
  });
}
