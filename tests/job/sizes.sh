#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Widths, heads and vocabularies that are no multiples of a vector: shards end anywhere in a vector, bitwise identical to one process.
. "$(dirname "$0")/common.sh"

while read -r width heads context vocab; do
  sized=(--data "$text" --layers 2 --width "$width" --heads "$heads" --context "$context" --vocab "$vocab" --batch 2 --threads 1
         --steps 30 --lr 3e-3 --order sequential --seed 5 --deterministic)
  train one "${sized[@]}" --accumulate 4
  for strategy in ddp zero1 zero2 zero3; do
    train $strategy "${sized[@]}" --ranks 4 --strategy $strategy
  done
  same_bits one ddp zero1 zero2 zero3
done <<'SIZES'
60 3 48 256
36 1 33 261
90 5 17 300
44 2 29 259
SIZES
