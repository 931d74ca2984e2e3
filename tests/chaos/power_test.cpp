// SPDX-License-Identifier: MIT
// Power loss at any moment of a save. The calls that change files are recorded and replayed up to each call,
// with every loss that POSIX permits at that moment: bytes of files and names in folders that were not
// synced, independently, in any combination. What is left must load as the previous checkpoint or this one.
#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "../checkpoints.hpp"

using namespace weft;
using namespace weft::test;

namespace {

enum class call { create, write, sync, make_folder, sync_folder, rename, remove };

struct file_call {
  call what;
  std::string path, to;  // for write and sync, the file's path
  std::string bytes;
};

/// Executes the calls and records them.
class recorder : public io::file_calls {
 public:
  std::vector<file_call> calls;

  int create(const std::string& path) override {
    const std::lock_guard lock(held_);
    const int file = file_calls::create(path);
    if (file >= 0) calls.push_back({call::create, path, "", ""}), names_[file] = path;
    return file;
  }
  ssize_t write(int file, const char* from, std::size_t bytes) override {
    const std::lock_guard lock(held_);
    const ssize_t n = file_calls::write(file, from, bytes);
    if (n > 0)
      calls.push_back({call::write, names_[file], "", std::string(from, static_cast<std::size_t>(n))});
    return n;
  }
  int sync(int file) override {
    const std::lock_guard lock(held_);
    calls.push_back({call::sync, names_[file], "", ""});
    return 0;
  }
  int make_folder(const std::string& path) override {
    return noted([&] { return file_calls::make_folder(path); }, {call::make_folder, path, "", ""});
  }
  int sync_folder(const std::string& path) override {
    return noted([] { return 0; }, {call::sync_folder, path, "", ""});
  }
  int rename(const std::string& from, const std::string& to) override {
    return noted([&] { return file_calls::rename(from, to); }, {call::rename, from, to, ""});
  }
  int remove(const std::string& path) override {
    return noted([&] { return file_calls::remove(path); }, {call::remove, path, "", ""});
  }
  int remove_folder(const std::string& path) override {
    return noted([&] { return file_calls::remove_folder(path); }, {call::remove, path, "", ""});
  }

  std::size_t done() {
    const std::lock_guard lock(held_);
    return calls.size();
  }

 private:
  template <class Call>
  int noted(Call does, file_call r) {  // one at a time, in the order of the record
    const std::lock_guard lock(held_);
    const int result = does();
    if (result == 0) calls.push_back(std::move(r));
    return result;
  }
  std::mutex held_;
  std::map<int, std::string> names_;
};

/// Enumerates the combinations of answers to the questions that a run asks.
class choices {
 public:
  explicit choices(unsigned seed) : random_(seed) {}
  int pick(int of) {
    if (of == 1) return 0;
    if (asked_ == answers_.size())
      answers_.push_back({is_random_ ? static_cast<int>(random_() % static_cast<unsigned>(of)) : 0, of});
    return answers_[asked_++].first;
  }
  /// Moves to the next combination; false after the last. After `most` combinations, as many again are
  /// random.
  bool next(int most) {
    asked_ = 0;
    if (++tried_ >= most) is_random_ = true;
    if (is_random_) return answers_.clear(), tried_ < 2 * most;
    while (!answers_.empty() && answers_.back().first + 1 == answers_.back().second) answers_.pop_back();
    if (!answers_.empty()) ++answers_.back().first;
    return !answers_.empty();
  }

 private:
  std::vector<std::pair<int, int>> answers_;
  std::size_t asked_ = 0;
  int tried_ = 0;
  bool is_random_ = false;
  std::mt19937 random_;
};

/// A disk: the state that programs see, and the state that is guaranteed after a power loss.
class disk {
 public:
  explicit disk(std::string root) : root_(std::move(root)) { nodes_.push_back({.is_folder = true}); }

  void play(const file_call& r) {
    const auto folder = [&] { return find(io::parent_of(r.path)); };
    const std::string name = r.path.substr(r.path.rfind('/') + 1);
    switch (r.what) {
      case call::create:
      case call::make_folder:
        nodes_.push_back({.is_folder = r.what == call::make_folder});
        change(folder(), {name, "", static_cast<int>(nodes_.size()) - 1});
        break;
      case call::write: at(find(r.path)).bytes += r.bytes; break;
      case call::sync: at(find(r.path)).synced = at(find(r.path)).bytes; break;
      case call::sync_folder:
        at(find(r.path)).synced_names = at(find(r.path)).names;
        at(find(r.path)).changes.clear();
        break;
      case call::rename:
        REQUIRE(io::parent_of(r.to) == io::parent_of(r.path));
        change(folder(), {r.to.substr(r.to.rfind('/') + 1), name, at(folder()).names.at(name)});
        break;
      case call::remove: change(folder(), {"", name, -1}); break;
    }
  }

  /// A possible state after a power loss: files with their bytes, folders without.
  using state = std::map<std::string, std::optional<std::string>>;
  state after_loss(choices& c) const {
    state s;
    list(0, "", c, s);
    return s;
  }

 private:
  /// An atomic change in a folder: `to` now names `node`, and `from` nothing. Either may be empty.
  struct name_change {
    std::string to, from;
    int node;
    void apply(std::map<std::string, int>& names) const {
      if (!from.empty()) names.erase(from);
      if (!to.empty()) names[to] = node;
    }
  };
  struct node {
    bool is_folder = false;
    std::string bytes{}, synced{};
    std::map<std::string, int> names{}, synced_names{};
    std::vector<name_change> changes{};  // not synced yet
  };

  node& at(int n) { return nodes_[static_cast<std::size_t>(n)]; }
  int find(const std::string& path) {
    if (path == root_) return 0;
    return at(find(io::parent_of(path))).names.at(path.substr(path.rfind('/') + 1));
  }
  void change(int folder, name_change c) {
    c.apply(at(folder).names);
    at(folder).changes.push_back(std::move(c));
  }
  void list(int n, const std::string& path, choices& c, state& s) const {
    const node& here = nodes_[static_cast<std::size_t>(n)];
    if (!here.is_folder) {
      const std::size_t rest = here.bytes.size() - here.synced.size();
      switch (c.pick(here.bytes == here.synced ? 1 : 4)) {
        case 0: s[path] = here.synced; break;
        case 1: s[path] = here.bytes; break;
        case 2: s[path] = here.bytes.substr(0, here.synced.size() + rest / 2); break;
        default: s[path] = here.synced + std::string(rest, '\0'); break;
      }
      return;
    }
    if (!path.empty()) s[path] = std::nullopt;
    std::map<std::string, int> names = here.synced_names;
    for (const name_change& change : here.changes)
      if (c.pick(2)) change.apply(names);
    for (const auto& [name, below] : names) list(below, path + "/" + name, c, s);
  }

  std::string root_;
  std::vector<node> nodes_;
};

void put(const disk::state& s, const fs::path& to) {
  fs::remove_all(to);
  fs::create_directories(to);
  for (const auto& [path, bytes] : s) {
    if (bytes)
      write_bytes(to.string() + path, *bytes);
    else
      fs::create_directories(to.string() + path);
  }
}

/// Saved values, and the number of calls after which they are guaranteed.
struct milestone {
  std::size_t calls;
  std::vector<float> values;
};

struct history {
  std::vector<file_call> calls;
  std::vector<milestone> saves;  // the first one is empty
};

/// Two ranks save steps 1 to 3, keep the last two, and then save steps 2 and 3 again with other values.
history recorded_history(const std::string& at) {
  recorder calls;
  history h;
  h.saves.push_back({0, {}});
  fs::create_directories(at);
  run_ranks(2, [&](communicator& ranks) {
    for (const std::uint64_t seed : {3u, 4u}) {
      bound_net n(ranks, seed);
      checkpointer saves(at, n.run, {.asynchronous = seed == 3, .keep = seed == 3 ? 2 : 1, .calls = &calls});
      n.train(seed == 3 ? 0 : 1);
      for (int step = seed == 3 ? 1 : 2; step <= 3; ++step) {
        n.train(1);
        saves.save({step, step});
        saves.finish();
        const auto v = n.values();
        if (ranks.rank() == 0) h.saves.push_back({calls.done(), v});
        ranks.barrier().wait();
      }
    }
  });
  h.calls = calls.calls;
  return h;
}

/// A hash of a state and of the last guaranteed save.
std::uint64_t sum_of(const disk::state& s, std::size_t last) {
  std::string all = std::to_string(last);
  for (const auto& [path, bytes] : s)
    all += '\0' + path + '\0' + (bytes ? std::to_string(bytes->size()) + *bytes : "/");
  return xxh64(all);
}

struct outcome {
  int states = 0, lost = 0;
  std::string first;  // the first loss
};

/// Loads every possible state after every call; the disk ignores the calls for which `forgotten` is true.
outcome lose_power(const history& h, const std::string& at,
                   const std::function<bool(const file_call&)>& forgotten, int most,
                   bool first_only = false) {
  const bool in_memory = fs::is_directory("/dev/shm");  // thousands of folders
  const test::folder f("weft-power-after", in_memory ? fs::path("/dev/shm") : fs::temp_directory_path());
  self_communicator alone;
  bound_net n(alone, 99);
  outcome o;
  disk d(at);
  std::set<std::uint64_t> seen;
  for (std::size_t played = 0; played <= h.calls.size(); ++played) {
    if (played > 0 && !forgotten(h.calls[played - 1])) d.play(h.calls[played - 1]);
    std::size_t last = 0;
    while (last + 1 < h.saves.size() && h.saves[last + 1].calls <= played) ++last;
    choices c(static_cast<unsigned>(played));
    do {
      const disk::state s = d.after_loss(c);
      if (!seen.insert(sum_of(s, last)).second) continue;
      put(s, f.path);
      ++o.states;
      std::string wrong;
      try {
        const bool found = checkpointer(f.name(), n.run, {.read_only = true}).load().has_value();
        const std::vector<float> values = found ? n.values() : std::vector<float>();
        const bool next = last + 1 < h.saves.size() && values == h.saves[last + 1].values;
        if (!next && values != h.saves[last].values) wrong = found ? "other values" : "nothing there";
        if (o.states % 50 == 0) {  // and saving continues from there
          checkpointer saves(f.name(), n.run, {.asynchronous = false});
          saves.save({7, 7});
          if (saves.load()->step != 7) wrong = "saves no more";
          for (const auto& entry : fs::directory_iterator(f.path))
            if (entry.path().filename().string().starts_with("step-") &&
                entry.path().extension().string().size() > 6)
              wrong = "leftovers";
        }
      } catch (const io_error& e) {
        wrong = e.what();
      }
      if (wrong.empty()) continue;
      if (first_only) return {o.states, 1, wrong};
      if (o.lost++ == 0) o.first = "after call " + std::to_string(played) + ": " + wrong;
    } while (c.next(most));
  }
  return o;
}

}  // namespace

TEST_CASE("power lost at any moment leaves the checkpoint before or this one, and no sync is there in vain") {
  const bool large = std::getenv("WEFT_TEST_LARGE") != nullptr;
  const test::folder f("weft-power");
  const history h = recorded_history(f.name());
  REQUIRE(h.saves.size() == 6);
  const auto none = [](const file_call&) { return false; };
  const outcome o = lose_power(h, f.name(), none, large ? 3000 : 60);
  MESSAGE(h.calls.size(), " calls, ", o.states, " states after a loss of power");
  CHECK(o.first == "");
  CHECK(o.lost == 0);
  CHECK(o.states > 300);

  // Ignoring any one kind of sync is detected, so each is needed.
  const auto lost_without = [&](const std::function<bool(const file_call&)>& which) {
    return lose_power(h, f.name(), which, 20, true).lost;
  };
  CHECK(lost_without([](const file_call& r) { return r.what == call::sync && has(r.path, "rank-1"); }) > 0);
  CHECK(lost_without([](const file_call& r) { return r.what == call::sync && has(r.path, "index.json"); }) >
        0);
  CHECK(lost_without([](const file_call& r) { return r.what == call::sync && has(r.path, "latest"); }) > 0);
  CHECK(lost_without([](const file_call& r) { return r.what == call::sync_folder && has(r.path, "step-"); }) >
        0);
  CHECK(lost_without([&](const file_call& r) { return r.what == call::sync_folder && r.path == f.name(); }) >
        0);
}
