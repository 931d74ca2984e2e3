// SPDX-License-Identifier: MIT
// docs/cookbook/ranks.md: ranks as threads.
// [main]
#include <weft/comm/threads.hpp>

#include "train.hpp"

int main() { weft::run_ranks(2, train); }
// [/main]
