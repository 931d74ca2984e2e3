#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Matrix products in half precision: bitwise identical on several ranks, and after resuming on another number of ranks.
. "$(dirname "$0")/common.sh"

precisions=bf16
[ -z "${WEFT_TEST_LARGE:-}" ] || precisions="bf16 f16"  # its units take a minute to compile
for precision in $precisions; do
  half=("${small[@]}" --steps 20 --deterministic --precision $precision)
  train one_$precision "${half[@]}" --accumulate 4
  train before_$precision "${half[@]}" --steps 10 --ranks 2 --accumulate 2 --strategy zero3 --checkpoint "$at/$precision"
  train after_$precision "${half[@]}" --ranks 4 --strategy zero1 --recompute selective --checkpoint "$at/$precision" --resume
  same_bits one_$precision before_$precision after_$precision
done
