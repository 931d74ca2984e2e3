#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Within a memory limit, the main job is bitwise identical, and recomputes no more than necessary.
. "$(dirname "$0")/common.sh"

wide=("${small[@]}" --batch 32 --steps 20)
train unlimited "${wide[@]}"
peak=$(grep -o '"predicted_peak_bytes": [0-9]*' "$at/unlimited.jsonl" | grep -o '[0-9]*$')
for percent in 90 70; do
  train limited$percent "${wide[@]}" --memory-limit $((peak * percent / 100))
done
same_bits unlimited limited90 limited70

# If memory runs out without a limit, the error lists what holds it, and which settings would have fitted.
if (ulimit -v 3000000; "$job" "${small[@]}" --context 256 --batch 4096 --steps 1) >"$at/full.out" 2>&1; then
  echo "a step of more memory than there is did not fail"
  exit 1
fi
for words in 'weft: cpu: out of memory: could not allocate' 'the largest of' 'would fit: '; do
  grep -q "$words" "$at/full.out" || { echo "not said: $words"; cat "$at/full.out"; exit 1; }
done
