// SPDX-License-Identifier: MIT
// Ranks that all-reduce in steps until rank R fails, unless the run is a resumed one; see world.sh.
//
//   faulty_rank --fault KIND --who R --steps N --timeout MS      and the flags that launch -r adds
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <weft/comm/run_world.hpp>

using namespace weft;

int main(int count, char** values) {
  std::map<std::string, std::string> o{
      {"--fault", "none"}, {"--who", "1"}, {"--steps", "20"}, {"--timeout", "1000"}};
  bool resumes = false;
  for (int i = 1; i < count; ++i)
    if (std::string(values[i]) == "--resume") resumes = true;
    else if (i + 1 < count) o[values[i]] = values[i + 1], ++i;
  const std::string fault = resumes ? "none" : o["--fault"];
  const int who = std::stoi(o["--who"]), steps = std::stoi(o["--steps"]);
  const std::chrono::milliseconds limit(std::stoi(o["--timeout"]));
  const auto body = [&](communicator& ranks) {
    if (ranks.rank() == 0) std::fprintf(stderr, "%d ranks\n", ranks.size());
    for (int step = 0; step < steps; ++step) {
      if (step == 5 && ranks.rank() == who) {
        if (fault == "hang") ::sleep(1000);
        if (fault == "comm_error") throw comm_error("my own failure");
        if (fault == "int") throw 42;
        if (fault == "return") return 7;
      }
      std::vector<float> x(3);
      ranks.all_reduce(x, reduction::sum, {.timeout = limit}).wait();
      ::usleep(10'000);
    }
    return 0;
  };
  return run_world(count, values, body, {.over = transport::automatic, .timeout = std::chrono::seconds(10)});
}
