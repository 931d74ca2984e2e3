// SPDX-License-Identifier: MIT
// The contract of communicators under mpirun, run as a whole by every rank.
#define DOCTEST_CONFIG_IMPLEMENT
#include "contract.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>

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

// The communicator is unusable after each of these, so that each has a separate run.
TEST_CASE("ranks that disagree are named" * doctest::test_suite("the end")) {
  const auto inner = world->split(0);
  std::vector<float> x(4);
  const std::string wrong = failure([&] {
    if (world->rank() == 1) inner->broadcast(x, 0).wait();
    else inner->all_reduce(x).wait();
  });
  CHECK(has(wrong, "at fault: rank 1 called broadcast(f32 x 4, root 0)"));
  CHECK(failure([&] { world->barrier().wait(); }).starts_with(wrong));
}

TEST_CASE("a rank that is late is named, by those that wait for others too" *
          doctest::test_suite("the end")) {
  const auto other = world->split(world->rank() == 0);  // ranks 1 and 2, and 0 alone
  const std::string told =
      std::filesystem::temp_directory_path() / ("weft-mpi-late-" + std::to_string(::getppid()) + "-");
  std::vector<float> x(4);
  const std::string late = failure([&] {
    for (const char* r : {"0", "1"})
      while (world->rank() == 2 && !std::filesystem::remove(told + r)) std::this_thread::sleep_for(10ms);
    if (world->rank() == 1) other->all_reduce(x, reduction::sum, {.timeout = 1s}).wait();
    world->all_reduce(x, reduction::sum, {.timeout = 1s}).wait();
  });
  if (world->rank() < 2) std::ofstream(told + std::to_string(world->rank())).put('x');
  if (world->rank() < 2) CHECK(has(late, "not there: rank 2, which does not answer"));
  else CHECK(has(late, "not there: rank 2"));
}

TEST_CASE("a message that is too short is an error that names both sides" * doctest::test_suite("the end")) {
  const std::string wrong = contract::wrong_message(*world, 0);
  for (const std::string& part : contract::wrong_message_says(world->size(), 0))
    CHECK_MESSAGE(has(wrong, part), wrong);
}

TEST_CASE("a message that is too long is an error that names both sides" * doctest::test_suite("the end")) {
  const std::string wrong = contract::wrong_message(*world, 1);
  for (const std::string& part : contract::wrong_message_says(world->size(), 1))
    CHECK_MESSAGE(has(wrong, part), wrong);
}

TEST_CASE("a message of another type is an error that names both sides" * doctest::test_suite("the end")) {
  const std::string wrong = contract::wrong_message(*world, 2);
  for (const std::string& part : contract::wrong_message_says(world->size(), 2))
    CHECK_MESSAGE(has(wrong, part), wrong);
}

TEST_CASE("a part of an all_to_all that is too short names both sides" * doctest::test_suite("the end")) {
  const std::string wrong = contract::wrong_part(*world);
  CHECK_MESSAGE(has(wrong, contract::wrong_part_says), wrong);
}

TEST_CASE("a rank that gives up says why on all" * doctest::test_suite("the end")) {
  if (world->rank() == 1) world->abort("the disk is full");
  CHECK(has(failure([&] { world->barrier().wait(); }), "weft: rank 1 gave up: the disk is full"));
}

int main(int count, char** values) {
  boost::mpi::environment mpi(count, values, boost::mpi::threading::funneled);
  mpi_communicator ranks{boost::mpi::communicator{}};
  world = &ranks;
  doctest::Context context;
  context.setOption("test-suite-exclude", "the end");
  if (count > 1) {  // the test to run
    context.clearFilters();
    context.setOption("test-case", values[1]);
  }
  if (ranks.rank() > 0) context.setOption("minimal", true);
  int result = context.run();
  return ranks.end_together(result, 60s) ? result : 1;
}
