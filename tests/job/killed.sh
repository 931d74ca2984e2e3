#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Ranks are killed at random moments; the run ends with the losses of an undisturbed run.
#
#   killed.sh TRAIN_GPT LAUNCH FOLDER mpi|gloo [ROUNDS]
. "$(dirname "$0")/common.sh"

comm=$4 rounds=${5:-1}
long=(--data "$text" --layers 2 --heads 2 --width 64 --context 32 --batch 4 --threads 1 --steps 300 --lr 1e-3 --deterministic)
trap ': >"$at/over"' EXIT
train undisturbed "${long[@]}" --accumulate 8
for ((round = 0; round < rounds; ++round)); do
  rm -rf "$at"/supervised* "$at/over"
  : >"$at/kills"
  (
    for steps in $((20 + RANDOM % 80)) $((120 + RANDOM % 80)); do
      until [ -e "$at/supervised.jsonl" ] && [ "$(grep -c loss_hex "$at/supervised.jsonl")" -ge $steps ]; do
        [ ! -e "$at/over" ] || exit 0
        sleep 0.05
      done
      pkill -9 -f "^$job.*$at/supervised.jsonl.*--comm" -n && echo killed >>"$at/kills"  # the youngest of the ranks
    done
  ) &
  killer=$!
  run supervised "$launch" -n 4 -r 100 -m 8 -c "$comm" "$job" "${long[@]}" --strategy zero2 --checkpoint "$at/supervised" \
    --checkpoint-every 20 --log "$at/supervised.jsonl"
  : >"$at/over"
  wait $killer || true
  echo "$(wc -l <"$at/kills") ranks were killed"
  [ -s "$at/kills" ] || { echo "the run ended before a rank was killed"; exit 1; }
  grep "going on" "$at/supervised.out"
  same_bits undisturbed supervised
done
