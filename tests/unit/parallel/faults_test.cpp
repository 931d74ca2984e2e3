// SPDX-License-Identifier: MIT
// One rank fails at each operation of a training step, in every way; the other ranks name it.
#include <doctest/doctest.h>

#include <weft/comm/threads.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/weft.hpp>

using namespace weft;
using namespace std::chrono_literals;

namespace {

enum class fault { none, wrong_size, wrong_operation, dropped, reordered, exits, late };
constexpr fault faults[] = {fault::wrong_size, fault::wrong_operation, fault::dropped,
                            fault::reordered,  fault::exits,           fault::late};
constexpr const char* names[] = {"none",  "wrong size", "wrong operation", "dropped", "reordered",
                                 "exits", "late"};

struct rank_exits {};

/// One of three ranks; rank 1 fails at operation `at`.
class faulty_communicator : public threads_communicator {
 public:
  faulty_communicator(std::shared_ptr<detail::thread_group> g, int rank, fault what, int at,
                      const std::atomic<int>& failed)
      : threads_communicator(std::move(g), rank), what_(what), at_(at), failed_(failed) {}
  int operations() const { return operations_; }

 protected:
  work start(operation o) override {
    const int now = operations_++;
    if (what_ == fault::late && now >= at_) o.timeout = 20ms;
    if (rank() != 1) return threads_communicator::start(std::move(o));
    if (now == at_ + 1 && what_ == fault::reordered) {
      work second = threads_communicator::start(std::move(o));
      threads_communicator::start(held_).finish();
      return second;
    }
    if (now != at_ || what_ == fault::none) return threads_communicator::start(std::move(o));
    switch (what_) {
      case fault::wrong_size:
        for (rank_counts* c : {&o.in_counts, &o.out_counts})
          if (!c->empty()) ++c->back();
        ++o.out.count;
        break;
      case fault::wrong_operation:
        o = {.kind = collective::barrier, .label = o.label, .timeout = o.timeout};
        break;
      case fault::dropped: return {};
      case fault::reordered: held_ = std::move(o); return {};
      case fault::exits: throw rank_exits{};
      case fault::late:
        while (failed_ < 2) std::this_thread::sleep_for(1ms);
        break;
      default: break;
    }
    return threads_communicator::start(std::move(o));
  }

 private:
  fault what_;
  int at_, operations_ = 0;
  const std::atomic<int>& failed_;
  operation held_;
};

struct net {
  linear<6, 5> in;
  linear<5, 2> out;
  auto operator()(expression auto x) const { return out(relu(in(x))); }
};

struct outcome {
  std::vector<std::string> errors;  // by rank
  int operations = 0;               // of a rank without a fault
};

/// Two steps on three ranks; rank 1 has a fault.
outcome train(sharding stage, fault what, int at) {
  const auto world = std::make_shared<detail::thread_world>();
  const auto group = std::make_shared<detail::thread_group>(world, 3);
  outcome result{std::vector<std::string>(3), 0};
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      faulty_communicator ranks(group, r, what, at, failed);
      try {
        const device where(std::make_shared<cpu::cpu_backend>(1));
        net model;
        to(model, where);
        adamw optimizer;
        auto run =
            bind(model, optimizer, ranks, {.divide = stage, .timeout = 60s});
        for (int s = 0; s < 2; ++s) {
          tape t(run);
          t.backward(t.eval(mean(square(model(full<float>(extents<3, 6>{}, 1.0f, where))))));
          run.step();
        }
        run.full();
      } catch (const error& e) {
        result.errors[static_cast<std::size_t>(r)] = e.what();
        ++failed;
      } catch (const rank_exits&) {
        result.errors[static_cast<std::size_t>(r)] = "exits";
      }
      if (r == 0) result.operations = ranks.operations();
    });
  for (std::thread& t : threads) t.join();
  return result;
}

}  // namespace

TEST_CASE("a fault of one rank at any operation of a step is named on all others") {
  for (sharding stage : {sharding::none, sharding::parameters}) {
    const outcome good = train(stage, fault::none, 0);
    for (const std::string& e : good.errors) CHECK(e == "");
    CHECK(good.operations >= 3);
    for (fault what : faults)
      for (int at = 0; at < good.operations; ++at) {
        if (what == fault::reordered && at + 1 == good.operations) continue;  // nothing comes after
        const outcome bad = train(stage, what, at);
        INFO("stage " << static_cast<int>(stage) << ", operation " << at << " "
                      << std::string(names[static_cast<int>(what)]));
        for (std::size_t r : {0u, 2u}) {
          INFO("rank " << r << ": " << bad.errors[r]);
          CHECK(bad.errors[r].find("rank 1") != std::string::npos);
        }
      }
  }
}
