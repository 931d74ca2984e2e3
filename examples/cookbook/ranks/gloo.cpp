// SPDX-License-Identifier: MIT
// docs/cookbook/ranks.md: ranks as processes over TCP.
// [main]
#include <cstdio>

#include <weft/comm/gloo_world.hpp>

#include "train.hpp"

int main() {
  try {
    weft::gloo_world world(weft::launch_from_environment());
    train(world.ranks());
  } catch (const weft::comm_error& error) {   // another rank is gone, late or differs: all ranks say which
    std::fprintf(stderr, "%s\n", error.what());
    return weft::exit_codes::others_failed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return weft::exit_codes::failed;
  }
}
// [/main]
