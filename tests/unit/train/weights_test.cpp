// SPDX-License-Identifier: MIT
// Weight files of sharded models: written and read part by part, from any ranks to any others. Every operator
// new of this program is counted, so that a whole copy anywhere would show.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <weft/io/tensor_files.hpp>

#include "../../box_run.hpp"
#include "../../checkpoints.hpp"
#include "../../limited_backend.hpp"

namespace {
std::atomic<long long> in_use = 0, peak = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  alignment = std::max<std::size_t>(alignment, 64);
  const std::size_t all = (bytes + 2 * alignment - 1) / alignment * alignment + alignment;
  char* const p = static_cast<char*>(std::aligned_alloc(alignment, all));
  if (!p) throw std::bad_alloc();
  reinterpret_cast<std::size_t*>(p + alignment)[-1] = bytes;
  reinterpret_cast<std::size_t*>(p + alignment)[-2] = alignment;
  const long long now = in_use += static_cast<long long>(bytes);
  for (long long most = peak; now > most && !peak.compare_exchange_weak(most, now);) {}
  return p + alignment;
}
void release(void* p) {
  if (!p) return;
  char* const at = static_cast<char*>(p);
  in_use -= static_cast<long long>(reinterpret_cast<std::size_t*>(at)[-1]);
  std::free(at - reinterpret_cast<std::size_t*>(at)[-2]);
}
}  // namespace

// Not inlined, because g++ 12 would warn that new and free are mismatched.
[[gnu::noinline]] void* operator new(std::size_t n) { return counted(n, 1); }
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }

using namespace weft;
using namespace weft::test;

namespace {

device one_thread() { return device(std::make_shared<cpu::cpu_backend>(1)); }

constexpr index_t rows = 3001, width = 512;  // 6 MB; eight of them

struct large_net {
  std::vector<parameter<extents<dyn, dyn>>> tables;
  parameter<extents<>> scale;
  tensor<float, extents<dyn>> seen;
};
large_net made(const device& where, std::uint64_t seed) {
  large_net n{
      {}, make_parameter(extents<>{}, init::constant(2), where), full<float>(extents<dyn>{3}, 4.0f, where)};
  for (int i = 0; i < 8; ++i)
    n.tables.push_back(make_parameter(extents<dyn, dyn>{rows, width}, init::normal(1), where));
  initialize(n, seed);
  return n;
}
/// Sets all elements that this rank holds to one number.
void initialize_rows(auto& run, float value) {
  for (const held_tensor& t : run.held_tensors())
    std::fill_n(static_cast<float*>(t.local->memory.data()), t.parts[0].where.size(), value);
}
constexpr long long whole_bytes = 8LL * rows * width * 4;

}  // namespace

TEST_CASE(
    "a model that no rank could hold: from 4 ranks to a file, from the file to 3, no rank with more than its "
    "part") {
  const test::folder f("weft-weights");
  fs::create_directories(f.path);
  const std::string path = f.name() + "/model.safetensors";
  run_ranks(4, [&](communicator& ranks) {
    const device where(std::make_shared<limited_backend>(whole_bytes * 3 / 10));
    auto model = made(where.deferred(), 5);
    sgd optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    ranks.barrier().wait();
    const long long before = in_use;
    if (ranks.rank() == 0) peak = before;
    ranks.barrier().wait();
    save_weights(path, run);
    ranks.barrier().wait();
    CHECK(peak - before <
          (7 << 20));  // of four ranks together: two buffers of 1 MiB on rank 0, one on others
    ranks.barrier().wait();
    checkpointer saves(f.name() + "/run", run);
    saves.save({1, 1});
    saves.finish();
  });
  run_ranks(3, [&](communicator& ranks) {
    const device where(std::make_shared<limited_backend>(whole_bytes * 4 / 10));
    auto model = made(where.deferred(), 6);
    sgd optimizer;
    auto run = bind<policy<strategy::fully_sharded<3>>>(model, optimizer, ranks);
    const auto check_peak = [&](auto read) {
      ranks.barrier().wait();
      const long long before = in_use;
      if (ranks.rank() == 0) peak = before;
      ranks.barrier().wait();
      read();
      ranks.barrier().wait();
      CHECK(peak - before < (5 << 20));  // a buffer of 1 MiB on each of three ranks
      ranks.barrier().wait();
    };
    check_peak([&] { load_weights(path, run); });
    save_weights(path + ".again", run);
    initialize_rows(run, 0.5f);
    check_peak([&] { CHECK(checkpointer(f.name() + "/run", run, {.read_only = true}).load()); });
    save_weights(path + ".resumed", run);
  });
  auto whole = made(one_thread(), 5);
  io::save(path + ".whole", state_dict(whole));
  CHECK(bytes_of_file(path) == bytes_of_file(path + ".whole"));
  CHECK(bytes_of_file(path + ".again") == bytes_of_file(path + ".whole"));
  CHECK(bytes_of_file(path + ".resumed") == bytes_of_file(path + ".whole"));
}

TEST_CASE("random tensors from random boxes to a file and from the file to random boxes") {
  random_source random(4);
  const test::folder f("weft-weights-boxes");
  fs::create_directories(f.path);
  const std::string path = f.name() + "/model.safetensors";
  for (int round = 0; round < 60; ++round) {
    const box_model m = box_model::random(random, 8, 2);
    const int owners = 1 + static_cast<int>(below(random, 6)),
              copies = 1 + static_cast<int>(below(random, 2));
    const box_plan plan = random_plan(random, m, owners);
    run_ranks(owners * copies, [&](communicator& ranks) {
      box_run run(ranks, copies, m, plan, true, one_thread());
      save_weights(path, run);
    });
    const io::stored_tensors file = io::read_safetensors(path);
    REQUIRE(file.tensors.size() == m.tensors.size());
    for (const box_model::entry& e : m.tensors) {
      const io::stored_tensor& t = file.tensors.at(e.name);
      CHECK(t.extents == e.whole.extents);
      CHECK(t.type == e.whole.type);
      CHECK(std::string(t.bytes.begin(), t.bytes.end()) == e.bytes.at(""));
    }
    const int readers = 1 + static_cast<int>(below(random, 6));
    const box_plan other = random_plan(random, m, readers);
    run_ranks(readers, [&](communicator& ranks) {
      box_run run(ranks, 1, m, other, false, one_thread());
      load_weights(path, run);
      CHECK(run.has(m, false));
    });
  }
}

namespace {
/// The whole tensors of a model, by name.
io::named_tensors whole_tensors(const box_model& m, const device& where) {
  io::named_tensors all;
  for (const box_model::entry& e : m.tensors) {
    const auto t = make_state(where, e.whole.extents, e.whole.type);
    if (t->bytes() > 0) std::memcpy(t->memory.data(), e.bytes.at("").data(), t->bytes());
    all.emplace_back(e.name, t);
  }
  return all;
}
}  // namespace

TEST_CASE("other floating types, a prefix, several files with an index: what io::save and io::load do") {
  random_source random(11);
  const test::folder f("weft-weights-types");
  fs::create_directories(f.path);
  const std::string path = f.name() + "/model.safetensors", index = path + ".index.json";
  constexpr dtype floating[] = {dtype::f32, dtype::f64, dtype::bf16, dtype::f16};
  for (int round = 0; round < 40; ++round) {
    const dtype as = floating[round % 4];
    box_model m = box_model::random(random, 8, 2);
    const int owners = 1 + static_cast<int>(below(random, 5));
    const box_plan plan = random_plan(random, m, owners);
    run_ranks(owners, [&](communicator& ranks) {
      box_run run(ranks, 1, m, plan, true, one_thread());
      save_weights(path, run, {.as = as});
    });
    const device where = one_thread();
    const io::named_tensors all = whole_tensors(m, where);
    io::save(path + ".whole", all, {.as = as});
    CHECK(bytes_of_file(path) == bytes_of_file(path + ".whole"));

    io::stored_tensors parts[2];
    std::string map;
    for (const auto& [name, t] : io::read_safetensors(path).tensors) {
      const std::size_t part = below(random, 2);
      parts[part].tensors["model." + name] = t;
      io::stored_tensor& stale = parts[1 - part].tensors["model." + name] = t;  // not what the index names
      std::fill(stale.bytes.begin(), stale.bytes.end(), '\1');
      map += (map.empty() ? "\"model." : ", \"model.") + name + "\": \"" + std::to_string(part) + "\"";
    }
    for (int part = 0; part < 2; ++part)
      io::write_safetensors(f.name() + "/" + std::to_string(part), parts[part]);
    write_bytes(index, "{\"weight_map\": {" + map + "}}");
    for (const auto& [name, t] : all) std::memset(t->memory.data(), 0, t->bytes());
    io::load(index, all, {.convert = true, .prefix = "model."});
    bool converts = false;
    for (std::size_t i = 0; i < m.tensors.size(); ++i) {
      box_model::entry& e = m.tensors[i];
      e.bytes[""].assign(static_cast<const char*>(all[i].second->memory.data()), all[i].second->bytes());
      converts = converts || (is_floating(e.whole.type) && e.whole.type != as);
    }
    run_ranks(owners, [&](communicator& ranks) {
      box_run run(ranks, 1, m, plan, false, one_thread());
      if (converts)
        CHECK_THROWS_WITH_AS(load_weights(index, run, {.prefix = "model."}),
                             doctest::Contains(": load_weights(path, run, {.convert = true}) converts"),
                             io_error);
      CHECK_THROWS_WITH_AS(load_weights(index, run, {.convert = true}),
                           doctest::Contains("tensor t0.weight is missing, model.t0.weight is there: "
                                             "load_weights(path, run, {.prefix = \"model.\"})"),
                           io_error);
      load_weights(index, run, {.convert = true, .prefix = "model."});
      CHECK(run.has(m, false));
    });
  }
  run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks);
    CHECK_THROWS_WITH_AS(save_weights(path, n.run, {.as = dtype::i32}),
                         doctest::Contains("rank 0: save: i32 is not a floating type"), io_error);
  });
}

TEST_CASE("slabs of a tensor whose columns are on several ranks, larger than a slab") {
  random_source random(5);
  box_model m;
  m.tensors.push_back({"w", {dtype::f64, {3, {7, 300, 401}}}, false, false, {}});
  std::string& all = m.tensors[0].bytes[""];
  all.resize(7 * 300 * 401 * 8);
  for (char& c : all) c = static_cast<char>(random());
  const box_plan plan{{{0, {{3, {0, 0, 0}}, {3, {7, 300, 100}}}},
                       {1, {{3, {0, 0, 100}}, {3, {7, 299, 301}}}},
                       {2, {{3, {0, 299, 100}}, {3, {7, 1, 301}}}}}};
  const test::folder f("weft-weights-columns");
  fs::create_directories(f.path);
  run_ranks(3, [&](communicator& ranks) {
    box_run run(ranks, 1, m, plan, true, one_thread());
    save_weights(f.name() + "/w", run);
    box_run again(ranks, 1, m, plan, false, one_thread());
    load_weights(f.name() + "/w", again);
    CHECK(again.has(m, false));
  });
  const auto bytes = io::read_safetensors(f.name() + "/w").tensors.at("w").bytes;
  CHECK(std::string(bytes.begin(), bytes.end()) == all);
}

namespace {
/// A disk that is full after this many calls of write.
struct full_disk : io::file_calls {
  std::atomic<int> left;
  explicit full_disk(int writes) : left(writes) {}
  ssize_t write(int file, const char* from, std::size_t bytes) override {
    if (left-- > 0) return file_calls::write(file, from, bytes);
    errno = ENOSPC;
    return -1;
  }
};
}  // namespace

TEST_CASE("a disk that is full in between is an error on all ranks, after which they go on") {
  const test::folder f("weft-weights-full");
  fs::create_directories(f.path);
  write_bytes(f.path / "w", "what was there");
  random_source random(6);
  const box_model m = box_model::random(random, 9, 1);
  const box_plan plan = random_plan(random, m, 3);
  for (int writes = 0; writes < 8; ++writes) {
    full_disk disk(writes);
    run_ranks(3, [&](communicator& ranks) {
      box_run run(ranks, 1, m, plan, true, one_thread());
      CHECK_THROWS_WITH_AS(save_weights(f.name() + "/w", run, {}, disk),
                           doctest::Contains(("rank 0: " + f.name() + "/w.partial: writing failed").c_str()),
                           io_error);
    });
    CHECK(bytes_of_file(f.path / "w") == "what was there");
    CHECK(!fs::exists(f.path / "w.partial"));
  }
  run_ranks(3, [&](communicator& ranks) {
    box_run run(ranks, 1, m, plan, true, one_thread());
    save_weights(f.name() + "/w", run);
  });
  CHECK(io::read_safetensors(f.name() + "/w").tensors.size() == m.tensors.size());
}

namespace {
/// A device from which nothing can be read.
struct lost_backend : cpu::cpu_backend {
  lost_backend() : cpu_backend(1) {}
  void download(void*, const void*, std::size_t) override { throw device_error("weft: the device is lost"); }
};
}  // namespace

TEST_CASE("an error of one rank in a small tensor is an error on all ranks, with larger tensors to come") {
  const test::folder f("weft-weights-sizes");
  fs::create_directories(f.path);
  box_model m;
  box_plan plan;
  for (const auto& [name, n] : {std::pair<const char*, index_t>{"a", 2}, {"b", 100'000}}) {
    m.tensors.push_back({name, {dtype::f32, {1, {2 * n}}}, false, false, {}});
    m.tensors.back().bytes[""].resize(static_cast<std::size_t>(8 * n));
    plan.push_back({{0, {{1, {0}}, {1, {n}}}}, {1, {{1, {n}}, {1, {n}}}}});
  }
  for (const int failing : {0, 1})
    run_ranks(2, [&](communicator& ranks) {
      const bool fails = ranks.rank() == failing;
      box_run run(ranks, 1, m, plan, true, fails ? device(std::make_shared<lost_backend>()) : one_thread());
      CHECK_THROWS_WITH_AS(save_weights(f.name() + "/w", run),
                           ("weft: rank " + std::to_string(failing) + ": the device is lost").c_str(),
                           io_error);
    });
  full_disk disk(1);  // of which the header takes all
  run_ranks(2, [&](communicator& ranks) {
    box_run run(ranks, 1, m, plan, true, one_thread());
    CHECK_THROWS_WITH_AS(save_weights(f.name() + "/w", run, {}, disk), doctest::Contains("writing failed"),
                         io_error);
  });
}

TEST_CASE("a file with tensors of other types is read, unless one of these is wanted") {
  const test::folder f("weft-weights-others");
  fs::create_directories(f.path);
  const auto write = [&](const std::string& type_of_bias) {
    const std::string header = R"({"table":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
                               R"("bias":{"dtype":")" +
                               type_of_bias +
                               R"(","shape":[2],"data_offsets":[24,32]},)"
                               R"("seen":{"dtype":"F32","shape":[2],"data_offsets":[32,40]},)"
                               R"("count":{"dtype":"I8","shape":[3],"data_offsets":[40,43]}})";
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> 8 * i);
    write_bytes(f.path / "w", bytes + header + std::string(43, '\0'));
  };
  run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks);
    if (ranks.rank() == 0) write("F32");
    ranks.barrier().wait();
    load_weights(f.name() + "/w", n.run);
    CHECK(n.values()[0] == 0);
    ranks.barrier().wait();
    if (ranks.rank() == 0) write("U32");
    ranks.barrier().wait();
    CHECK_THROWS_WITH_AS(load_weights(f.name() + "/w", n.run),
                         doctest::Contains("tensor bias is of dtype U32, which weft does not support"),
                         io_error);
  });
}

namespace {
/// Two ranks of `Plan` read the weights of a bound_net from two paths; returns rank 0's error, and checks
/// that no rank has changed if there is one.
template <class Plan>
std::string loaded_from(const std::string& first, const std::string& second) {
  std::string said;
  run_ranks(2, [&](communicator& ranks) {
    net model;
    initialize(model, 1);
    sgd optimizer;
    auto run = bind<Plan>(model, optimizer, ranks);
    const auto sum = [&] {
      double all = 0;
      for (const auto& [name, t] : run.full()) {
        std::vector<float> v(static_cast<std::size_t>(t->extents.size()));
        weft::detail::download_to(*t, v.data());
        for (const float x : v) all = 3 * all + double{x};
      }
      return all;
    };
    const double before = sum();
    const std::string message =
        weft::detail::message_of([&] { load_weights(ranks.rank() ? second : first, run); });
    CHECK((message.empty() || sum() == before));
    if (ranks.rank() == 0) said = message;
  });
  return said;
}
}  // namespace

TEST_CASE("ranks that read different files are told so, and nothing changes") {
  const test::folder f("weft-weights-differ");
  for (const char* part : {"a", "b", "longer", "indexed", "other"}) fs::create_directories(f.path / part);
  net a, b;
  initialize(a, 1), initialize(b, 2);
  const auto path = [&](const char* part, const char* name = "w") {
    return f.name() + "/" + part + "/" + name;
  };
  io::save(path("a"), state_dict(a));
  io::save(path("b"), state_dict(b));
  io::named_tensors more = state_dict(a);
  more.emplace_back("more", b.bias.state());
  io::save(path("longer"), more);
  for (const char* part : {"a", "b", "indexed", "other"}) {
    const bool other = part == std::string("other");
    write_bytes(path(part, "i.json"), std::string(R"({"weight_map": {"table": "w", "bias": "w", "seen": ")") +
                                          (other ? "v" : "w") + "\"}}");
    if (std::string(part).size() > 1)
      io::save(path(part), state_dict(a)), io::save(path(part, "v"), state_dict(a));
  }
  const auto check = [&](auto load) {
    const auto differs = [&](const std::string& file) {
      return "weft: rank 1: " + file +
             ": differs from the file that rank 0 reads: all ranks must read equal files";
    };
    CHECK(load(path("a"), path("b")) == differs(path("b")));
    CHECK(load(path("b"), path("a")) == differs(path("a")));
    CHECK(load(path("a"), path("longer")) == differs(path("longer")));
    CHECK(load(path("a", "i.json"), path("b", "i.json")) == differs(path("b", "w")));
    CHECK(load(path("a", "i.json"), path("other", "i.json")) == differs(path("other", "i.json")));
    CHECK(load(path("a", "i.json"), path("a")) == differs(path("a")));
    CHECK(load(path("a"), path("a", "i.json")) == differs(path("a", "i.json")));
    CHECK(load(path("a"), path("indexed")) == "");  // a copy
    CHECK(load(path("a", "i.json"), path("indexed", "i.json")) == "");
  };
  check(loaded_from<policy<strategy::data_parallel>>);
  check(loaded_from<policy<strategy::fully_sharded<3>>>);
}

TEST_CASE("an index that names a file without the tensor is told so, whatever the prefix") {
  const test::folder f("weft-weights-index");
  fs::create_directories(f.path);
  net model;
  initialize(model, 1);
  io::save(f.name() + "/w", state_dict(model));
  io::save(f.name() + "/other", {{"zzz", model.bias.state()}});
  write_bytes(f.path / "i.json", R"({"weight_map": {"table": "w", "bias": "other", "seen": "w"}})");
  const std::string expected =
      f.name() + "/other: has no \"bias\", which " + f.name() + "/i.json says it has";
  run_ranks(2, [&](communicator& ranks) {
    bound_net n(ranks);
    CHECK_THROWS_WITH_AS(load_weights(f.name() + "/i.json", n.run), ("weft: rank 0: " + expected).c_str(),
                         io_error);
  });
  CHECK_THROWS_WITH_AS(io::load(f.name() + "/i.json", state_dict(model)), ("weft: " + expected).c_str(),
                       io_error);
}

namespace {
struct tied_net {
  linear<3, 3> first, second, third;
  auto operator()(expression auto x) const { return third(second(first(x))); }
};
tied_net made_tied(std::uint64_t seed) {
  tied_net n;
  n.second.weight = n.first.weight;
  initialize(n, seed);
  return n;
}
}  // namespace

TEST_CASE("tied parameters: what save_weights writes under one name is loaded, what is missing is not") {
  const test::folder f("weft-weights-tied");
  fs::create_directories(f.path);
  const std::string path = f.name() + "/w";
  tied_net saved = made_tied(1);
  sgd optimizer;
  auto run = bind<policy<strategy::single>>(saved, optimizer);
  save_weights(path, run);
  CHECK(!io::read_safetensors(path).tensors.contains("second.weight"));
  const auto values = [](const tied_net& n) {
    std::vector<float> all;
    for (const auto& [name, t] : state_dict(n)) {
      all.resize(all.size() + static_cast<std::size_t>(t->extents.size()));
      weft::detail::download_to(*t, &all[all.size() - static_cast<std::size_t>(t->extents.size())]);
    }
    return all;
  };
  tied_net loaded = made_tied(2);
  const std::vector<float> before = values(loaded);
  CHECK(before != values(saved));
  io::load(path, state_dict(loaded));
  CHECK(values(loaded) == values(saved));

  io::stored_tensors file = io::read_safetensors(path);
  auto weight = file.tensors.extract("first.weight");
  weight.key() = "second.weight";
  file.tensors.insert(std::move(weight));
  io::write_safetensors(path, file);  // under the second name
  loaded = made_tied(2);
  io::load(path, state_dict(loaded));
  CHECK(values(loaded) == values(saved));

  loaded = made_tied(2);
  file.tensors.erase("second.weight");
  io::write_safetensors(path, file);
  CHECK_THROWS_WITH_AS(io::load(path, state_dict(loaded)),
                       doctest::Contains("tensor first.weight is missing"), io_error);
  linear<3, 3> untied;
  io::save(path, {{"first.weight", untied.weight.state()}});
  CHECK_THROWS_WITH_AS(io::load(path, {{"first.weight", loaded.first.weight.state()},
                                       {"third.weight", loaded.third.weight.state()}}),
                       doctest::Contains("tensor third.weight is missing"), io_error);
  CHECK(values(loaded) == before);
}

TEST_CASE("a file that cannot be written is an error on all ranks, and what was there stays") {
  const test::folder f("weft-weights-bad");
  fs::create_directories(f.path);
  write_bytes(f.path / "old", "something");
  run_ranks(3, [&](communicator& ranks) {
    bound_net n(ranks);
    CHECK_THROWS_WITH_AS(save_weights(f.name() + "/none/w", n.run), doctest::Contains("cannot be written"),
                         io_error);
    CHECK_THROWS_WITH_AS(save_weights(f.name(), n.run), doctest::Contains("is a folder, not a file"),
                         io_error);
    for (const char* other : {"/w.pt", "/w.pth", "/w.npy", "/w.npz", "/w.index.json"})
      CHECK_THROWS_WITH_AS(save_weights(f.name() + other, n.run),
                           doctest::Contains(("save_weights: " + f.name() + other + ": ").c_str()), io_error);
    CHECK_THROWS_WITH_AS(save_weights("", n.run), doctest::Contains("save_weights: the path is empty"),
                         io_error);
    n.train(1);  // and the run goes on
  });
  CHECK(bytes_of_file(f.path / "old") == "something");
}
