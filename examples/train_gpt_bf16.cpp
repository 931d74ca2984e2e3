// SPDX-License-Identifier: MIT
#include "train_gpt_run.hpp"

template int job::train<weft::precision::bf16>(settings, weft::communicator&);
