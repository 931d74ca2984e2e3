#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Within a memory limit the main job computes the same bits, and recomputes as little as fits.
. "$(dirname "$0")/common.sh"

wide=("${small[@]}" --batch 32 --steps 20)
train unlimited "${wide[@]}"
peak=$(grep -o '"predicted_peak_bytes": [0-9]*' "$at/unlimited.jsonl" | grep -o '[0-9]*$')
for percent in 90 70; do
  train limited$percent "${wide[@]}" --memory-limit $((peak * percent / 100))
done
same_bits unlimited limited90 limited70
