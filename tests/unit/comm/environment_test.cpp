// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <map>

#include <weft/comm/environment.hpp>

using namespace weft;

namespace {
using variables = std::map<std::string, std::string>;
variable_lookup in(const variables& v) {
  return [v](const char* name) -> const char* {
    const auto found = v.find(name);
    return found == v.end() ? nullptr : found->second.c_str();
  };
}
}  // namespace

TEST_CASE("launchers: torchrun's variables, mpirun's, none") {
  const variables torchrun{{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "29500"}};
  const launch a = launch_from_environment(in(torchrun));
  CHECK(a.from == launch::launcher::variables);
  CHECK(a.rank == 5);
  CHECK(a.size == 8);
  CHECK(a.local_rank == 1);
  CHECK(a.local_size == 4);
  CHECK(a.address == "node0");
  CHECK(a.port == 29500);
  variables with_agent = torchrun;
  with_agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(launch_from_environment(in(with_agent)).port == 29501);
  const launch by_hand = launch_from_environment(in({{"RANK", "1"}, {"WORLD_SIZE", "2"}}));
  CHECK(by_hand.local_rank == 1);
  CHECK(by_hand.local_size == 2);
  const launch b = launch_from_environment(in(
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  CHECK(b.from == launch::launcher::mpirun);
  CHECK(b.rank == 2);
  CHECK(b.size == 3);
  CHECK(b.local_size == 3);  // the default
  const launch two = launch_from_environment(in({{"OMPI_COMM_WORLD_RANK", "2"},
                                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                 {"MASTER_ADDR", "node0"},
                                                 {"MASTER_PORT", "29500"}}));
  CHECK(two.local_size == 2);
  CHECK(two.address == "node0");
  CHECK(two.port == 29500);
  const launch c = launch_from_environment(in({}));
  CHECK(c.from == launch::launcher::none);
  CHECK(c.size == 1);
}

TEST_CASE("launchers: what is missing or no number is named") {
  const auto refused = [](const variables& v) {
    try {
      launch_from_environment(in(v));
    } catch (const usage_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused({{"RANK", "0"}}) == "weft: WORLD_SIZE is not set, but other variables of a launcher are");
  CHECK(refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}) == "weft: RANK=4: expected a number from 0 to 3");
  CHECK(refused({{"RANK", "1x"}, {"WORLD_SIZE", "4"}}).find("RANK=1x") != std::string::npos);
  CHECK(refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "99999"}})
            .find("MASTER_PORT") != std::string::npos);
  CHECK(refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}}).find("MASTER_PORT is not set") !=
        std::string::npos);
  variables both{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(refused(both) ==
        "weft: WORLD_SIZE=1 contradicts OMPI_COMM_WORLD_SIZE=2: unset WORLD_SIZE and RANK under mpirun");
  both["TORCHELASTIC_RUN_ID"] = "none";  // mpirun has started one torchrun on each machine
  CHECK(refused(both) == "");
  both.erase("TORCHELASTIC_RUN_ID");
  both["WORLD_SIZE"] = "2";
  CHECK(refused(both) == "");
}

TEST_CASE("variables of other libraries that are set are reported") {
  CHECK(ignored_variables(in({{"NCCL_DEBUG", "INFO"}, {"HOME", "/"}})) ==
        std::vector<std::string>{"NCCL_DEBUG"});
}
