// SPDX-License-Identifier: MIT
// The contract of communicators on processes over TCP: each test forks its ranks.
#define DOCTEST_CONFIG_IMPLEMENT
#include "contract.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include <weft/comm/file_store.hpp>
#include <weft/comm/gloo.hpp>

using namespace weft;
using namespace std::chrono_literals;
using contract::failure;

namespace {

communicator* world = nullptr;

/// Runs f(rank, store) in n processes; returns how many failed.
template <class F>
int failures_on(int n, F f) {
  static int runs = 0;
  const auto folder = std::filesystem::temp_directory_path() /
                      ("weft-gloo-" + std::to_string(::getpid()) + "-" + std::to_string(runs++));
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int r = 0; r < n; ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = false;
      try {
        good = f(r, std::make_shared<file_store>(folder.string()));
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
      }
      std::fflush(nullptr);
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failures += status != 0;
    if (WIFSIGNALED(status)) std::fprintf(stderr, "a rank was ended by signal %d\n", WTERMSIG(status));
  }
  std::filesystem::remove_all(folder);
  return failures;
}

/// Waits until each of these ranks has called this with the same word.
void meet(store& all, const std::string& word, int rank, const std::vector<int>& ranks) {
  all.set(word + std::to_string(rank), "");
  std::vector<std::string> words;
  for (const int r : ranks) words.push_back(word + std::to_string(r));
  all.wait(words, 60s);
}

/// Whether the text contains all parts; prints it if not.
template <class... Parts>
bool says(const std::string& text, Parts... parts) {
  const bool good = (contract::has(text, parts) && ...);
  if (!good) std::fprintf(stderr, "it says: %s\n", text.c_str());
  return good;
}

}  // namespace

TEST_CASE("the contract of communicators: processes over TCP" * doctest::test_suite("on every rank")) {
  contract::check_contract([](int, auto f) { f(*world); }, world->size());
}

TEST_CASE("sums have the bits of the tree that threads use") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          return contract::sums_follow_the_tree(ranks);
        }) == 0);
}

TEST_CASE("ranks that disagree, are late or die are named on all others") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          const std::string wrong = failure([&] {
            if (rank == 1) ranks.broadcast(x, 0).wait();
            else ranks.all_reduce(x).wait();
          });
          return says(wrong, "at fault: rank 1 called broadcast(f32 x 4, root 0)");
        }) == 0);
  for (int round = 0; round < 10; ++round)  // a wait that ends a little early is late all the same
    CHECK(failures_on(2, [](int rank, auto store) {
            gloo_communicator ranks(store, rank, 2);
            meet(*store, "up", rank, {0, 1});
            if (rank == 1) store->wait({"told0"}, 60s);
            std::vector<float> x(4);
            const std::string late =
                failure([&] { ranks.all_reduce(x, reduction::sum, {.timeout = 10ms}).wait(); });
            store->set("told" + std::to_string(rank), "");
            return says(late, "waited 10 ms in #0 all_reduce", "; not there: rank 1");
          }) == 0);
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          std::vector<float> x(4);
          meet(*store, "up", rank, {0, 1, 2});
          if (rank == 1) store->wait({"told0", "told2"}, 60s);
          const std::string late = failure([&] {
            const work w = ranks.all_reduce(x, reduction::sum, {.label = "h.3", .timeout = 200ms});
            if (rank != 1) meet(*store, "posted", rank, {0, 2});
            w.wait();
          });
          store->set("told" + std::to_string(rank), "");
          return says(late, "waited 200 ms in #0 all_reduce(sum, f32 x 4) for h.3; not there: rank 1");
        }) == 0);
  for (int round = 0; round < 10;
       ++round)  // a write to a rank that is gone is not fatal, and both others name it
    CHECK(failures_on(3, [](int rank, auto store) {
            gloo_communicator ranks(store, rank, 3);
            std::vector<float> x(4);
            meet(*store, "up", rank, {0, 1, 2});
            if (rank == 2) ::_exit(0);
            const std::string gone = failure([&] {
              for (int i = 0; i < 1000; ++i) ranks.all_reduce(x, reduction::sum, {.label = "h.3"}).wait();
            });
            return says(gone, "rank 2 is gone", "all_reduce(sum, f32 x 4) for h.3");
          }) == 0);
}

namespace {

/// Connects to every port that rank `rank` publishes for the others, before they learn of the port.
class first_to_come : public prefix_store {
 public:
  first_to_come(std::shared_ptr<store> of, int rank)
      : prefix_store("ranks", std::move(of)), key_(std::to_string(rank)) {}
  void set(const std::string& key, const std::string& value) override {
    for (std::size_t at = 0; key == key_ && at + sizeof(sockaddr_in) <= value.size();
         ++at) {  // each address that it holds
      sockaddr_in to;
      std::memcpy(&to, value.data() + at, sizeof to);
      if (to.sin_family != AF_INET || to.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) continue;
      const int s = ::socket(AF_INET, SOCK_STREAM, 0);
      taken_ += ::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    }
    prefix_store::set(key, value);
  }
  int taken() const { return taken_; }

 private:
  std::string key_;
  int taken_ = 0;
};

}  // namespace

TEST_CASE("a stranger who comes first to a rank's port is found before anything is sent") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    CHECK(failures_on(ranks, [ranks](int rank, auto store) {
            const auto meddled = std::make_shared<first_to_come>(store, rank);
            std::vector<float> x(4, 1.0f);
            const std::string wrong = failure([&] {
              gloo_communicator all(meddled, rank, ranks, {.token = "secret"}, 3s);
              all.all_reduce(x).wait();
            });
            // A rank has a port for each other one; in later versions of Gloo one for all, where strangers
            // wait.
            if (meddled->taken() != ranks - 1 && meddled->taken() != 1) return false;
            if (wrong.empty()) return x[0] == static_cast<float>(ranks);
            return says(wrong, "the start of ", "another process that connected first to a rank's port");
          }) == 0);
}

TEST_CASE("a rank that does not know the token is found out by the others") {
  CHECK(failures_on(3, [](int rank, auto store) {
          const std::string wrong = failure([&] {
            gloo_communicator ranks(store, rank, 3, {.token = rank == 1 ? "guess" : "secret"}, 5s);
          });
          return says(
              wrong, "rank 1",
              "was answered by another process, which does not know the job's token (WEFT_JOB_TOKEN)");
        }) == 0);
  CHECK(failures_on(3, [](int rank, auto store) {  // groups use authenticated connections
          gloo_communicator ranks(store, rank, 3, {.token = "secret"});
          const auto pair = ranks.split(rank == 2 ? -1 : 0, rank, {});
          std::vector<float> x(4, 1.0f);
          if (pair) pair->all_reduce(x).wait();
          return x[0] == (rank == 2 ? 1.0f : 2.0f);
        }) == 0);
}

TEST_CASE("a part of an all_to_all whose sides differ is an error on all ranks that names both") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    CHECK(failures_on(ranks, [=](int rank, auto store) {
            gloo_communicator all(store, rank, ranks);
            return says(contract::wrong_part(all), contract::wrong_part_says);
          }) == 0);
}

TEST_CASE("a message whose sides differ is an error on all ranks that names both") {
  for (int ranks = 2; ranks <= 3; ++ranks)
    for (int how = 0; how < 3; ++how)
      CHECK(failures_on(ranks, [=](int rank, auto store) {
              gloo_communicator all(store, rank, ranks);
              const std::string wrong = contract::wrong_message(all, how);
              for (const std::string& part : contract::wrong_message_says(ranks, how))
                if (!says(wrong, part)) return false;
              return true;
            }) == 0);
}

namespace {

/// Stops its process when ranks have connected and are about to authenticate.
class stops_before_proofs : public prefix_store {
 public:
  explicit stops_before_proofs(const std::shared_ptr<store>& of) : prefix_store("ranks", of) {}
  std::string get(const std::string& key, milliseconds limit) override {
    if (key.starts_with("nonce")) {
      set("stopped", std::to_string(::getpid()));
      ::raise(SIGSTOP);
    }
    return prefix_store::get(key, limit);
  }
};

}  // namespace

TEST_CASE("a rank that is stopped while ranks prove who they are is named by all others") {
  for (const int victim : {0, 1})
    CHECK(failures_on(3, [victim](int rank, const std::shared_ptr<store>& all) {
            std::shared_ptr<store> meet = std::make_shared<prefix_store>("ranks", all);
            if (rank == victim) meet = std::make_shared<stops_before_proofs>(all);
            const std::string late = failure([&] { gloo_communicator ranks(meet, rank, 3, {}, 3s); });
            all->set("told" + std::to_string(rank), "1");
            if (rank == 2) {
              all->wait({"told" + std::to_string(1 - victim)}, 60s);
              ::kill(std::stoi(meet->get("stopped", 60s)), SIGKILL);
            }
            return says(late, "waited 3000 ms in the start of 3 ranks",
                        "not there: rank " + std::to_string(victim) + ", which does not answer: stopped");
          }) == 1);
}

namespace {

/// Runs a function before its rank publishes the data for authentication.
class before_proofs : public prefix_store {
 public:
  before_proofs(const std::shared_ptr<store>& of, std::function<void()> what)
      : prefix_store("ranks", of), what_(std::move(what)) {}
  void set(const std::string& key, const std::string& value) override {
    if (key.starts_with("nonce")) what_();
    prefix_store::set(key, value);
  }

 private:
  std::function<void()> what_;
};

}  // namespace

TEST_CASE("rank 0 dies while others use the store that it serves: they name it, not the store") {
  CHECK(failures_on(3, [](int rank, const std::shared_ptr<store>& all) {
          if (rank == 0) all->set("rank 0", std::to_string(::getpid()));
          const pid_t first = std::stoi(all->get("rank 0", 60s));
          const auto meet = std::make_shared<before_proofs>(all, [&] {
            if (rank == 0) ::_exit(0);
            while (::kill(first, 0) == 0) std::this_thread::sleep_for(1ms);
            throw comm_error("weft: store: the connection to 127.0.0.1 is lost: Connection reset by peer");
          });
          return says(failure([&] { gloo_communicator(meet, rank, 3, {}, 30s); }), "weft: rank 0 is gone");
        }) == 0);
}

TEST_CASE("a job that is stopped as a whole for longer than its time limits, and continues, is not late") {
  CHECK(failures_on(3, [](int rank, auto store) {
          if (rank == 2) {  // stops the others while 0 waits for 1, and has them continue
            const pid_t others[] = {std::stoi(store->get("pid0", 60s)), std::stoi(store->get("pid1", 60s))};
            store->wait({"naps"}, 60s);
            std::this_thread::sleep_for(100ms);
            for (const pid_t p : others) ::kill(p, SIGSTOP);
            std::this_thread::sleep_for(4s);
            for (const pid_t p : others) ::kill(p, SIGCONT);
            return true;
          }
          gloo_communicator ranks(store, rank, 2);
          store->set("pid" + std::to_string(rank), std::to_string(::getpid()));
          std::vector<float> x(4, 1.0f);
          if (rank == 1) {
            store->set("naps", "1");
            for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(20ms);
          }
          const std::string late =
              failure([&] { ranks.all_reduce(x, reduction::sum, {.timeout = 3s}).wait(); });
          return says("late: " + late + ".", "late: .") && x[0] == 2.0f;
        }) == 0);
}

TEST_CASE("a start that fails for a reason that names no rank reports how long it took") {
  CHECK(failures_on(2, [](int rank, const std::shared_ptr<store>& all) {
          const auto meet = std::make_shared<before_proofs>(all, [&] {
            if (rank == 1) throw std::runtime_error("a reason");
          });
          const std::string late = failure([&] { gloo_communicator(meet, rank, 2, {}, 30s); });
          return says(late, "weft: rank 1 waited ", " ms in the start of 2 ranks") &&
                 !contract::has(late, "waited 30000 ms");
        }) == 0);
}

namespace {

/// A store that fails on request.
class lost_store : public prefix_store {
 public:
  explicit lost_store(const std::shared_ptr<store>& of) : prefix_store("ranks", of) {}
  bool lost = false;
  void set(const std::string& key, const std::string& value) override {
    prefix_store::set(still(key), value);
  }
  std::string get(const std::string& key, milliseconds limit) override {
    return prefix_store::get(still(key), limit);
  }
  std::int64_t add(const std::string& key, std::int64_t n) override {
    return prefix_store::add(still(key), n);
  }
  bool check(const std::vector<std::string>& keys) override {
    for (const std::string& k : keys) still(k);
    return prefix_store::check(keys);
  }
  void wait(const std::vector<std::string>& keys, milliseconds limit) override {
    for (const std::string& k : keys) still(k);
    prefix_store::wait(keys, limit);
  }

 private:
  const std::string& still(const std::string& key) const {
    if (lost) throw comm_error("the store is lost");
    return key;
  }
};

}  // namespace

TEST_CASE("the store is needed for the start only") {
  CHECK(failures_on(3, [](int rank, auto store) {
          const auto meet = std::make_shared<lost_store>(store);
          gloo_communicator ranks(meet, rank, 3);
          meet->lost = true;
          const auto pair = ranks.split(rank == 2 ? -1 : 0, rank, {});
          std::vector<float> x(4, 1.0f);
          if (pair) pair->all_reduce(x).wait();
          ranks.all_reduce(x).wait();
          return x[0] == 5;
        }) == 0);
}

namespace {

std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}
std::ptrdiff_t threads() { return entries("/proc/self/task"); }
std::ptrdiff_t descriptors() { return entries("/proc/self/fd"); }

}  // namespace

TEST_CASE("groups that are not used cost neither threads nor descriptors") {
  CHECK(failures_on(3, [](int rank, auto store) {
          gloo_communicator ranks(store, rank, 3);
          ranks.barrier().wait();
          const auto threads_before = threads(), descriptors_before = descriptors();
          std::vector<std::shared_ptr<communicator>> groups;
          for (int i = 0; i < 10; ++i) {
            groups.push_back(ranks.split(i % 2 ? rank % 2 : 0, i % 3 ? rank : -rank, {}));
            groups.push_back(groups.back()->split(0));
          }
          const auto same = [&] {  // rank 0 closes its listening socket when all have come, perhaps only now
            return threads() == threads_before && descriptors() <= descriptors_before;
          };
          bool good = same();
          for (const auto& g : groups) {  // one after the other: by the thread that there is
            std::vector<float> x(4, 1.0f);
            g->all_reduce(x).wait();
            good = good && x[0] == static_cast<float>(g->size());
          }
          return good && same();
        }) == 0);
}

TEST_CASE("an address or an interface that no machine has is an error") {
  const auto meet = [](const gloo_network& network) {
    gloo_communicator(std::make_shared<memory_store>(), 0, 1, network);
  };
  CHECK_THROWS_WITH_AS(meet({.address = "no.such.name.invalid"}),
                       doctest::Contains("weft: gloo: cannot use the network address no.such.name.invalid"),
                       usage_error);
  CHECK_THROWS_WITH_AS(meet({.interface = "eth99"}),
                       doctest::Contains("weft: gloo: cannot use the network interface eth99"), usage_error);
}

int main(int count, char** values) {
  int failures = 0;
  for (int n : {1, 2, 3, 4})
    failures += failures_on(n, [&](int rank, auto store) {
      gloo_communicator ranks(store, rank, n);
      world = &ranks;
      doctest::Context context(count, values);
      context.setOption("test-suite", "on every rank");
      context.setOption("minimal", true);
      return context.run() == 0;
    });
  std::printf("on 1 to 4 ranks: %d ranks failed\n", failures);
  doctest::Context context(count, values);
  context.setOption("test-suite-exclude", "on every rank");
  return context.run() || failures;
}
