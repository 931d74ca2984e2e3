// SPDX-License-Identifier: MIT
// The contract of communicators under mpirun: every rank runs all of it.
#define DOCTEST_CONFIG_IMPLEMENT
#include "contract.hpp"

#include <weft/comm/mpi.hpp>

using namespace weft;
using namespace std::chrono_literals;
using contract::failure, contract::has;

namespace {
communicator* world = nullptr;
}  // namespace

TEST_CASE("the contract of communicators: processes under mpirun") {
  contract::check_contract([](int, auto f) { f(*world); }, world->size());
}

TEST_CASE("sums have the bits of the tree that threads use") {
  CHECK(contract::sums_follow_the_tree(*world));
}

TEST_CASE("ranks that disagree or are late are named") {
  if (world->size() < 3) return;
  const auto inner = world->split(0), other = world->split(0);
  std::vector<float> x(4);
  const std::string wrong = failure([&] {
    if (world->rank() == 1) inner->broadcast(x, 0).wait();
    else inner->all_reduce(x).wait();
  });
  CHECK(has(wrong, "at fault: rank 1 called broadcast(f32 x 4, root 0)"));
  const std::string late = failure([&] {
    if (world->rank() == 1) std::this_thread::sleep_for(300ms);
    else other->all_reduce(x, reduction::sum, {.timeout = 50ms}).wait();
  });
  if (world->rank() != 1) CHECK(has(late, "not there: rank 1"));
  world->barrier().wait();
}

int main(int count, char** values) {
  boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled);
  mpi_communicator ranks{boost::mpi::communicator{}};
  world = &ranks;
  doctest::Context context(count, values);
  if (ranks.rank() > 0) context.setOption("minimal", true);
  const int result = context.run();
  std::vector<std::int32_t> worst{result};
  ranks.all_reduce(worst, reduction::maximum).wait();
  return worst[0];
}
